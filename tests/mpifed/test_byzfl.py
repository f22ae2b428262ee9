"""ByzFL's aggregators, pre-aggregators and attacks against numpy programs from the papers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from engine_runs import prepared
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from small_runs import PLAIN
from test_aggregation import aggregate, distances, federation, small, updates

from mpifed.config.configuration import resolve
from mpifed.errors import InputError
from mpifed.exchange import collusion
from mpifed.exchange.pre_aggregation import Bucketing, NearestNeighbourMixing
from mpifed.exchange.server import Server
from mpifed.random import stream

shares = st.floats(0.2, 0.49)


def kept(n, share):
    return n - int(share * n + 1e-9)


@given(rows=updates, share=shares)
@small
def test_mda_keeps_updates_of_the_least_diameter(rows, share):
    n, away = len(rows), distances(rows)
    sets = [list(each) for each in combinations(range(n), kept(n, share))]
    diameters = np.array([away[np.ix_(each, each)].max() for each in sets])
    made = aggregate(rows, {"name": "mda", "byzantine": share})
    found = [
        rows[each].mean(axis=0)
        for each, diameter in zip(sets, diameters, strict=True)
        if diameter <= diameters.min() + 1e-6
    ]
    assert np.abs(np.array(found) - made).max(axis=1).min() < 1e-9


def test_mda_of_many_attackers_need_not_try_all_sets():
    rows = np.random.default_rng(0).normal(size=(60, 5))
    rows[::4] += 30
    made = aggregate(rows, {"name": "mda", "byzantine": 0.25})
    assert made == pytest.approx(rows[np.arange(60) % 4 != 0].mean(axis=0))


@given(rows=updates, share=shares)
@small
def test_meamed_is_the_mean_around_the_median(rows, share):
    naive = []
    for column in rows.T:
        median = np.median(column)
        nearest = sorted(column, key=lambda value, at=median: (abs(value - at), value))
        naive.append(np.mean(nearest[: kept(len(rows), share)]))
    made = aggregate(rows, {"name": "meamed", "byzantine": share})
    assert made == pytest.approx(np.array(naive), abs=1e-9)


@given(rows=updates, share=shares, trusted=st.integers(0, 4))
@small
def test_monna_is_the_mean_of_those_nearest_to_the_trusted(rows, share, trusted):
    squares = ((rows - rows[trusted]) ** 2).sum(axis=1)
    nearest = np.argsort(squares, kind="stable")[: kept(len(rows), share)]
    made = aggregate(rows, {"name": "monna", "byzantine": share, "trusted": trusted})
    assert made == pytest.approx(rows[nearest].mean(axis=0), abs=1e-9)


@pytest.mark.parametrize("iterations", [1, 3])
def test_centred_clipping_begins_at_its_last_aggregate(iterations):
    draws, radius = np.random.default_rng(1), 1.5
    section = {"name": "centred_clipping", "radius": radius, "iterations": iterations}
    server = Server(federation(7), 0, aggregator=section)
    before = torch.zeros(4, dtype=torch.float64)
    memory, v = server.remember([before], 7, before.dtype), np.zeros(4)
    for k in range(1, 5):
        rows = draws.normal(size=(7, 4)) + 2
        channel = server.at(k, np.ones(7, bool), memory)
        made = channel.average(torch.from_numpy(rows), torch.ones(7).double(), before)
        memory = channel.memory
        for _ in range(iterations):
            away = rows - v
            v = v + (away * np.minimum(1, radius / np.linalg.norm(away, axis=1))[:, None]).mean(0)
        assert made.numpy() == pytest.approx(v, abs=1e-12)


def mixed(rows, share):
    """Nearest-neighbour mixing, row by row."""
    away = distances(rows)
    return np.array(
        [rows[np.argsort(row, kind="stable")[: kept(len(rows), share)]].mean(0) for row in away]
    )


BEHIND = ["median", {"name": "krum", "selected": 2}, "geometric_median", "trimmed_mean", "meamed"]


@pytest.mark.parametrize("behind", BEHIND)
def test_an_aggregator_gets_means_of_neighbours_in_place_of_updates(behind):
    rows = np.random.default_rng(2).normal(size=(11, 6))
    rows[:2] += 0.5
    asked = {"name": "nnm", "byzantine": 0.2}
    made = aggregate(rows, behind, pre_aggregator=asked)
    assert made == pytest.approx(aggregate(mixed(rows, 0.2), behind), abs=1e-9)
    assert not np.allclose(made, aggregate(rows, behind))


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("n", [12, 13])
def test_an_aggregator_gets_means_of_buckets_in_place_of_updates(behind, n):
    rows = np.random.default_rng(3).normal(size=(n, 6))
    order = stream(0, "bucketing", 1).permutation(n)
    buckets = np.array([rows[order[at : at + 2]].mean(0) for at in range(0, n, 2)])
    made = aggregate(rows, behind, pre_aggregator="bucketing")
    assert made == pytest.approx(aggregate(buckets, behind), abs=1e-9)
    assert Bucketing(size=2).count(n) == len(buckets)
    assert NearestNeighbourMixing().count(n) == n


# -- attacks

BAD = [1, 4]
HONEST = [0, 2, 3, 5, 6, 7]


def attacked(attack, aggregator="mean", rounds=1, **more):
    """What a server makes of updates of eight clients, two of them malicious, and the updates."""
    exchange = {"name": "server", "aggregator": aggregator, **more}
    asked = {"clients": 8, "attack": {"clients": BAD, **attack}}
    engine = prepared("fedavg", exchange, **asked)
    rows = torch.from_numpy(np.random.default_rng(4).normal(size=(8, 9)) + 1)
    start = torch.ones(9, dtype=torch.float64)
    memory = engine.setup.exchange.remember([start], 8, start.dtype)
    channel = engine.setup.channel(1, np.ones(8, bool), memory)
    made = channel.average(start + rows, torch.ones(8).double(), start) - start
    return made.numpy(), rows.numpy()


def outcome(rows, message, aggregator="mean"):
    sent = rows.copy()
    sent[BAD] = message
    return aggregate(sent, aggregator)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ({"name": "alie", "z": 1.2}, lambda u: u.mean(0) - 1.2 * u.std(0)),
        # floor(8 / 2 + 1) - 2 = 3 supporters of 6
        ({"name": "alie", "z": "formula"}, lambda u: u.mean(0) - stats.norm.ppf(0.5) * u.std(0)),
        ({"name": "ipm", "epsilon": 0.7}, lambda u: -0.7 * u.mean(0)),
        ({"name": "mimic"}, lambda u: u[0]),
        ({"name": "mimic", "victim": 3}, lambda u: u[2]),
        ({"name": "mimic", "victim": 4}, lambda u: u[0]),  # malicious itself
    ],
)
@pytest.mark.parametrize("aggregator", ["mean", "median"])
def test_attackers_send_what_the_paper_says(attack, message, aggregator):
    made, rows = attacked(attack, aggregator)
    assert made == pytest.approx(outcome(rows, message(rows[HONEST]), aggregator), abs=1e-9)


@pytest.mark.parametrize("aggregator", ["trimmed_mean", "krum", "geometric_median", "mda"])
@pytest.mark.parametrize(("name", "factor"), [("alie", "z"), ("ipm", "epsilon")])
def test_a_search_goes_as_far_as_doubled_and_shrinking_steps_find(aggregator, name, factor):
    aggregator = {"name": aggregator, "trim" if "trim" in aggregator else "byzantine": 0.26}
    if aggregator["name"] == "geometric_median":
        aggregator = "geometric_median"
    made, rows = attacked({"name": name, factor: "search"}, aggregator)
    mean, deviation = rows[HONEST].mean(0), rows[HONEST].std(0)
    direction = -deviation if name == "alie" else -mean

    def distance(t):
        return np.linalg.norm(outcome(rows, mean + t * direction, aggregator) - mean)

    tried, best, step = {0.0: distance(0.0)}, 0.0, 1.0
    at, grows = 0.0, True
    while len(tried) < 16 and step > 1e-3:
        if grows:
            at = best + step
        else:
            at = at + step if at < best else abs(at - step)
        tried[at] = distance(at)
        grows = grows and tried[at] > tried[best]
        if tried[at] > tried[best]:
            best = at
        step *= 2 if grows else 0.8
    assert np.linalg.norm(made - mean) == pytest.approx(max(tried.values()), rel=1e-6)
    assert np.linalg.norm(made - mean) >= distance(1.0) - 1e-9


def test_the_search_finds_the_place_of_a_single_peak():
    assert collusion.maximum(lambda t: -((t - 5.3) ** 2)) == pytest.approx(5.3, abs=0.5)
    assert collusion.maximum(lambda t: -t) == 0


REFUSED = [
    ({"exchange": {"pre_aggregator": "nnm"}}, "exchange.aggregator is 'mean'"),
    (
        {"exchange": {"aggregator": "krum", "pre_aggregator": {"name": "bucketing", "size": 4}}},
        "of which 'bucketing' makes 2 updates",
    ),
    ({"exchange": {"aggregator": {"name": "mda", "byzantine": 0.1}}}, "a plain mean"),
    ({"exchange": {"aggregator": {"name": "monna", "trusted": 8}}}, "nothing to choose"),
    ({"exchange": {"aggregator": "centred_clipping"}, "algorithm": "ifca"}, "remembers"),
    (
        {"exchange": {"name": "gossip"}, "attack": {"name": "ipm", "clients": [1]}},
        "allowed: server",
    ),
    ({"algorithm": "scaffold", "attack": {"name": "alie", "clients": [1]}}, "sends one update"),
]


@pytest.mark.parametrize(("more", "words"), REFUSED)
def test_what_does_not_go_together_is_refused_in_a_sentence(more, words):
    exchange = {"name": "server", **more.get("exchange", {})}
    given = {**PLAIN, "clients": 8, "algorithm": "fedavg", **more, "exchange": exchange}
    with pytest.raises(InputError, match=words) as refused:
        resolve(given)
    assert "\n" not in str(refused.value)
