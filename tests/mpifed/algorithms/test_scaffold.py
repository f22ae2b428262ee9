"""SCAFFOLD: no drift, FedAvg where none is possible, and the method written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run, two_quadratics
from least_squares import LeastSquares

from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.algorithms.global_model.scaffold import Scaffold
from mpifed.config.configuration import resolve
from mpifed.errors import InputError
from mpifed.federation.participation import Uniform


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("steps", [1, 5])
def test_it_ends_at_the_minimiser_whatever_the_number_of_steps(option, steps):
    """c_i is then the gradient of f_i, and c that of f, 0."""
    local = {"lr": 0.1, "epochs": steps}
    run = Run(Scaffold, two_quadratics(), local=local, variate_option=option).go(250)
    assert run.deployed() == pytest.approx(3.0, abs=1e-10)
    assert run.state.variates.flatten().numpy() == pytest.approx([3, -3], abs=1e-10)
    assert run.state.variate.numpy() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("option", ["I", "II"])
def test_one_step_is_the_gradient_step_of_fedavg(option):
    problem = LeastSquares(participation=1.0)
    local = {"lr": 0.2, "batch_size": 20, "weight_decay": 0.1}
    run = Run(Scaffold, problem.data, local=local, variate_option=option)
    plain = Run(FedAvg, problem.data, local=local)
    for _ in range(4):
        assert run.go().deployed() == pytest.approx(plain.go().deployed(), abs=1e-14)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_four_rounds_are_those_of_numpy(option, weights):
    problem, lr, decay, eta = LeastSquares(), 0.1, 0.05, 0.7
    options = {"variate_option": option, "client_weights": weights, "server_lr": eta}
    local = {"lr": lr, "epochs": 3, "batch_size": 20, "weight_decay": decay}
    run = Run(Scaffold, problem.data, local=local, **options)
    n = len(problem.xs)
    p = problem.shares if weights == "samples" else np.full(n, 1 / n)
    x = problem.starts(run)
    c, own = np.zeros_like(x), np.zeros((n, len(x)))

    def gradient(t, w):
        return problem.gradient(t, w) + decay * w

    for round in range(1, 5):
        chosen = problem.chosen(round)
        moves, changes = np.zeros((2, n, len(x)))
        for t in chosen:
            y = x.copy()
            for _ in range(3):
                y -= lr * (gradient(t, y) - own[t] + c)
            new = gradient(t, x) if option == "I" else own[t] - c + (x - y) / (3 * lr)
            moves[t], changes[t] = y - x, new - own[t]
        x = x + eta * (p @ moves) / p[chosen].sum()
        c, own = c + p @ changes, own + changes
        run.go()
        assert run.deployed()[0] == pytest.approx(x, abs=1e-13)
        assert run.state.variate[0].numpy() == pytest.approx(c, abs=1e-13)
        assert c == pytest.approx(p @ own, abs=1e-13)


def test_the_mean_of_the_variates_is_that_of_the_server_with_unbiased_weights_too():
    problem = LeastSquares(participation=Uniform(fraction=0.4, weights="unbiased"))
    local = {"lr": 0.1, "epochs": 2, "batch_size": 4}
    run = Run(Scaffold, problem.data, local=local).go(5)
    mean = problem.shares @ run.state.variates[:, 0].numpy()
    assert run.state.variate[0].numpy() == pytest.approx(mean, abs=1e-13)


@pytest.mark.parametrize("local", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_other_steps_than_those_of_plain_sgd_are_refused(local):
    with pytest.raises(InputError, match=r"local\.(optimizer|momentum) is .*plain SGD"):
        resolve({"algorithm": "scaffold", "local": local})
