"""FedDyn: the minimiser of all risks from few or exact local steps, and rounds in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from least_squares import LeastSquares

from mpifed.testing import run_rounds

A, C = np.array([1.0, 3.0]), np.array([0.0, 4.0])
QUADRATICS = [([[a**0.5]], [a**0.5 * c]) for a, c in zip(A, C, strict=True)]
MODEL = {"name": "linear", "bias": False, "loss": "half_squared"}


def feddyn(data, local, rounds=0, participation=1.0, **options):
    method = {"name": "feddyn", **options}
    own = {"model": MODEL, "participation": participation}
    return run_rounds(method, data, rounds=rounds, local=local, **own)


def test_rounds_of_exact_minimisers_are_those_of_the_closed_form():
    """x_t = (a_t c_t + g_t + alpha x) / (a_t + alpha), and -g_t is what the gradient lacks."""
    alpha = 2.0
    run = feddyn(QUADRATICS, {"lr": 0.2, "epochs": 150}, feddyn_alpha=alpha)
    x, g = run.state.model.item(), np.zeros(2)
    for _ in range(6):
        own = (A * C + g + alpha * x) / (A + alpha)
        g = g - alpha * (own - x)
        assert g == pytest.approx(A * (own - C), abs=1e-12)
        x = own.mean() - g.mean() / alpha
        run.advance()
        assert run.state.gradient.flatten().numpy() == pytest.approx(g, abs=1e-12)
        assert run.state.model.item() == pytest.approx(x, abs=1e-12)


@pytest.mark.parametrize("steps", [1, 5])
def test_it_ends_at_the_minimiser_whatever_the_number_of_steps(steps):
    local = {"lr": 0.1, "epochs": steps}
    run = feddyn(QUADRATICS, local, 220, feddyn_alpha=1.0)
    assert run.deployed.parameters == pytest.approx(3.0, abs=1e-10)
    assert run.state.gradient.flatten().numpy() == pytest.approx([3, -3], abs=1e-9)
    assert run.state.mean_gradient.numpy() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("unbiased", [False, True])
def test_four_rounds_are_those_of_numpy(weights, unbiased):
    how = "unbiased" if unbiased else "renormalised"
    problem = LeastSquares()
    part = {"name": "uniform", "fraction": 0.4, "weights": how}
    alpha, lr, decay = 0.4, 0.1, 0.05
    options = {"feddyn_alpha": alpha, "client_weights": weights}
    local = {"lr": lr, "epochs": 3, "batch_size": 20, "weight_decay": decay}
    run = feddyn(list(zip(problem.xs, problem.ys, strict=True)), local, 0, part, **options)
    n = len(problem.xs)
    p = problem.shares if weights == "samples" else np.full(n, 1 / n)
    x = run.state.model[0].numpy().copy()
    h, own = np.zeros_like(x), np.zeros((n, len(x)))
    for _ in range(4):
        chosen, moves = run.participants, np.zeros((n, len(x)))
        for t in chosen:
            y = x.copy()
            for _ in range(3):
                y -= lr * (problem.gradient(t, y) + decay * y - own[t] + alpha * (y - x))
            moves[t] = y - x
        own, h = own - alpha * moves, h - alpha * p @ moves
        whole = len(chosen) / n if unbiased else p[chosen].sum()
        x = x + p @ moves / whole - h / alpha
        run.advance()
        assert run.deployed.parameters[0, 0] == pytest.approx(x, abs=1e-13)
        assert run.state.mean_gradient[0].numpy() == pytest.approx(h, abs=1e-13)
        assert h == pytest.approx(p @ own, abs=1e-13)
