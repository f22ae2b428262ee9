"""Step sizes, measures and the direction of FedMM and its twin, against closed forms and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fedmm_runs import Run, data_of

from mpifed.algorithms.fedmm.fedmm import FedMM
from mpifed.algorithms.fedmm.fedmm_theta import FedMMTheta
from mpifed.federation.clients import Draws
from mpifed.federation.participation import Bernoulli

BETA = 0.4
RULES = {
    "constant": [0.4] * 5,
    "sqrt": [0.4 / 1.4**0.5, 0.4 / 2.4**0.5, 0.4 / 3.4**0.5, 0.4 / 4.4**0.5, 0.4 / 5.4**0.5],
    "inverse": [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5],
    "inverse_kept": [1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6],
}
RHO, STRENGTH = 0.1, 0.3
L1 = {
    "name": "quadratic",
    "loss": "least_squares",
    "rho": RHO,
    "regularisation": "l1",
    "strength": STRENGTH,
}


@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_of_their_rule_from_round_one(rule):
    """Where statistics do not depend on theta, S_t - s* is prod (1 - gamma_t) of S_0 - s*."""
    run = Run(FedMM, data_of([np.full((2, 1), 2.5)]), "remark_one", step_rule=rule, step=BETA)
    run.start_from(torch.tensor([7.0], dtype=torch.float64))
    away = 4.5
    for t, gamma in enumerate(RULES[rule], 1):
        assert run.method.gamma(t) == pytest.approx(gamma, rel=1e-15)
        away *= 1 - gamma
        assert float(run.go().s) - 2.5 == pytest.approx(away, rel=1e-13, abs=1e-15)


def shards(seed=0, sizes=(5, 9, 14), q=4):
    """Samples (x, target) of clients that differ, of unequal numbers."""
    draw = np.random.default_rng(seed)
    parts = []
    for size in sizes:
        x = draw.normal(size=(size, q))
        parts.append(np.hstack([x, x @ draw.normal(size=(q, 1)) + draw.normal(size=(size, 1))]))
    return parts


def prox(s):
    return np.sign(s) * np.maximum(np.abs(s) - RHO * STRENGTH, 0)


def statistic(z, theta):
    return theta - RHO * z[:, :-1].T @ (z[:, :-1] @ theta - z[:, -1]) / len(z)


def mean_statistic(parts, theta, mu):
    return sum(m * statistic(z, theta) for m, z in zip(mu, parts, strict=True))


def objective(parts, theta, mu):
    risks = [0.5 * np.mean((z[:, :-1] @ theta - z[:, -1]) ** 2) for z in parts]
    return np.dot(mu, risks) + STRENGTH * np.abs(theta).sum()


MU = {"uniform": [1 / 3] * 3, "samples": [5 / 28, 9 / 28, 14 / 28]}


def measured(run):
    return run.method.measure(run.state, run.everyone, run.server, Draws(0, run.round))


@pytest.mark.parametrize("weights", MU)
def test_measures_of_fedmm_are_moves_over_the_squared_step(weights):
    parts, mu = shards(), MU[weights]
    options = {"step_rule": "sqrt", "step": BETA, "client_weights": weights}
    run = Run(FedMM, data_of(parts, targets=1), L1, **options)
    s = run.s.numpy().copy()
    first = measured(run)
    assert first == {"objective": pytest.approx(objective(parts, prox(s), mu), rel=1e-12)}
    for gamma in RULES["sqrt"]:
        before, s = s, s + gamma * (mean_statistic(parts, prox(s), mu) - s)
        found = measured(run.go())
        assert found == {
            "objective": pytest.approx(objective(parts, prox(s), mu), rel=1e-12),
            "surrogate_update": pytest.approx(np.sum((s - before) ** 2) / gamma**2, rel=1e-9),
            "parameter_update": pytest.approx(
                np.sum((prox(s) - prox(before)) ** 2) / gamma**2, rel=1e-9
            ),
        }


@pytest.mark.parametrize("weights", MU)
def test_measures_of_the_twin_are_in_its_own_space_and_by_all_data_in_the_other(weights):
    parts, mu = shards(), MU[weights]
    options = {"step_rule": "sqrt", "step": BETA, "client_weights": weights}
    run = Run(FedMMTheta, data_of(parts, targets=1), L1, **options)
    theta = run.s.numpy().copy()
    for gamma in RULES["sqrt"]:
        before = theta
        mapped = [m * prox(statistic(z, theta)) for m, z in zip(mu, parts, strict=True)]
        theta = theta + gamma * (sum(mapped) - theta)
        moved = mean_statistic(parts, theta, mu) - mean_statistic(parts, before, mu)
        found = measured(run.go())
        assert found == {
            "objective": pytest.approx(objective(parts, theta, mu), rel=1e-12),
            "surrogate_update": pytest.approx(np.sum(moved**2) / gamma**2, rel=1e-9),
            "parameter_update": pytest.approx(np.sum((theta - before) ** 2) / gamma**2, rel=1e-9),
        }


def test_measures_of_the_twin_take_whole_shards_where_rounds_take_batches():
    parts, mu = shards(), MU["uniform"]
    options = {"step_rule": "constant", "step": BETA, "batch": 2}
    run = Run(FedMMTheta, data_of(parts, targets=1), L1, **options)
    for _ in range(3):
        before = run.s.numpy().copy()
        found = measured(run.go())
        after = run.s.numpy()
        moved = mean_statistic(parts, after, mu) - mean_statistic(parts, before, mu)
        expected = np.sum(moved**2) / BETA**2
        assert found["surrogate_update"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("weights", "mu"), [("uniform", [1 / 2, 1 / 2]), ("samples", [3 / 11, 8 / 11])]
)
def test_the_objective_on_test_samples_is_that_of_the_clients_that_have_any(weights, mu):
    parts, tests = shards(), shards(1, (3, 1, 8))
    tests[1] = tests[1][:0]
    data = data_of(parts, targets=1, tests=tests)
    run = Run(FedMM, data, L1, step_rule="constant", step=BETA, client_weights=weights).go(2)
    assert run.method.columns[-1] == "test_objective"
    expected = objective([tests[0], tests[2]], run.theta.numpy(), mu)
    assert measured(run)["test_objective"] == pytest.approx(expected, rel=1e-12)
    trained = objective(parts, run.theta.numpy(), MU[weights])
    assert measured(run)["objective"] == pytest.approx(trained, rel=1e-12)


def test_without_test_samples_there_is_no_such_column():
    run = Run(FedMM, data_of(shards(), targets=1), L1)
    assert run.method.columns == FedMM.columns
    assert set(measured(run.go())) == set(FedMM.columns)


DRAWS = 2_500


def variance_of(delta, compressor, k):
    """E (Q_j - Delta_j)^2 in closed form: 8-bit stochastic rounding, and k of the coordinates."""
    if compressor == "rand_k":
        return (delta.shape[1] / k - 1) * delta**2
    unit = np.abs(delta).max(1, keepdims=True) / 127
    part = np.abs(delta) / unit % 1
    return unit**2 * part * (1 - part)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize(("compressor", "options"), [("quantise", {}), ("rand_k", {"k": 2})])
def test_the_direction_is_unbiased(compressor, options, rate):
    """H is linear in the clients, so a round of each client 2500 times is the mean of as many."""
    parts, p = shards(2, (6, 6, 6)), 0.5
    draw = np.random.default_rng(3)
    s, v = draw.normal(size=4), draw.normal(size=(3, 4))
    data = data_of(parts * DRAWS, Bernoulli(p=p), targets=1)
    run = Run(
        FedMM,
        data,
        {"name": "quadratic", "rho": RHO},
        (compressor, options),
        step_rule="constant",
        step=1.0,
        control_variate_rate=rate,
    )
    run.start_from(torch.from_numpy(s), torch.from_numpy(np.tile(v, (DRAWS, 1)))).go()
    delta = np.array([statistic(z, s) for z in parts]) - s - v
    second = (variance_of(delta, compressor, 2) + delta**2) / p
    error = np.sqrt((second - delta**2).sum(0) / 9 / DRAWS)
    direction = run.s.numpy() - s
    assert (np.abs(direction - (delta + v).mean(0)) < 4 * error).all()
    # V moves by alpha times the same sum, and stays the mean of the V_i.
    sent = direction - v.mean(0)
    assert run.state.variate.numpy() == pytest.approx(v.mean(0) + rate * sent, abs=1e-12)
    assert run.state.variates.numpy().mean(0) == pytest.approx(run.state.variate.numpy(), abs=1e-12)
