"""What a server's average is over: participants, or all clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from commands import TINY, call, rows
from convex import Run, quadratics, random_quadratics
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.algorithms.flix.flix import Flix
from mpifed.algorithms.maml import Fomaml, Reptile
from mpifed.components.registry import ALGORITHMS
from mpifed.errors import RunError
from mpifed.exchange.server import Server
from mpifed.federation.clients import Federation
from mpifed.mpi.communicator import Alone

PREDICTS = (*TINY, "rounds=2", "evaluation.every=1")
DESCRIBES = ("fedmm-homogeneous", "clients=4", "rounds=2", "data.samples=40", "evaluation.every=1")
DESCRIBES = (*DESCRIBES, "participation=1.0")
TRANSPORTS = ("data.dimension=2", "data.benchmark=gaussian", "clients=2", "rounds=2")
TRANSPORTS = (*TRANSPORTS, "algorithm.pretraining=5", "local.batch_size=16", "evaluation.every=1")
FLIX = ("algorithm.l2=0.1", "algorithm.local_iterations=50")
WORDS = {
    **dict.fromkeys(("local", "fedavg", "fedavg_ft", "fedem", "fedadam"), PREDICTS),
    **dict.fromkeys(("fomaml", "maml", "reptile"), PREDICTS),
    **dict.fromkeys(("flix", "dcgd", "diana"), (*PREDICTS, *FLIX)),
    **dict.fromkeys(("fedmm", "fedmm_theta"), DESCRIBES),
    "sa_ssmm": (*DESCRIBES, "clients=1", "compression=none"),
    "fedmgs": (*DESCRIBES, "compression=none"),
    "fedmm_ot": ("transport-fedmm-ot", *TRANSPORTS),
    "fedadam on the transport benchmark": ("transport-fedadam", *TRANSPORTS),
}


def federation(counts, participation=1.0):
    ids = np.arange(len(counts))
    return Federation(Alone(), 0 * ids, ids < 0, np.asarray(counts), participation)


@pytest.mark.parametrize("name", WORDS)
def test_where_nobody_is_absent_all_are_the_participants(name, tmp_path, capfd):
    words = [*WORDS[name], f"algorithm={name.split()[0]}", "--quiet"]
    for over in ("participants", "all"):
        done = call([*words, f"exchange.average_over={over}", "--output", tmp_path / over], capfd)
        assert done.code == 0, done.err
    assert rows(tmp_path / "all") == rows(tmp_path / "participants")


def test_every_method_is_tried():
    assert {name.split()[0] for name in WORDS} == {*ALGORITHMS}


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=8),
    st.floats(1e-3, 1e3),
    st.data(),
)
def test_an_average_over_all_is_the_weighted_mean_whatever_the_weights_sum_to(counts, scale, data):
    n = len(counts)
    active = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    shares = np.array(counts) / sum(counts)
    x = np.random.default_rng(0).normal(size=(n, 3))
    before = np.array([1.0, -2.0, 3.0])
    channel = Server(federation(counts), 0, average_over="all").at(1, active)
    own = torch.from_numpy(shares[active] * scale)
    found = channel.average(torch.from_numpy(x[active]), own, torch.from_numpy(before), scale)
    everyone = np.where(active[:, None], x, before)
    assert found.numpy() == pytest.approx(shares @ everyone, abs=1e-12)


def test_weights_above_those_of_all_clients_are_refused():
    channel = Server(federation([1] * 5), 0, average_over="all").at(1, np.arange(5) < 3)
    x = torch.ones(3, 2, dtype=torch.float64)
    with pytest.raises(RunError, match=r"weights of 3 participants sum to 3, .*clients.weights"):
        channel.average(x, torch.ones(3, dtype=torch.float64), before=x[0])


@pytest.mark.parametrize("kind", [Fomaml, Reptile])
def test_meta_learners_move_the_share_of_those_who_take_part(kind):
    """Half of the clients over all: half of the move that they would make among themselves."""
    matrices, centres = [[[1.0]]] * 4, [[0.0], [1.0], [2.0], [3.0]]
    ends = {}
    for over in ("participants", "all"):
        run = Run(kind, quadratics(matrices, centres, participation=0.5), inner_step=0.1)
        run.server.average_over = over
        ends[over] = float(run.go().x[0])
    assert ends["participants"] != 0
    assert ends["all"] == pytest.approx(ends["participants"] / 2, rel=1e-12)


@pytest.mark.parametrize("n", [3, 7, 10])
def test_flix_over_all_converges_to_the_minimiser(n):
    run = Run(Flix, random_quadratics(n=n, d=4), flix_alpha=0.7, start="zeros", step=0.05)
    run.server.average_over = "all"
    assert run.go(3000).measured()["objective_gap"] < 1e-15
    assert float((run.flix.model[0] - run.flix.reference).norm()) < 1e-13
