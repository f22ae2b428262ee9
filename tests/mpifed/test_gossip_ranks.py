"""Gossip is the product with W, and the same to the bit on any number of ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gossip_cases
import numpy as np
import pytest
from commands import environment, mpirun
from on_ranks import folder_of

import topologies
from mpifed.errors import InputError
from mpifed.exchange.gossip import Gossip
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
    with pytest.raises(InputError, match=r"have n = \[11, 11, 11\], but n is 5"):
        Gossip.prepare(Alone(), 5, gossip_cases.SEED, options)


def test_gossip_is_the_product_with_the_dense_matrix(alone, periodic):
    for name, case in gossip_cases.cases(periodic).items():
        played = alone[name]
        training = played.exchange.federation.training
        moved = False
        for k, active in enumerate(played.active, 1):
            before, after = played.rounds[k - 1], played.rounds[k]
            matrix = played.exchange.schedule.matrix(k).restricted_to(active[training])
            expected = before.astype(np.float64)
            expected[training] = matrix.to_dense() @ expected[training]
            # A rounding for each weight, product and sum, and of W's diagonal in float64.
            eps = np.finfo(case.dtype).eps
            tolerance = case.n * eps * np.abs(before).max(0)
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
@pytest.mark.parametrize("ranks", [5, 6, 7])
def test_all_of_it_is_the_same_on_more_ranks(ranks, alone, periodic, tmp_path):
    output, script = tmp_path / "found.npz", Path(gossip_cases.__file__)
    command = [mpirun(), "-n", str(ranks), sys.executable, str(script), str(output), periodic]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    with np.load(output) as found:
        assert gossip_cases.differences(found, alone, ranks) == []
