"""FedGMM: its E- and M-steps against formulas, what it is with one component, and its predictor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from convex import Run, logistic, problem_of
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import mpifed
from mpifed.dataset import Split
from mpifed.method import Clients, Draws

EXACT = {"covariance_floor": 1e-9, "gmm_dimension": None}


def two_populations(seed=0, sizes=(12, 20, 9, 15)):
    """Inputs around (2, 2) or (-2, -1), and other labels in either place; clients alternate."""
    draw = np.random.default_rng(seed)
    xs, ys = [], []
    for client, n in enumerate(sizes):
        centre, slope = (([2, 2], [1, -1]), ([-2, -1], [-1, 2]))[client % 2]
        x = draw.normal(size=(n, 2)) * [1, 0.5] + centre
        xs.append(x)
        ys.append(x @ np.array(slope, float) + 0.1 * draw.normal(size=n))
    return xs, ys


def unpacked(run, full=True):
    """Means and covariances of the run's Gaussians, from its statistics."""
    d = run.clients.shards.train.x.shape[1]
    s = run.state.statistics.numpy()
    means = s[:, 1 : 1 + d] / s[:, :1]
    second = s[:, 1 + d :] / s[:, :1]
    moments = second.reshape(-1, d, d) if full else np.stack([np.diag(row) for row in second])
    products = means[:, :, None] * means[:, None]
    return means, moments - (products if full else products * np.eye(d))


def log_pairs(x, y, pi, means, covariances, theta):
    """log pi(m1, m2) N(x; m1) p(y | x; m2) but for a constant, (M1, M2, samples)."""
    inputs = [multivariate_normal(m, c).logpdf(x) for m, c in zip(means, covariances, strict=True)]
    labels = -((x @ theta.T - y[:, None]) ** 2).T / 2
    with np.errstate(divide="ignore"):
        return np.log(pi)[:, :, None] + np.stack(inputs)[:, None] + labels[None]


def test_with_one_gaussian_it_is_fedem_bit_for_bit():
    settings = {"lr": 0.1, "batch_size": 16, "momentum": 0.9}
    data = logistic(participation=0.5)
    own = Run("fedgmm", data, local=settings, n_gaussians=1, n_components=2).go(4)
    other = Run("fedem", data, local=settings, n_components=2).go(4)
    for name in ("components", "mixture"):
        assert torch.equal(getattr(own.state, name), getattr(other.state, name))
    assert torch.equal(own.state.optimizer.momentum, other.state.optimizer.momentum)
    assert own.algorithm.deploy(own.state, own.clients, Draws(0, 4)).gate is None


def test_with_one_component_too_it_is_fedavg_bit_for_bit():
    settings = {"lr": 0.1, "batch_size": 16, "momentum": 0.9}
    data = logistic(participation=0.5)
    own = Run("fedgmm", data, local=settings, n_gaussians=1, n_components=1).go(4)
    assert torch.equal(own.state.components, Run("fedavg", data, local=settings).go(4).state.model)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_one_gaussian_has_the_mean_and_covariance_of_all_inputs(covariance):
    """Means over clients of their covariances would lack the spread of their means."""
    xs, ys = two_populations()
    options = {**EXACT, "covariance": covariance, "n_gaussians": 1}
    run = Run("fedgmm", problem_of(xs, ys), local={"lr": 0.01}, **options).go(1)
    means, covariances = unpacked(run, covariance == "full")
    pooled = np.concatenate(xs)
    expected = np.cov(pooled.T, bias=True)
    assert means[0] == pytest.approx(pooled.mean(0), rel=1e-12)
    shape = expected if covariance == "full" else np.diag(np.diag(expected))
    assert covariances[0] == pytest.approx(shape, rel=1e-11)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_four_rounds_are_those_of_a_program_in_numpy(covariance):
    xs, ys = two_populations(1, (5, 8, 6, 11, 4, 7))
    full = covariance == "full"
    run = Run(
        "fedgmm",
        problem_of(xs, ys, participation=0.5),
        local={"lr": 0.02, "epochs": 2},
        n_gaussians=3,
        n_components=2,
        covariance=covariance,
        **EXACT,
    )
    pi = run.state.mixture.numpy().reshape(-1, 3, 2).copy()
    theta = run.state.components.numpy().copy()
    means, covariances = unpacked(run, full)
    for _ in range(4):
        active = run.participants
        run.go(1)
        thetas, mass, samples, weights = np.zeros_like(theta), 0, [], []
        for c in active:
            joint = log_pairs(xs[c], ys[c], pi[c], means, covariances, theta)
            q = np.exp(joint - logsumexp(joint, (0, 1)))
            pi[c] = q.mean(2)
            own = theta.copy()
            for _ in range(2):
                residuals = q.sum(0).T * (xs[c] @ own.T - ys[c][:, None])
                own -= 0.02 * residuals.T @ xs[c] / len(xs[c])
            thetas, mass = thetas + len(xs[c]) * own, mass + len(xs[c])
            samples.append(xs[c])
            weights.append(q.sum(1))
        theta, x, r = thetas / mass, np.concatenate(samples), np.concatenate(weights, 1)
        means = r @ x / r.sum(1, keepdims=True)
        away = x - means[:, None]
        covariances = (r[:, :, None] * away).swapaxes(1, 2) @ away / r.sum(1)[:, None, None]
        if not full:
            covariances = covariances * np.eye(2)
        assert run.state.mixture.numpy().reshape(-1, 3, 2) == pytest.approx(pi, abs=1e-9)
        assert run.state.components.numpy() == pytest.approx(theta, rel=1e-8)
        found = unpacked(run, full)
        assert found[0] == pytest.approx(means, rel=1e-8)
        assert found[1] == pytest.approx(covariances, abs=1e-8)


def test_the_likelihood_of_all_samples_never_falls():
    """The M-step is exact for Gaussians and mixtures; one small step descends for components."""
    xs, ys = two_populations(2)
    options = {"n_gaussians": 2, "n_components": 2, **EXACT}
    run = Run("fedgmm", problem_of(xs, ys), local={"lr": 0.02}, seed=1, **options)
    reached = []
    for _ in range(40):
        pi = run.state.mixture.numpy().reshape(-1, 2, 2)
        shared = (*unpacked(run), run.state.components.numpy())
        reached.append(
            sum(
                logsumexp(log_pairs(x, y, pi[c], *shared), (0, 1)).sum()
                for c, (x, y) in enumerate(zip(xs, ys, strict=True))
            )
        )
        run.go(1)
    assert (np.diff(reached) > -1e-9).all()
    assert reached[-1] > reached[0] + 50


def test_clients_of_two_populations_are_told_apart_by_their_inputs():
    xs, ys = two_populations(3)
    options = {"n_gaussians": 2, "n_components": 2, **EXACT}
    run = Run("fedgmm", problem_of(xs, ys), local={"lr": 0.1}, seed=1, **options).go(60)
    share = run.state.mixture.numpy().reshape(-1, 2, 2).sum(2)
    assert share.max(1) == pytest.approx(1, abs=0.02)
    assert len(set(share.argmax(1)[[0, 2]])) == len(set(share.argmax(1)[[1, 3]])) == 1
    assert share.argmax(1)[0] != share.argmax(1)[1]


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_variances_are_not_below_their_floor_and_no_gaussian_is_lost(covariance):
    """All inputs of a Gaussian are one point; its gate is that of the floor in every direction."""
    x = np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    options = {"covariance_floor": 0.04, "gmm_dimension": None, "covariance": covariance}
    run = Run("fedgmm", problem_of([x], [np.zeros(4)]), n_gaussians=2, n_components=2, **options)
    statistics = np.zeros_like(run.state.statistics)
    for row, mean in zip(statistics, ([1.0, 2.0], [0.0, 0.0]), strict=True):
        row[:3] = 1, *mean
        row[3:] = np.outer(mean, mean).ravel() if covariance == "full" else np.square(mean)
    one_to_one = np.eye(2)[None] / 2  # pi[m1, m2]
    mixture = one_to_one.reshape(run.state.mixture.shape)
    run.start_from(statistics=statistics, mixture=mixture)
    gate = run.algorithm.deploy(run.state, run.clients, Draws(0, 0)).gate
    z = torch.tensor([[0.55, 0.95]], dtype=torch.float64)
    away = [((z.numpy() - mean) ** 2).sum() for mean in ([1.0, 2.0], [0.0, 0.0])]
    odds = gate(0, z)[0, 0] / gate(0, z)[1, 0]
    assert float(odds.log()) == pytest.approx((away[1] - away[0]) / 0.08, rel=1e-6)
    statistics[1] = 0  # a Gaussian without samples
    run.start_from(statistics=statistics)
    gate = run.algorithm.deploy(run.state, run.clients, Draws(0, 0)).gate
    assert torch.isfinite(gate(0, z)).all()
    assert torch.isfinite(run.go().state.statistics).all()


def test_components_weigh_by_the_density_of_the_input():
    """p(y | x) = sum pi N(x; m1) p(y | x; m2) / sum pi N(x; m1)."""
    xs, ys = two_populations(4)
    data = problem_of(xs, ys)
    options = {"n_gaussians": 3, "n_components": 2, **EXACT}
    run = Run("fedgmm", data, local={"lr": 0.1}, seed=1, **options).go(5)
    means, covariances = unpacked(run)
    pi = run.state.mixture.numpy().reshape(-1, 3, 2)
    gate = run.algorithm.deploy(run.state, run.clients, Draws(0, 5)).gate
    x = np.random.default_rng(0).normal(size=(7, 2))
    densities = np.stack(
        [multivariate_normal(m, c).pdf(x) for m, c in zip(means, covariances, strict=True)]
    )
    expected = np.einsum("ab,an->bn", pi[1], densities) / (pi[1].sum(1) @ densities)
    assert gate(1, torch.from_numpy(x)).numpy() == pytest.approx(expected, rel=1e-6)


def test_scores_of_a_gated_mixture_are_those_of_its_samples():
    """-log of the mean of the components' likelihoods, weighted for each sample by itself."""
    xs, ys = two_populations(4)
    labels = [(y > np.median(y)).astype(int) for y in ys]
    data = problem_of(xs, labels, "classification", model="linear")
    options = {"n_gaussians": 2, "n_components": 2, **EXACT}
    run = Run("fedgmm", data, local={"lr": 0.5}, seed=1, **options).go(5)
    served = run.algorithm.deploy(run.state, run.clients, Draws(0, 5))
    hits, together = [], []
    for i, (x, y) in enumerate(data.samples):
        weights = served.gate(i, torch.from_numpy(x)).numpy()
        theta = run.state.components.numpy()
        z = theta[:, :2] @ x.T + theta[:, 2:]
        p = (weights / (1 + np.exp(-z))).sum(0)
        hits.extend((p > 0.5) == y)
        together.extend(-np.log(np.where(y, p, 1 - p)))
    assert run.metrics["train_accuracy"] == pytest.approx(np.mean(hits), abs=1e-12)
    assert run.metrics["train_loss"] == pytest.approx(np.mean(together), rel=1e-9)


@pytest.mark.parametrize(("dimension", "width"), [(64, 64), (300, 300)])
def test_wide_inputs_are_projected_and_narrow_ones_are_not(dimension, width):
    draw = np.random.default_rng(0)
    xs, ys = [draw.normal(size=(400, 6, 50))], [draw.normal(size=400)]
    data = problem_of(xs, ys, model={"name": "mlp", "hidden": [2]})
    how = {"n_gaussians": 1, "covariance": "diagonal", "gmm_dimension": dimension}
    first, again, other = (
        Run("fedgmm", data, seed=seed, **how).go().state.statistics[0].numpy() for seed in (0, 0, 1)
    )
    assert len(first) == 1 + 2 * width and np.array_equal(first, again)
    assert np.allclose(first, other) == (dimension == 300)
    # Squares of lengths are kept in the mean over directions.
    assert first[1 + width :].mean() / first[0] == pytest.approx(1, abs=0.1)


def test_a_federation_sends_components_and_moments():
    xs, ys = two_populations()
    options = {"local": {"lr": 0.1}, "n_gaussians": 3, "n_components": 2, **EXACT}
    run = Run("fedgmm", problem_of(xs, ys), **options)
    prepared = run.exchange.ledger.up_bits
    assert prepared == 4 * 5 * 64  # a count, two means and two squares
    compressed = Run("fedgmm", problem_of(xs, ys), ("rand_k", {"k": 2}), **options)
    assert compressed.exchange.ledger.up_bits == prepared
    assert compressed.state.statistics.equal(run.state.statistics)
    run.go(3)
    numbers = 2 * 2 + 3 * (1 + 2 + 4)
    assert run.exchange.ledger.up_bits - prepared == run.exchange.ledger.down_bits
    assert run.exchange.ledger.down_bits == 3 * 4 * numbers * 64


def test_a_loaded_client_predicts_as_it_was_scored(tmp_path):
    result = mpifed.run(
        "synthetic-fedem",
        output=tmp_path / "run",
        clients=6,
        rounds=6,
        quiet=True,
        algorithm={"name": "fedgmm", "n_gaussians": 2, "gmm_dimension": 4, "unseen_e_steps": 3},
        **{
            "data.n_test": 50,
            "data.dimension": 6,
            "evaluation.unseen_fraction": 0.2,
            "evaluation.unseen_shares": [0.0, 0.5],
        },
    )
    assert result.clients["joint_mixture"].shape == (6, 2, 3)
    assert result.clients["mixture"].sum(1) == pytest.approx(1, abs=1e-6)
    grown = result.clients["test_accuracy_by_share"][result.clients["unseen"].astype(bool)]
    assert grown.shape[1] == 2 and np.isfinite(grown).all()
    trained = mpifed.load(tmp_path / "run")
    for client in range(6):
        test = trained.samples(client).test
        found = trained.client(client)(test.x)[:, 0] > 0
        accuracy = float((found == test.y).double().mean())
        assert accuracy == pytest.approx(result.clients["test_accuracy"][client], abs=1e-12)


def test_an_unseen_clients_mixture_converges_where_steps_are_not_counted():
    """The limit is a fixed point of the E-step, and the one of many steps."""
    data, run = problem_of(*two_populations()), {"local": {"lr": 0.1}, "n_components": 2, **EXACT}
    made = Run("fedgmm", data, n_gaussians=2, unseen_e_steps=None, **run).go(5)
    counted = Run("fedgmm", data, n_gaussians=2, unseen_e_steps=1000, **run).go(5)
    few = Run("fedgmm", data, n_gaussians=2, **run).go(5)
    limit, many, one = (
        each.algorithm.adapt(each.state, each.clients, each.exchange, Draws(0, 5))
        .results["joint_mixture"]
        .numpy()
        for each in (made, counted, few)
    )
    assert limit == pytest.approx(many, abs=1e-4)
    assert np.abs(one - many).max() > 0.01


def test_a_client_without_samples_has_a_uniform_mixture():
    run = Run("fedgmm", problem_of(*two_populations()), n_gaussians=2, n_components=2, **EXACT)
    train = run.clients.shards.train
    empty = Split(train.x[:0], train.y[:0], 0 * train.offsets)
    shards = replace(run.clients.shards, train=empty)
    without = Clients(run.clients.federation, shards, run.clients.rows)
    made = run.algorithm.adapt(run.state, without, run.exchange, Draws(0, 1))
    assert (made.results["joint_mixture"] == 0.25).all()
