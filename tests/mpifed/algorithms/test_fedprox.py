"""FedProx: its fixed points, FedAvg where nothing pulls, and the method written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, two_quadratics
from least_squares import LeastSquares
from test_algorithms import engine_of

from mpifed.algorithms.global_model.fedprox import FedProx

PARTIAL = {"name": "stragglers", "rate": 0.6, "late": "partial"}
A, C = np.array([1.0, 3.0]), np.array([0.0, 4.0])


def rounds(name, exchange="server", **more):
    engine = engine_of(name, exchange, **more)
    with torch.no_grad():
        engine.prepare()
    for _ in range(3):
        engine.advance()
    return engine.digest()


@pytest.mark.parametrize(("mu", "limit"), [(0, 2.680532285), (2, 2.708022736)])
def test_it_ends_at_the_weighted_mean_of_its_clients_contractions(mu, limit):
    """b_i = (1 - (1 - eta (a_i + mu))^E) a_i / (a_i + mu)."""
    run = Run(FedProx, two_quadratics(), local={"lr": 0.1, "epochs": 5}, mu=mu).go(300)
    b = (1 - (1 - 0.1 * (A + mu)) ** 5) * A / (A + mu)
    assert (b @ C) / b.sum() == pytest.approx(limit, abs=1e-9)
    assert run.deployed() == pytest.approx((b @ C) / b.sum(), rel=1e-10)


def test_many_steps_solve_the_proximal_problem():
    """x = sum_i b_i c_i / sum_i b_i with b_i = a_i / (a_i + mu)."""
    run = Run(FedProx, two_quadratics(), local={"lr": 0.1, "epochs": 80}, mu=2.0).go(40)
    assert run.deployed() == pytest.approx(2.571428571, abs=1e-9)


@pytest.mark.parametrize("exchange", ["server", "gossip"])
@pytest.mark.parametrize("participation", [1.0, PARTIAL])
def test_without_a_pull_it_is_fedavg_bit_for_bit(exchange, participation):
    how = {"participation": participation}
    plain = rounds("fedavg", exchange, **how)
    for mu in (0, 1):
        pulled = rounds("fedprox", exchange, **how, algorithm={"name": "fedprox", "mu": mu})
        assert (pulled == plain) == (mu == 0)


def test_stragglers_send_what_a_part_of_their_steps_gave():
    """The systems heterogeneity of the paper is an option of the participation."""
    assert rounds("fedprox", participation=PARTIAL) != rounds("fedprox")


def test_four_rounds_are_those_of_numpy():
    problem = LeastSquares()
    local = {"lr": 0.1, "epochs": 3, "batch_size": 20, "weight_decay": 0.05}
    run = Run(FedProx, problem.data, local=local, mu=0.7)
    x = problem.starts(run)
    for round in range(1, 5):
        chosen, trained = problem.chosen(round), []
        for t in chosen:
            w = x.copy()
            for _ in range(3):
                w -= 0.1 * (problem.gradient(t, w) + 0.7 * (w - x) + 0.05 * w)
            trained.append(w)
        p = problem.shares[chosen] / problem.shares[chosen].sum()
        x = p @ np.array(trained)
    assert run.go(4).deployed()[0] == pytest.approx(x, abs=1e-13)
