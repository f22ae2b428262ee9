"""Four rounds of the first methods, as programs in numpy: unequal clients, some of them absent."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run, problem_of
from numpy_logistic import logistic_gradient, numpy_posterior
from numpy_mlp import present
from personal_runs import LOCAL, gradient, mean, regression

SIZES, RATE, EPOCHS = (5, 12, 3, 8), 0.7, 2
LOCAL_PLAIN_PROGRAMS = {"lr": RATE, "epochs": EPOCHS, "batch_size": 16}


def problem():
    """About half of four clients take part."""
    draw = np.random.default_rng(1)
    xs = [draw.normal(size=(n, 3)) for n in SIZES]
    ys = [(draw.random(n) < 0.5).astype(int) for n in SIZES]
    data = problem_of(xs, ys, "classification", 0.5, "linear")
    return data, list(zip(xs, ys, strict=True))


def descend(w, x, y, q, steps=EPOCHS):
    for _ in range(steps):
        w = w - RATE * logistic_gradient(w, x, y, q / len(y))
    return w


def test_fedem():
    data, samples = problem()
    run = Run("fedem", data, local=LOCAL_PLAIN_PROGRAMS)
    theta, pi = run.state.components.numpy(), run.state.mixture.numpy().copy()
    counts = []
    for _ in range(4):
        who, weights = present(run, SIZES)
        trained = []
        for i in who:
            q = numpy_posterior(theta, pi[i], *samples[i])
            pi[i] = q.mean(0)
            trained.append([descend(theta[m], *samples[i], q[:, m]) for m in range(3)])
        if len(who):
            theta = np.tensordot(weights, np.array(trained), 1)
        counts.append(len(who))
        run.go()
        assert run.state.components.numpy() == pytest.approx(theta, abs=1e-12)
        assert run.state.mixture.numpy() == pytest.approx(pi, abs=1e-12)
    assert min(counts) > 0 and max(counts) < 4


@pytest.mark.parametrize("tuned", [False, True])
def test_fedavg_and_its_fine_tuned_models(tuned):
    data, samples = problem()
    run = Run("fedavg_ft" if tuned else "fedavg", data, local=LOCAL_PLAIN_PROGRAMS)
    w = run.x.copy()
    for _ in range(4):
        who, weights = present(run, SIZES)
        if len(who):
            w = weights @ np.array([descend(w, *samples[i], np.ones(SIZES[i])) for i in who])
        run.go()
    assert run.x == pytest.approx(w, abs=1e-12)
    expected = [w] * 4
    if tuned:
        expected = [descend(w, x, y, np.ones(len(y)), steps=1) for x, y in samples]
    assert run.models() == pytest.approx(np.array(expected), abs=1e-12)


def test_local():
    data, samples = problem()
    run = Run("local", data, local=LOCAL_PLAIN_PROGRAMS)
    own = run.models().copy()
    for _ in range(4):
        for i in present(run, SIZES)[0]:
            own[i] = descend(own[i], *samples[i], np.ones(SIZES[i]))
        run.go()
    assert run.models() == pytest.approx(own, abs=1e-12)


# FedAdam: two rounds by hand (Reddi et al. 2021, Algorithm 2), with both weights of clients.


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_rounds_are_those_of_a_program_in_numpy(by, corrected):
    data, samples = regression()
    rate, tau, beta1, beta2 = 0.3, 0.05, 0.9, 0.8
    betas = {"beta1": beta1, "beta2": beta2, "bias_correction": corrected}
    run = Run("fedadam", data, local=LOCAL, server_lr=rate, tau=tau, client_weights=by, **betas)
    x, m, v = run.x.copy(), 0.0, 0.0 if corrected else tau**2
    for round in (1, 2):
        here = run.participants
        moves = {i: -LOCAL["lr"] * gradient(samples[i], x) for i in here}
        delta = mean(moves, here, by == "samples")
        m, v = beta1 * m + (1 - beta1) * delta, beta2 * v + (1 - beta2) * delta**2
        first, second = m, v
        if corrected:
            first, second = m / (1 - beta1**round), v / (1 - beta2**round)
        x = x + rate * first / (np.sqrt(second) + tau)
        run.go()
    assert run.x == pytest.approx(x, rel=1e-12)
