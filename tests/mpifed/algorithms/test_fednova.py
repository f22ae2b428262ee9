"""FedNova: moves are divided by the steps of clients, with and without momentum."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run, problem_of
from least_squares import LeastSquares

from mpifed.errors import InputError
from mpifed.testing import run_rounds


def coefficients(steps, rho):
    """a_i by its definition: how often the gradient of each step has been added."""
    return np.array([sum(rho**k for k in range(steps - j)) for j in range(steps)])


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("epochs", [1, 4])
def test_constant_gradients_move_it_along_their_mean_however_many_steps(rho, epochs):
    """f_i is nearly -b_i w: FedAvg goes along the sum of p_i tau_i b_i, FedNova of p_i b_i."""
    counts, tiny = (2, 6), 1e-6
    b = np.array([1.0, -1.0])
    xs = [np.full((n, 1), tiny) for n in counts]
    ys = [np.full(n, own / tiny) for n, own in zip(counts, b, strict=True)]
    local = {"lr": 1e-3, "batch_size": 2, "epochs": epochs, "momentum": rho}
    run = Run("fednova", problem_of(xs, ys), local={**local, "reset_momentum": True})
    plain = Run("fedavg", problem_of(xs, ys), local={**local, "reset_momentum": True})
    p = np.array(counts) / sum(counts)
    start, reach = run.x[0], np.array([coefficients(epochs * n // 2, rho).sum() for n in counts])
    expected = 1e-3 * (p @ reach) * (p @ b)
    assert run.go().x[0] - start == pytest.approx(expected, rel=1e-6)
    assert plain.go().x[0] - start == pytest.approx(1e-3 * (p * reach) @ b, rel=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.7])
@pytest.mark.parametrize("unbiased", [False, True])
def test_four_rounds_are_those_of_numpy(rho, unbiased):
    """Shards of one repeated sample, so that all minibatches of a client are alike."""
    how = "unbiased" if unbiased else "renormalised"
    problem = LeastSquares(participation={"name": "uniform", "fraction": 0.6, "weights": how})
    for x, y in zip(problem.xs, problem.ys, strict=True):
        x[:], y[:] = x[0], y[0]
    lr = 0.05
    local = {"lr": lr, "batch_size": 2, "epochs": 2, "momentum": rho, "reset_momentum": True}
    run = Run("fednova", problem.data, local=local)
    x, p = problem.starts(run), problem.shares
    for _ in range(4):
        chosen = run.participants
        d, norms = np.zeros((len(p), len(x))), np.zeros(len(p))
        for i in chosen:
            y, v, gradients = x.copy(), np.zeros_like(x), []
            for _ in range(2 * -(-len(problem.xs[i]) // 2)):
                gradients.append(problem.gradient(i, y))
                v = rho * v + gradients[-1]
                y = y - lr * v
            a = coefficients(len(gradients), rho)
            assert x - lr * a @ gradients == pytest.approx(y, abs=1e-13)
            d[i], norms[i] = a @ gradients / a.sum(), a.sum()
        effective = p[chosen] @ norms[chosen] / p[chosen].sum()
        whole = len(chosen) / len(p) if unbiased else p[chosen].sum()
        x = x - lr * effective * (p @ d) / whole
        assert run.go().models()[0] == pytest.approx(x, abs=1e-13)


def test_one_step_of_every_client_is_that_of_fedavg():
    problem, local = LeastSquares(participation=1.0), {"lr": 0.2, "batch_size": 20}
    run, plain = (Run(kind, problem.data, local=local).go(4) for kind in ("fednova", "fedavg"))
    assert run.models() == pytest.approx(plain.models(), abs=1e-14)


@pytest.mark.parametrize(
    "local",
    [
        {"momentum": 0.9},
        {"optimizer": "adam"},
        {"momentum": 0.9, "reset_momentum": True, "lr_clock": "local_epoch"},
    ],
)
def test_steps_whose_length_is_not_known_are_refused(local):
    with pytest.raises(InputError, match=r"local\.\w+.*'fednova'"):
        run_rounds("fednova", local=local, rounds=0)
