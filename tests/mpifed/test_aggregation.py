"""Robust aggregators against naive numpy, the server that uses them, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import TINY, call
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from moves import moved, values
from on_ranks import SMALL, folder_of, run_on_all
from scipy.optimize import minimize
from small_runs import CASES, problem

from mpifed.errors import Diverged, InputError
from mpifed.message import ByCoordinates
from mpifed.testing import find_item, names, run_rounds, world

ROBUST = {name: {} for name in names("aggregators") if name != "mean"}
ROBUST["krum"] = {"byzantine": 0.2, "selected": 2}
ROBUST["monna"] = {"trusted": 1}
ROBUST["centred_clipping"] = {"radius": 0.01}
small = settings(max_examples=15, deadline=None)
updates = st.integers(5, 12).flatmap(
    lambda n: arrays(np.float64, (n, 3), elements=st.floats(-8, 8, width=16))
)


def aggregate(rows, aggregator, clip=None, compression="none", **options):
    """What a server makes of rows that all clients move to from zero."""
    rows = np.asarray(rows)
    exchange = {"name": "server", "aggregator": aggregator, "clip": clip, **options}
    asked = {"exchange": exchange, "compression": compression, "dtype": str(rows.dtype)}
    samples = np.arange(len(rows)) + 1
    return values(moved(lambda k, ids, x: rows[ids], len(rows), 0 * rows[0], 1, samples, **asked))


def distances(rows):
    return np.linalg.norm(rows[:, None] - rows, axis=2)


@given(rows=updates)
@small
def test_the_median_is_numpys(rows):
    assert np.array_equal(aggregate(rows, "median"), np.median(rows, axis=0))


@given(rows=updates, trim=st.floats(0.2, 0.49))
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
    krum = find_item("aggregator", "krum")(byzantine=0.2, selected=selected)
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
    exchange = {"name": "server", "aggregator": section}
    of_samples = moved(lambda k, ids, x: rows[ids], 3, [0.0], 1, [1, 2, 4], exchange=exchange)
    assert values(of_samples) == pytest.approx([9.0], abs=1e-3)


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
    krum = find_item("aggregator", "krum")(byzantine=0.4)
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
    lengths = np.linalg.norm(rows, axis=1)
    naive = rows * np.minimum(1, norm / np.maximum(lengths, 1e-300))[:, None]
    assert aggregate(rows, "mean", clip=norm) == pytest.approx(naive.mean(axis=0), abs=1e-9)
    alone = [aggregate(rows[i : i + 1], "mean", clip=norm) for i in range(len(rows))]
    assert np.array(alone) == pytest.approx(naive, rel=1e-12)


@pytest.mark.parametrize("name", ROBUST)
def test_the_absent_do_not_count(name):
    rows = np.random.default_rng(2).normal(size=(9, 4))
    section = {"name": name, **ROBUST[name]}
    options = {
        "exchange": {"name": "server", "aggregator": section},
        "participation": 0.9,
        "seed": 1,
    }
    before = moved(lambda k, ids, x: rows[ids], 9, np.zeros(4), 0, **options)
    present = before.participants
    assert len(present) == 8 and {0, 1} <= {*present}
    expected = aggregate(rows[present], section)
    assert values(before.advance()) == pytest.approx(expected, rel=1e-12)  # another tree


def test_messages_that_arrive_compressed_are_aggregated():
    rows = np.random.default_rng(3).normal(size=(6, 40)).astype(np.float32)
    aggregated = aggregate(rows, "median", compression={"name": "rand_k", "k": 10})
    assert (aggregated == 0).sum() >= 20  # most coordinates of most messages are zero
    assert not np.array_equal(aggregated, aggregate(rows, "median"))


@pytest.mark.parametrize("name", ROBUST)
def test_numbers_that_are_not_finite_are_refused_with_their_client(name):
    rows = np.ones((7, 3))
    rows[5, 1] = np.inf
    with pytest.raises(Diverged) as refused:
        aggregate(rows, {"name": name, **ROBUST[name]}, clip=2.0)
    assert "5" in str(refused.value)


@pytest.mark.parametrize("name", [*ROBUST, "mean"])
@pytest.mark.parametrize("width", [35, 40_000])
def test_any_ranks_make_of_updates_what_one_makes(name, width):
    """Updates of many numbers are aggregated in pieces."""
    rows = np.random.default_rng(4).normal(size=(9, width)).astype(np.float32)
    section = {"name": name, **ROBUST.get(name, {})}
    exchange = {"name": "server", "aggregator": section, "clip": 3.0}
    options = {"exchange": exchange, "participation": 0.9, "dtype": "float32"}
    digests = {
        moved(lambda k, ids, x: rows[ids], 9, np.zeros(width), ranks=ranks, **options).digest
        for ranks in (1, 2, 3)
    }
    assert len(digests) == 1


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "before"), [("median", "none"), ("krum", "none"), ("krum", "nnm")]
)
def test_a_dry_run_says_what_ranks_send(name, before, tmp_path, capfd):
    folder = folder_of(tmp_path)
    words = {**SMALL, "clients": 9, "algorithm": "fedavg", "data.dimension": 6000, "seed": 3}
    words |= {"exchange.aggregator": name, "exchange.pre_aggregator": before, "checkpoint.every": 9}
    words |= {"evaluation.every": 9}
    sent = [
        run_on_all("synthetic-fedem", {**words, "rounds": rounds}, folder / str(rounds)).summary[
            "mpi_bytes_sent"
        ]
        for rounds in (1, 5)
    ]
    line = [f"{key}={json.dumps(value)}" for key, value in words.items()]
    plan = call(["synthetic-fedem", *line, "--dry-run", "--output", folder / "dry"], capfd)
    assert plan.code == 0
    if world().rank == 0:
        (said,) = [part for part in plan.out.splitlines() if "MPI moves" in part]
        stated = int(said.split("moves ")[1].split()[0].replace(",", ""))
        assert (sent[1] - sent[0]) / 4 == pytest.approx(stated, rel=0.03)


# -- configurations

BY_SERVER = [case.values[0] for case in CASES if case.values[1] == "server"]
QUICK = ("fedem", "ifca", "scaffold")
SUMS = {"scaffold", "qffl", "fedmm", "diana", "mocha"}
MEANS = {"fedavg", "fedem", "fedprox", "ditto", "apfl", "fedrep", "ifca", "fedadam"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in BY_SERVER]
)
def test_every_method_with_means_goes_with_the_median_and_no_other(name):
    exchange = {"name": "server", "aggregator": "median", "clip": 0.5}
    words = problem(name, exchange)
    method, data = words.pop("algorithm"), words.pop("data")
    try:
        rounds = run_rounds(method, data, **{**words, "rounds": 0})
    except InputError:
        assert name not in MEANS
        return
    assert name not in SUMS
    before = rounds.digest
    assert rounds.advance().digest != before


def test_a_run_that_averages_does_not_mention_aggregation(capfd):
    plain, asked = (
        json.loads(call([*TINY, *words, "--dry-run", "--json"], capfd).out)["configuration"]
        for words in ([], ["exchange={name: server, aggregator: mean, clip: null}"])
    )
    assert plain == asked and "aggregator" not in plain["exchange"]


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
