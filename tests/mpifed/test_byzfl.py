"""ByzFL's aggregators, pre-aggregators and attacks against numpy programs from the papers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moves import moved, values
from scipy import stats
from test_aggregation import aggregate, distances, small, updates

from mpifed.dataset import stream
from mpifed.testing import find_item

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
    every, v, total = draws.normal(size=(4, 7, 4)) + 2, np.zeros(4), np.zeros(4)
    exchange = {"name": "server", "aggregator": section}
    run = moved(lambda k, ids, x: every[k - 1][ids], 7, total, 0, exchange=exchange)
    for rows in every:
        for _ in range(iterations):
            away = rows - v
            v = v + (away * np.minimum(1, radius / np.linalg.norm(away, axis=1))[:, None]).mean(0)
        total = total + v
        assert values(run.advance()) == pytest.approx(total, abs=1e-12)


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
    assert find_item("pre_aggregator", "bucketing")(size=2).count(n) == len(buckets)
    assert find_item("pre_aggregator", "nnm")().count(n) == n


# -- attacks

BAD = [1, 4]
HONEST = [0, 2, 3, 5, 6, 7]


def attacked(attack, aggregator="mean"):
    """What a server makes of updates of eight clients, two of them malicious, and the updates."""
    exchange = {"name": "server", "aggregator": aggregator}
    rows = np.random.default_rng(4).normal(size=(8, 9)) + 1
    start = np.ones(9)
    attack = {"clients": BAD, **attack}
    run = moved(lambda k, ids, x: rows[ids], 8, start, exchange=exchange, attack=attack)
    return values(run) - start, rows


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
