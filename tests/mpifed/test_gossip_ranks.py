"""Gossip is the product with W, and the same to the bit on any number of ranks."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import gossip_cases
import numpy as np
import pytest
from commands import environment, mpirun
from hypothesis import given
from hypothesis import strategies as st
from on_ranks import folder_of

import topologies
from mpifed.errors import InputError
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.gossip_rounds import communicating
from mpifed.mpi.communicator import Alone, world

pytestmark = pytest.mark.filterwarnings("ignore:.* is disconnected", "ignore:fmmc on this")


def store_matrices(folder: Path) -> str:
    """Three matrices, one of them directed."""
    n = gossip_cases.N
    for place, family in enumerate(("ring", "star")):
        matrix = topologies.mixing_matrix(topologies.build_graph(family, n), "metropolis_hastings")
        matrix.save(folder / f"{place}.npz")
    topologies.build_schedule("static_exponential", n).matrix(1).save(folder / "2.npz")
    links = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) * 0.01
    np.savetxt(folder / "links.csv", links, delimiter=",")
    return str(folder)


def played_alone(periodic: str) -> dict[str, gossip_cases.Played]:
    """Every case on one rank."""
    cases = gossip_cases.cases(periodic)
    return {name: gossip_cases.play(case, Alone()) for name, case in cases.items()}


@pytest.fixture(scope="module")
def periodic(tmp_path_factory):
    return store_matrices(tmp_path_factory.mktemp("periodic"))


@pytest.fixture(scope="module")
def alone(periodic):
    return played_alone(periodic)


def test_every_schedule_there_is_is_played(periodic):
    cases = gossip_cases.cases(periodic).values()
    names = {case.exchange_options()["schedule"].name for case in cases}
    # Those of the labels, and those that say who takes part, have tests of their own.
    others = {"stl_fw", "d_cliques", "teleport", "random_walk"}
    assert names | others == {*topologies.SCHEDULES, "gossip_cases:of_this_rank"}


def test_matrices_of_another_size_are_bad_input(periodic):
    options = gossip_cases.cases(periodic)["periodic"].exchange_options()
    with pytest.raises(InputError, match=r"periodic.* n .*\[11, 11, 11\].* 5"):
        Gossip.prepare(Alone(), 5, gossip_cases.SEED, options)


def chebyshev(matrix: np.ndarray, steps: int) -> np.ndarray:
    """T_k(W / s) / T_k(1 / s), by the eigenvalues of W."""
    values, vectors = np.linalg.eigh(matrix)
    slem = np.sort(np.abs(values))[-2]
    chosen = [0] * steps + [1]
    scaled = np.polynomial.chebyshev.chebval(values / slem, chosen)
    return (vectors * scaled / np.polynomial.chebyshev.chebval(1 / slem, chosen)) @ vectors.T


@given(horizon=st.integers(1, 10**6), budget=st.integers(1, 300))
def test_a_budget_of_rounds_is_spent_and_ends_with_the_last(horizon, budget):
    for when in ("late", "geometric"):
        rounds = communicating(when, budget, horizon)
        assert len(rounds) == min(budget, horizon) and rounds[-1] == horizon and rounds[0] >= 1
        gaps = np.diff(rounds)
        assert (gaps > 0).all() and (when == "late" or (np.diff(gaps) <= 1).all())
    assert communicating("late", budget, horizon)[0] == horizon - min(budget, horizon) + 1


def test_gossip_is_the_product_with_the_dense_matrix(alone, periodic):
    for name, case in gossip_cases.cases(periodic).items():
        played = alone[name]
        training = played.exchange.federation.training
        moved = False
        for k, active in enumerate(played.active, 1):
            before, after = played.rounds[k - 1], played.rounds[k]
            steps = played.exchange.gossip_steps
            numbers = range((k - 1) * steps + 1, k * steps + 1)
            every = [played.exchange.schedule.matrix(number) for number in numbers]
            dense = [matrix.restricted_to(active[training]).to_dense() for matrix in every]
            product = functools.reduce(lambda earlier, w: w @ earlier, dense)
            if name == "Chebyshev":
                product = chebyshev(dense[0], steps)
            expected = before.astype(np.float64)
            expected[training] = product @ expected[training]
            # A rounding for each weight, product and sum, and of W's diagonal in float64.
            eps = np.finfo(case.dtype).eps
            tolerance = steps * case.n * eps * np.abs(before).max(0)
            assert (np.abs(after - expected) <= tolerance).all(), (name, k)
            assert np.array_equal(after[~active], before[~active]), (name, k)
            moved |= not np.array_equal(after, before)
        assert moved == (name not in ("one client", "no edges")), name


@pytest.mark.mpi
def test_all_of_it_is_the_same_on_these_ranks_as_on_one(tmp_path):
    communicator, folder, unlike = world(), folder_of(tmp_path), None
    if communicator.rank == 0:
        store_matrices(folder)
    communicator.barrier()
    found = gossip_cases.play_all(str(folder), communicator)
    if communicator.rank == 0:
        unlike = gossip_cases.differences(found, played_alone(str(folder)), communicator.size)
    assert communicator.broadcast_object(unlike) == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [5, 7])
def test_all_of_it_is_the_same_on_more_ranks(ranks, alone, periodic, tmp_path):
    output, script = tmp_path / "found.npz", Path(gossip_cases.__file__)
    command = [mpirun(), "-n", str(ranks), sys.executable, str(script), str(output), periodic]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    with np.load(output) as found:
        assert gossip_cases.differences(found, alone, ranks) == []
