"""Surrogates against closed forms, scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, gammaln
from scipy.stats import multivariate_normal, nbinom
from sklearn.linear_model import Lasso
from sklearn.mixture import GaussianMixture
from surrogate_problems import (
    COVARIANCES,
    PROBLEMS,
    build,
    mean_statistic,
    mm,
    objective,
    start,
)

from mpifed.errors import InputError

COUNTS = torch.tensor([0, 1, 1, 2, 3, 1, 0, 4, 3, 2], dtype=torch.float64)[:, None]
PRIOR = {"shape": 2.0, "rate": 3.0, "penalty_rate": 0.5}


def test_mixing_statistics_minimises_remark_one_and_mixing_parameters_does_not():
    surrogate = build("remark_one", 1)
    z = torch.tensor([[0.5], [1.5], [3.0], [5.0]], dtype=torch.float64)
    s = surrogate.statistics(z, torch.ones(1, dtype=torch.float64), np.array([0, 2, 4]))
    assert s.flatten().tolist() == [1, 4]
    mixed, naive = surrogate.minimiser(s.mean(0)), surrogate.minimiser(s).mean(0)
    assert float(mixed) == pytest.approx(0.4**0.5, abs=1e-15) == pytest.approx(0.6324555320)
    assert float(naive) == 0.75
    gap = objective(surrogate, z, naive) - objective(surrogate, z, mixed)
    assert gap == pytest.approx(0.0460556732, abs=1e-10)


def test_poisson_em_reaches_the_closed_form():
    surrogate = build("poisson", 1, **PRIOR)
    theta = mm(surrogate, COUNTS, torch.tensor([2.0], dtype=torch.float64), 300)[-1]
    m, a, b, rate = float(COUNTS.mean()), 2, 3, 0.5
    y = (-(rate * b + a) + np.sqrt((rate * b + a) ** 2 + 4 * rate * m * b)) / (2 * rate)
    assert float(theta) == pytest.approx(np.log(y), abs=1e-12)
    assert float(theta) == pytest.approx(0.213612754, abs=1e-9)
    direct = minimize_scalar(
        lambda t: objective(surrogate, COUNTS, torch.tensor([t], dtype=torch.float64)), tol=1e-12
    )
    assert direct.x == pytest.approx(float(theta), abs=1e-6)


def test_poisson_losses_are_negative_binomial():
    surrogate, theta = build("poisson", 1, **PRIOR), torch.tensor([0.3], dtype=torch.float64)
    expected = -nbinom.logpmf(COUNTS[:, 0], 2, 3 / (3 + np.exp(0.3)))
    assert np.allclose(surrogate.losses(COUNTS, theta), expected, atol=1e-13)


def test_poisson_as_printed_solves_another_problem():
    surrogate = build("poisson", 1, posterior="as_printed", **PRIOR)
    theta = mm(surrogate, COUNTS, torch.zeros(1, dtype=torch.float64), 400)[-1]
    assert float(theta) == pytest.approx(0.623829554, abs=1e-9)
    direct = minimize_scalar(
        lambda t: -1.7 * t + 2 * np.log(3 + np.exp(t)) + 0.5 * np.exp(t), tol=1e-12
    )
    assert direct.x == pytest.approx(float(theta), abs=1e-6)


def test_poisson_with_a_known_mean_reaches_the_same_minimum():
    surrogate = build("poisson", 1, mean=1.7, **PRIOR)
    assert surrogate.size == 1
    theta = mm(surrogate, COUNTS, torch.zeros(1, dtype=torch.float64), 300)[-1]
    assert float(theta) == pytest.approx(0.213612754, abs=1e-9)
    with pytest.raises(InputError, match=r"theta.*1\.3\b.*\b1\.7\b.*1\.22"):
        surrogate.surrogate_of(torch.tensor([1.3], dtype=torch.float64))


def test_poisson_posterior_means_are_those_of_numerical_integration():
    surrogate, tau = build("poisson", 1, **PRIOR), 0.4
    u = np.linspace(1e-6, 40, 400_001)
    for z in (0, 3):
        density = np.exp((2 + z - 1) * np.log(u) - (3 + np.exp(tau)) * u - gammaln(2))
        expected = -np.trapezoid(u * density, u) / np.trapezoid(density, u)
        samples = torch.tensor([[z]], dtype=torch.float64)
        s = mean_statistic(surrogate, samples, torch.tensor([tau], dtype=torch.float64))
        assert s.tolist() == pytest.approx([z, expected], abs=1e-6)


def fitted(samples):
    start = np.random.default_rng(0).standard_normal((3, 2))
    model = GaussianMixture(
        3, tol=1e-13, reg_covar=0, max_iter=5000, means_init=start, random_state=0
    )
    return model.fit(samples)


def test_the_e_step_and_the_likelihood_are_those_of_scikit_learn():
    samples = PROBLEMS["mixture"].samples(300)
    model = fitted(samples.numpy())
    surrogate = build(
        "gaussian_mixture",
        2,
        weights=(model.weights_ / model.weights_.sum()).tolist(),
        covariances=((model.covariances_ + model.covariances_.transpose(0, 2, 1)) / 2).tolist(),
        ridge=0,
    )
    theta = torch.from_numpy(model.means_.ravel().copy())
    assert np.allclose(
        surrogate.responsibilities(samples, theta), model.predict_proba(samples), atol=1e-12
    )
    assert np.allclose(surrogate.losses(samples, theta), -model.score_samples(samples), atol=1e-11)
    moved = mm(surrogate, samples, theta, 1)[1]
    assert float((moved - theta).abs().max()) < 1e-6  # a fixed point of full EM is one of ours


def test_learning_everything_is_full_em():
    samples = PROBLEMS["mixture"].samples(300)
    model = fitted(samples.numpy())
    surrogate = build("gaussian_mixture", 2, learn="all", ridge=0, covariance_floor=1e-9)
    mixture = surrogate.split(start(surrogate, 0))
    mixture.means.copy_(torch.from_numpy(np.random.default_rng(0).standard_normal((3, 2))))
    theta = mm(surrogate, samples, surrogate.join(mixture), 500)[-1]
    found = surrogate.split(theta)
    value = float(surrogate.losses(samples, theta).mean())
    assert value == pytest.approx(-model.lower_bound_, abs=1e-5)
    order, theirs = found.weights.argsort().numpy(), np.argsort(model.weights_)
    assert np.allclose(found.weights[order], model.weights_[theirs], atol=1e-3)
    assert np.allclose(found.covariances[order], model.covariances_[theirs], atol=1e-2)


def test_without_ridge_a_step_is_the_responsibility_weighted_mean():
    problem = PROBLEMS["mixture"]
    surrogate = build("gaussian_mixture", 2, covariances=COVARIANCES, ridge=0)
    samples, theta = problem.samples(200), start(surrogate, 4)
    densities = np.stack(
        [
            multivariate_normal(mean, covariance).pdf(samples) / 3
            for mean, covariance in zip(theta.view(3, 2).numpy(), COVARIANCES, strict=True)
        ],
        1,
    )
    r = densities / densities.sum(1, keepdims=True)
    expected = r.T @ samples.numpy() / r.sum(0)[:, None]
    assert np.allclose(mm(surrogate, samples, theta, 1)[1].view(3, 2), expected, atol=1e-12)


def test_federated_s_space_is_centralised_em_for_any_sharding():
    surrogate, samples = PROBLEMS["mixture"].make(), PROBLEMS["mixture"].samples(600)
    order = samples[:, 0].argsort()
    central = shards = start(surrogate, 1)
    offsets = np.array([0, 100, 101, 350, 600])
    weights = torch.from_numpy(np.diff(offsets) / 600.0)
    for _ in range(50):
        central = surrogate.minimiser(mean_statistic(surrogate, samples, central))
        parts = surrogate.statistics(samples[order], shards, offsets)
        shards = surrogate.minimiser(surrogate.project(weights @ parts))
    assert torch.allclose(central, shards, atol=1e-12)


def test_covariances_keep_their_floor():
    surrogate = build("gaussian_mixture", 2, components=2, learn="all", covariance_floor=0.01)
    z = torch.tensor([[0.0, 0.0]] * 5 + [[1.0, 1.0]] * 5, dtype=torch.float64)
    path = mm(surrogate, z, start(surrogate, 0), 60)
    mixture = surrogate.split(path[-1])
    assert torch.linalg.eigvalsh(mixture.covariances).min() >= 0.01 - 1e-12
    values = [objective(surrogate, z, theta) for theta in path]
    assert (np.diff(values) < 1e-12).all()


def test_without_g_mm_is_gradient_descent():
    surrogate, z = PROBLEMS["squares_none"].make(), PROBLEMS["squares_none"].samples(80)
    x, y = z[:, :-1].numpy(), z[:, -1].numpy()
    path = mm(surrogate, z, start(surrogate, 0), 30)
    expected = path[0].numpy()
    for theta in path[1:]:
        expected = expected - surrogate.rho * x.T @ (x @ expected - y) / 80
        assert np.allclose(theta, expected, atol=1e-13)


def test_with_l1_the_fixed_point_is_the_lasso():
    surrogate, z = PROBLEMS["squares_l1"].make(), PROBLEMS["squares_l1"].samples(80)
    theta = mm(surrogate, z, start(surrogate, 0), 600)[-1]
    model = Lasso(alpha=0.1, fit_intercept=False, tol=1e-14, max_iter=100_000)
    model.fit(z[:, :-1], z[:, -1])
    assert np.allclose(theta, model.coef_, atol=1e-9)
    assert (theta == 0).any()


def test_logistic_regression_reaches_scipys_minimum():
    surrogate = build(
        "quadratic", 7, loss="logistic", rho=0.5, regularisation="ridge", strength=0.3
    )
    z = PROBLEMS["logistic"].samples(80)
    x, y = z[:, :-1].numpy(), z[:, -1].numpy()
    theta = mm(surrogate, z, start(surrogate, 0), 800)[-1]

    def value(w):
        margins = x @ w
        loss = np.mean(np.logaddexp(0, margins) - y * margins) + 0.15 * w @ w
        return loss, x.T @ (expit(margins) - y) / len(y) + 0.3 * w

    found = minimize(value, np.zeros(6), jac=True, method="BFGS", tol=1e-12)
    assert objective(surrogate, z, theta) == pytest.approx(found.fun, abs=1e-12)
    assert np.allclose(theta, found.x, atol=1e-6)
