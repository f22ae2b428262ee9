"""Robust aggregators against naive numpy, the server that uses them, and what it refuses."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_runs import prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from small_runs import CASES, PLAIN, goes_with, problem

from mpifed.components.registry import find_algorithm
from mpifed.components.tables import AGGREGATORS, ALGORITHMS
from mpifed.config.configuration import resolve, to_mapping
from mpifed.errors import Diverged, InputError, RunError
from mpifed.exchange import aggregation
from mpifed.exchange.aggregation import ByCoordinates, build, clipped
from mpifed.exchange.compression import build as build_compressor
from mpifed.exchange.server import Server
from mpifed.federation.clients import Federation
from mpifed.mpi.communicator import Alone, world
from mpifed.training import exchanging

ROBUST = {name: {} for name in AGGREGATORS if name != "mean"}
ROBUST["krum"] = {"byzantine": 0.2, "selected": 2}
ROBUST["monna"] = {"trusted": 1}
ROBUST["centred_clipping"] = {"radius": 0.01}
small = settings(max_examples=15, deadline=None)
updates = st.integers(5, 12).flatmap(
    lambda n: arrays(np.float64, (n, 3), elements=st.floats(-8, 8, width=16))
)


def federation(n, communicator=None, owner=None):
    owner = np.zeros(n, int) if owner is None else owner
    return Federation(communicator or Alone(), owner, np.zeros(n, bool), np.arange(n) + 1)


def aggregate(rows, aggregator, active=None, clip=None, compressor=None, **options):
    """What a server makes of rows that all clients move to from zero."""
    options = {"aggregator": aggregator, "clip": clip, **options}
    server = Server(federation(len(rows)), 0, None, compressor, **options)
    active = np.ones(len(rows), bool) if active is None else active
    weights = torch.ones(int(active.sum()), dtype=torch.float64)
    sent = torch.from_numpy(np.asarray(rows))[torch.from_numpy(active)]
    before = torch.zeros_like(sent[0])
    memory = server.remember([before], len(rows), before.dtype)
    return server.at(1, active, memory).average(sent, weights, before).numpy()


def distances(rows):
    return np.linalg.norm(rows[:, None] - rows, axis=2)


@given(rows=updates)
@small
def test_the_median_is_numpys(rows):
    assert np.array_equal(aggregate(rows, "median"), np.median(rows, axis=0))


@given(rows=updates, trim=st.floats(0.1, 0.49))
@small
def test_the_trimmed_mean_is_that_of_the_values_in_the_middle(rows, trim):
    cut, ordered = int(trim * len(rows) + 1e-9), np.sort(rows, axis=0)
    naive = ordered[cut : len(rows) - cut].mean(axis=0)
    found = aggregate(rows, {"name": "trimmed_mean", "trim": trim})
    assert found == pytest.approx(naive, rel=1e-12, abs=1e-12)


@given(rows=updates, selected=st.integers(1, 3))
@small
def test_krum_has_the_least_scores(rows, selected):
    n, f = len(rows), int(0.2 * len(rows) + 1e-9)
    squares = np.sort(distances(rows) ** 2, axis=1)[:, 1 : n - f - 1]  # without itself
    scores = squares.sum(axis=1)
    assert squares.shape[1] == n - f - 2
    krum = build({"name": "krum", "byzantine": 0.2, "selected": selected})
    shares = krum.shares(rows @ rows.T)
    chosen = np.flatnonzero(shares)
    assert len(chosen) == selected and shares[chosen] == pytest.approx(1 / selected)
    assert np.sort(scores[chosen]) == pytest.approx(np.sort(scores)[:selected], abs=1e-9)
    made = aggregate(rows, {"name": "krum", "byzantine": 0.2, "selected": selected})
    assert made == pytest.approx(rows[chosen].mean(axis=0), abs=1e-9)


@given(rows=updates)
@settings(max_examples=4, deadline=None)
def test_no_point_is_nearer_to_all_than_the_geometric_median(rows):
    found = aggregate(rows, "geometric_median")

    def total(z):
        return float(np.linalg.norm(rows - z, axis=1).sum())

    best = min(
        minimize(total, start, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9}).fun
        for start in (np.median(rows, axis=0), found)
    )
    assert total(found) <= best * (1 + 1e-4) + 1e-4


def test_the_geometric_median_may_count_samples_as_the_paper_does():
    rows = np.array([[0.0], [1.0], [9.0]])  # clients of 1, 2 and 3 samples, then of 1, 2 and 4
    section = {"name": "geometric_median", "client_weights": "samples"}
    assert aggregate(rows, "geometric_median") == pytest.approx([1.0], abs=1e-3)
    weighed = build(section).weighted_shares(rows @ rows.T, np.array([1, 2, 4]))
    assert weighed @ rows == pytest.approx([9.0], abs=1e-3)


def test_bytes_of_an_aggregate_are_those_of_float64():
    said = build("median").traffic(
        400, 4, 0, SimpleNamespace(communicator=SimpleNamespace(size=3), training=np.arange(9))
    )
    assert said[0] == 9 * 400 * 2 // 3 + 100 * 8 * 2


def test_the_geometric_median_is_exact_with_a_small_tolerance():
    rows = np.random.default_rng(1).normal(size=(9, 4))
    rows[0] += 50
    exact = aggregate(rows, {"name": "geometric_median", "tolerance": 0, "iterations": 5000})
    near = aggregate(rows, {"name": "geometric_median"})
    far = aggregate(rows, {"name": "geometric_median", "tolerance": 0.3})
    assert near == pytest.approx(exact, abs=1e-3)
    assert np.linalg.norm(far - exact) > np.linalg.norm(near - exact)
    at_ends = rows[:3] * [[1], [0], [0]]  # two of three at one point, which then is the median
    assert aggregate(at_ends, "geometric_median") == pytest.approx(np.zeros(4), abs=1e-3)


HALF = {name: {"byzantine": 0.46} for name in ("mda", "monna", "meamed")} | {
    "krum": {"byzantine": 0.4},
    "median": {},
    "trimmed_mean": {"trim": 0.46},
    "geometric_median": {},
    "centred_clipping": {"radius": 1.0},
}
HALF["monna"]["trusted"] = 10


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("far", [1e6, 1e12, 1e30])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("name", ROBUST)
def test_fewer_than_half_do_not_break_it(name, together, far, dtype):
    """Of eleven each bears any five, the largest minority; Krum, for which 2 f + 2 < n, four."""
    assert set(HALF) == set(ROBUST)
    f = 4 if name == "krum" else 5
    rows = np.random.default_rng(7).normal(size=(11, 5)) + 3
    honest = rows[f:].copy()
    rows[:f] = far if together else -far * rows[:f]
    aggregated = aggregate(rows.astype(dtype), {"name": name, **HALF[name]})
    centre = honest.mean(axis=0)
    # The geometric median is within 2 (n - f) / (n - 2 f) of the honest ones' radius.
    reach = 2 * (11 - f) / (11 - 2 * f) * np.linalg.norm(honest - centre, axis=1).max()
    if name == "centred_clipping":
        centre, reach = np.zeros(5), 1.0
    assert np.linalg.norm(aggregated - centre) <= reach
    assert np.linalg.norm(aggregate(rows.astype(dtype), "mean") - centre) > far / 10


@pytest.mark.parametrize("far", [1.0, 1e6, 1e15, 1e30])
def test_the_geometric_median_loses_no_digits_under_attack(far):
    rows = np.random.default_rng(8).normal(size=(11, 5)) + 3
    rows[:5] *= -far
    z = np.median(rows, axis=0)
    for _ in range(2000):
        weights = 1 / np.linalg.norm(rows - z, axis=1)
        z = weights @ rows / weights.sum()
    assert aggregate(rows, "geometric_median") == pytest.approx(z, abs=1e-6)


def test_krum_takes_the_first_of_two_at_one_distance_however_products_are_rounded():
    rows = np.random.default_rng(9).normal(size=(5, 4))
    rows[3] = rows[1] + 0.1  # both have no nearer one than each other
    krum = build({"name": "krum", "byzantine": 0.4})
    products = rows @ rows.T
    for lower in (np.inf, -np.inf):
        rounded = np.where(np.tri(5), np.nextafter(products, lower), products)
        assert krum.shares(rounded).tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("name", ROBUST)
@given(rows=updates, far=st.floats(1e3, 1e6))
@settings(max_examples=10, deadline=None)
def test_one_attacker_does_not_move_it_far(name, rows, far):
    attacked = rows.copy()
    attacked[0] = far
    reach = np.abs(rows).max() * np.sqrt(rows.shape[1])
    made = aggregate(attacked, {"name": name, **ROBUST[name]})
    # The geometric median is within 2 (n - f) / (n - 2 f) of the honest ones' radius.
    assert np.linalg.norm(made) <= 4 * reach + 1e-2
    assert np.linalg.norm(aggregate(attacked, "mean")) >= far / len(rows) - reach


@given(rows=updates, norm=st.floats(0.1, 20))
@small
def test_clipped_rows_have_their_direction_and_at_most_the_norm(rows, norm):
    short = clipped(torch.from_numpy(rows), norm).numpy()
    lengths = np.linalg.norm(rows, axis=1)
    naive = rows * np.minimum(1, norm / np.maximum(lengths, 1e-300))[:, None]
    assert short == pytest.approx(naive, rel=1e-12)
    weights = np.ones(len(rows)) / len(rows)
    assert aggregate(rows, "mean", clip=norm) == pytest.approx(weights @ naive, abs=1e-9)


@pytest.mark.parametrize("name", ROBUST)
def test_the_absent_do_not_count(name):
    rows = np.random.default_rng(2).normal(size=(9, 4))
    active = np.arange(9) != 4
    section = {"name": name, **ROBUST[name]}
    made = aggregate(rows, section, active)
    assert made == pytest.approx(aggregate(rows[active], section), rel=1e-12)  # another tree


def test_messages_that_arrive_compressed_are_aggregated(monkeypatch):
    rows = np.random.default_rng(3).normal(size=(6, 40)).astype(np.float32)
    compressor = build_compressor({"name": "rand_k", "k": 10})
    made = aggregate(rows, "median", compressor=compressor)
    assert (made == 0).sum() >= 20  # most coordinates of most messages are zero
    monkeypatch.setattr(aggregation, "AT_ONCE", 24)
    assert np.array_equal(aggregate(rows, "median", compressor=compressor), made)


@pytest.mark.parametrize("name", ROBUST)
def test_numbers_that_are_not_finite_are_refused_with_their_client(name):
    rows = np.ones((7, 3))
    rows[5, 1] = np.inf
    with pytest.raises(Diverged) as refused:
        aggregate(rows, {"name": name, **ROBUST[name]}, clip=2.0)
    assert "5" in str(refused.value)


def test_a_server_that_adds_with_weights_of_its_own_says_so():
    channel = Server(federation(5), 0, aggregator="median").at(1, np.ones(5, bool))
    with pytest.raises(RunError, match="aggregates = 'sums'"):
        channel.sum(torch.ones(5, 2), torch.ones(5, dtype=torch.float64))


@pytest.mark.mpi
@pytest.mark.parametrize("name", [*ROBUST, "mean"])
def test_these_ranks_make_of_updates_what_one_makes(name, monkeypatch):
    monkeypatch.setattr(aggregation, "AT_ONCE", 40)
    n, communicator = 9, world()
    rows = torch.from_numpy(np.random.default_rng(4).normal(size=(n, 5, 7)).astype(np.float32))
    active = np.arange(n) != 2
    section = {"name": name, **ROBUST.get(name, {})}
    made = []
    for where, owner in ((communicator, np.arange(n)[::-1] % communicator.size), (Alone(), None)):
        clients = federation(n, where, owner)
        own = clients.hosted[active[clients.hosted]]
        server = Server(clients, 0, aggregator=section, clip=3.0)
        channel = server.at(1, active, server.remember([rows[2]], len(own), rows.dtype))
        made.append(channel.average(rows[own], torch.ones(len(own)).double(), rows[2]))
    assert torch.equal(*made)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "before"), [("median", "none"), ("krum", "none"), ("krum", "nnm")]
)
def test_a_dry_run_says_what_ranks_send(name, before):
    n, size, communicator = 9, 6000, world()
    clients = federation(n, communicator, np.arange(n) % communicator.size)
    hosted = len(clients.hosted)
    server = Server(clients, 0, aggregator=name, pre_aggregator=before)
    said = exchanging.describe(server, 4 * size, 4)[1]
    before = communicator.bytes_sent
    channel = server.at(1, np.ones(n, bool))
    channel.average(torch.ones(hosted, size), torch.ones(hosted).double(), torch.zeros(size))
    sent = communicator.sum(np.array([communicator.bytes_sent - before], np.int64))[0]
    assert sent == pytest.approx(
        int(re.search(r"moves ([\d,]+)", said)[1].replace(",", "")), rel=0.03
    )


# -- configurations

BY_SERVER = [case.values[0] for case in CASES if case.values[1] == "server"]
MEANS = [name for name in BY_SERVER if find_algorithm(name).aggregates != "sums"]


def test_most_methods_can_be_aggregated_robustly():
    assert {"fedavg", "fedem", "fedprox", "ditto", "apfl", "fedrep", "ifca", "fedadam"} <= {*MEANS}
    assert not {"scaffold", "qffl", "fedmm", "diana", "mocha"} & {*MEANS}
    assert all(goes_with(name, "server") for name in MEANS) and len(ALGORITHMS) > len(MEANS)


QUICK = ("fedem", "ifca", "local")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in MEANS]
)
def test_every_method_with_means_goes_with_the_median(name):
    own = problem(name, {"name": "server", "aggregator": "median", "clip": 0.5})
    if not find_algorithm(name).communicates:
        with pytest.raises(InputError, match="algorithm is 'local'"):
            resolve(own)
        return
    engine = prepared(name, {"name": "server", "aggregator": "median", "clip": 0.5})
    before = engine.digest()
    engine.advance()
    assert engine.digest() != before


def test_a_run_that_averages_does_not_mention_aggregation():
    asked = {"name": "server", "aggregator": "mean", "clip": None}
    assert to_mapping(resolve({**PLAIN, "exchange": asked})) == to_mapping(resolve(PLAIN))
    assert "aggregator" not in to_mapping(resolve(PLAIN))["exchange"]


MANY = {"clients": 20, "algorithm": "fedavg"}
REFUSED = [
    ("median", {"algorithm": "scaffold"}, "algorithm is 'scaffold'"),
    ("median", {"exchange": {"average_over": "all"}}, r"exchange\.average_over is 'all'"),
    ("median", {"compression": {"name": "top_k", "k": 3}}, "compression is 'top_k'"),
    ("median", {"participation": 0.1}, "at most 2 clients take part"),
    ("trimmed_mean", {"participation": 0.2}, "at most 4 clients take part"),
    (
        "krum",
        {"participation": {"name": "bernoulli", "p": 0.5}},
        r"participation is \{'name': 'bernoulli', 'p': 0\.5\}",
    ),
    ("krum", {"algorithm": "ifca"}, "algorithm is 'ifca'"),
    ("krum", {"participation": 0.1}, "at most 2 clients"),
    ("krum", {"exchange": {"name": "gossip"}}, "aggregator"),
]


@pytest.mark.parametrize(("name", "more", "words"), REFUSED)
def test_what_does_not_go_with_an_aggregator_is_refused_in_a_sentence(name, more, words):
    exchange = {"name": "server", "aggregator": name, **more.get("exchange", {})}
    with pytest.raises(InputError, match=words) as refused:
        resolve({**PLAIN, **MANY, **more, "exchange": exchange})
    assert "\n" not in str(refused.value)


def test_a_users_aggregator_takes_the_place_of_the_mean():
    rows = np.random.default_rng(5).normal(size=(5, 3))
    found = aggregate(rows, "test_aggregation:Largest")
    assert np.array_equal(found, rows.max(axis=0))


class Largest(ByCoordinates):
    """The largest value of each coordinate."""

    def combine(self, columns):
        return columns.max(axis=0)


def test_distances_below_the_smoothing_count_quadratically():
    rows, nu = np.random.default_rng(3).normal(size=(7, 2)), 1.0

    def total(z):
        away = np.linalg.norm(rows - z, axis=1)
        return float(np.where(away >= nu, away, away**2 / (2 * nu) + nu / 2).sum())

    median = aggregate(rows, {"name": "geometric_median", "smoothing": nu})
    best = minimize(total, rows.mean(axis=0), tol=1e-12).x
    assert median == pytest.approx(best, abs=1e-5)
    assert np.abs(median - aggregate(rows, "geometric_median")).max() > 1e-2
