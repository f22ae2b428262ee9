"""FedPD, and its twin FedDyn; Fed-LT: few or exact local steps, and rounds in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run, two_quadratics
from least_squares import LeastSquares

from mpifed.dataset import stream


@pytest.mark.parametrize("steps", [1, 5])
def test_it_ends_at_the_minimiser_whatever_the_number_of_steps(steps):
    local = {"lr": 0.1, "epochs": steps}
    run = Run("fedpd", two_quadratics(), local=local, fedpd_eta=1.0).go(150)
    assert run.models() == pytest.approx(3.0, abs=1e-9)
    assert run.state.multiplier.flatten().numpy() == pytest.approx([-3, 3], abs=1e-8)


def test_with_exact_minimisers_it_is_feddyn():
    problem, local = LeastSquares(participation=1.0), {"lr": 0.3, "epochs": 400, "batch_size": 20}
    run = Run("fedpd", problem.data, local=local, fedpd_eta=0.5)
    twin = Run("feddyn", problem.data, local=local, feddyn_alpha=2.0)
    for _ in range(3):
        assert run.go().models() == pytest.approx(twin.go().models(), abs=1e-11)
        assert run.state.multiplier.numpy() == pytest.approx(
            -twin.state.gradient.numpy(), abs=1e-11
        )


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_rounds_are_those_of_numpy(weights):
    problem, eta, p, lr, decay = LeastSquares(participation=1.0), 0.5, 0.5, 0.1, 0.05
    local = {"lr": lr, "epochs": 3, "batch_size": 20, "weight_decay": decay}
    options = {"fedpd_eta": eta, "fedpd_p": p, "client_weights": weights}
    run = Run("fedpd", problem.data, local=local, **options)
    n = len(problem.xs)
    shares = problem.shares if weights == "samples" else np.full(n, 1 / n)
    x = problem.starts(run)
    own, anchor, dual, sent = np.tile(x, (n, 1)), np.tile(x, (n, 1)), np.zeros((n, len(x))), 0
    for round in range(1, 9):
        for i in range(n):
            for _ in range(3):
                slope = problem.gradient(i, own[i]) + decay * own[i] + dual[i]
                own[i] -= lr * (slope + (own[i] - anchor[i]) / eta)
        dual += (own - anchor) / eta
        anchor = own + eta * dual
        if stream(0, "coin", round, -1).random() >= p:
            x = shares @ anchor
            anchor, sent = np.tile(x, (n, 1)), sent + 1
        run.go()
        assert run.models()[0] == pytest.approx(x, abs=1e-12)
        assert run.state.anchor[:, 0].numpy() == pytest.approx(anchor, abs=1e-12)
    assert 0 < sent < 8
    assert run.exchange.ledger.up_bits == sent * n * 64 * len(x)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_rounds_of_fedlt_are_those_of_numpy(weights):
    problem, rho, lr, decay = LeastSquares(), 0.7, 0.1, 0.05
    local = {"lr": lr, "epochs": 3, "batch_size": 20, "weight_decay": decay}
    run = Run("fedlt", problem.data, local=local, fedlt_rho=rho, client_weights=weights)
    n = len(problem.xs)
    p = problem.shares if weights == "samples" else np.full(n, 1 / n)
    own = np.tile(problem.starts(run), (n, 1))
    z, present = own.copy(), []
    for _ in range(6):
        y = p @ z
        assert run.models()[0] == pytest.approx(y, abs=1e-13)
        present.append(len(run.participants))
        for i in run.participants:
            v = 2 * y - z[i]
            for _ in range(3):
                slope = problem.gradient(i, own[i]) + decay * own[i] + (own[i] - v) / rho
                own[i] -= lr * slope
            z[i] += 2 * (own[i] - y)
        run.go()
        assert run.state.own[:, 0].numpy() == pytest.approx(own, abs=1e-13)
        assert run.state.auxiliary[:, 0].numpy() == pytest.approx(z, abs=1e-13)
    assert min(present) < n


@pytest.mark.parametrize(
    ("steps", "compression", "rounds"),
    [
        (2, None, 120),
        (5, ("top_k", {"k": 1}), 90),
        (2, ("rand_k", {"k": 1}), 240),
        (5, ("sign", {}), 90),
    ],
)
def test_fedlt_ends_at_the_minimiser_also_with_absent_clients_and_compressed(
    compression, steps, rounds
):
    problem = LeastSquares()
    local = {"lr": 0.2, "epochs": steps, "batch_size": 20}
    run = Run("fedlt", problem.data, compression, local=local).go(rounds)
    sizes = np.array([len(x) for x in problem.xs])
    scales = np.repeat(np.sqrt(problem.shares / sizes), sizes)
    x, y = np.concatenate(problem.xs), np.concatenate(problem.ys)
    best = np.linalg.lstsq(x * scales[:, None], y * scales, rcond=None)[0]
    assert run.models()[0] == pytest.approx(best, abs=1e-7)
