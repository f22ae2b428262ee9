"""q-FFL: FedAvg for q = 0, the minimiser of its objective, and the method written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run, clients_of, two_quadratics
from least_squares import LeastSquares

from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.algorithms.global_model.qffl import Qffl


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_it_is_fedavg_where_q_is_0(participation):
    problem = LeastSquares(participation=participation)
    local = {"lr": 0.1, "epochs": 2, "batch_size": 4, "momentum": 0.5}
    run = Run(Qffl, problem.data, local=local, q=0.0)
    plain = Run(FedAvg, problem.data, local=local)
    for _ in range(5):
        assert run.go().deployed() == pytest.approx(plain.go().deployed(), abs=1e-14)


@pytest.mark.parametrize(("q", "epochs"), [(0, 5), (1, 1), (1, 5), (2.5, 1)])
def test_it_ends_where_the_weighted_moves_cancel(q, epochs):
    """F_1^q g_1 x = F_2^q g_2 (4 - x) with g_i = 1 - (1 - eta a_i)^E.

    One step (q-FedSGD) ends at the minimiser of sum F^(q+1): 4 r / (1 + r), r^(2q+1) = 3^(q+1).
    """
    local = {"lr": 0.2, "epochs": epochs}
    run = Run(Qffl, two_quadratics(), local=local, q=float(q)).go(120)
    g = 1 - (1 - 0.2 * np.array([1.0, 3.0])) ** epochs
    r = (3**q * g[1] / g[0]) ** (1 / (2 * q + 1))
    if epochs == 1:
        assert r ** (2 * q + 1) == pytest.approx(3 ** (q + 1))
    assert run.deployed() == pytest.approx(4 * r / (1 + r), rel=1e-9)


def test_larger_q_is_fairer():
    """Both risks are equal at 4 sqrt(3) / (1 + sqrt(3)), where the larger is least."""
    ends = [
        Run(Qffl, two_quadratics(), local={"lr": 0.2}, q=q).go(100).deployed().item()
        for q in (0.0, 1.0, 8.0)
    ]
    equal = 4 * 3**0.5 / (1 + 3**0.5)
    assert 3 + 1e-9 > ends[0] > ends[1] > ends[2] > equal
    assert ends[2] == pytest.approx(equal, abs=0.04)


@pytest.mark.parametrize(("q", "lipschitz"), [(1.0, None), (0.5, 3.0)])
def test_four_rounds_are_those_of_numpy(q, lipschitz):
    problem, lr = LeastSquares(), 0.1
    local = {"lr": lr, "epochs": 3, "batch_size": 20}
    run = Run(Qffl, problem.data, local=local, q=q, lipschitz=lipschitz)
    x, big = problem.starts(run), lipschitz or 1 / lr
    for round in range(1, 5):
        delta, h = np.zeros_like(x), 0.0
        for t in problem.chosen(round):
            w = x.copy()
            for _ in range(3):
                w -= lr * problem.gradient(t, w)
            move, risk = big * (x - w), problem.risk(t, x)
            delta += problem.shares[t] * risk**q * move
            h += problem.shares[t] * (q * risk ** (q - 1) * move @ move + big * risk**q)
        x = x - delta / h
        assert run.go().deployed()[0] == pytest.approx(x, abs=1e-12)


def test_a_client_that_fits_its_samples_leaves_the_model_finite():
    data = clients_of([np.eye(2), np.eye(2)], [np.zeros(2), np.zeros(2)])
    run = Run(Qffl, data, local={"lr": 0.5, "epochs": 10}, q=0.5).go(60)
    assert np.abs(run.deployed()).max() < 1e-3
