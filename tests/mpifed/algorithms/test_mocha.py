"""MOCHA: support vector machines alone and together, its duality gap, and a program in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from convex import Run, problem_of
from sklearn.svm import LinearSVC

from mpifed.dataset import shuffles
from mpifed.method import Draws
from mpifed.testing import run_rounds

SIZES = (6, 9, 4)


def labelled(sizes=SIZES, d=3, seed=0, **how):
    """Related tasks: labels by hyperplanes that are close to each other, with noise."""
    draw = np.random.default_rng(seed)
    common = draw.normal(size=d)
    xs = [draw.normal(size=(m, d)) for m in sizes]
    planes = [common + 0.5 * draw.normal(size=d) for _ in sizes]
    ys = [
        (x @ w + 0.5 * draw.normal(size=len(x)) > 0).astype(int)
        for x, w in zip(xs, planes, strict=True)
    ]
    return xs, ys, problem_of(xs, ys, "classification", **how)


def machine(x, y, strength):
    """The minimiser of mean hinge + (strength / 2) |w|^2, by another package."""
    found = LinearSVC(
        loss="hinge", C=1 / (strength * len(y)), fit_intercept=False, tol=1e-11, max_iter=1000000
    )
    return found.fit(x, y).coef_[0]


def test_one_client_is_a_support_vector_machine():
    xs, ys, data = labelled(sizes=(14,))
    run = Run("mocha", data, mocha_lambda=0.3, sdca_fraction=1.0).go(100)
    assert run.models()[0] == pytest.approx(machine(xs[0], ys[0], 0.3), abs=1e-6)
    assert 0 <= run.metrics["gap"] + 1e-12 < 1e-9


def test_clients_without_relations_are_machines_of_their_own():
    """Sigma = I / T makes Omega = T I: each has the regulariser lambda T."""
    xs, ys, data = labelled()
    run = Run("mocha", data, mocha_lambda=0.1, sdca_fraction=1.0, sigma_every=None).go(120)
    for w, x, y in zip(run.models(), xs, ys, strict=True):
        assert w == pytest.approx(machine(x, y, 0.1 * len(SIZES)), abs=1e-6)
    assert run.metrics["gap"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_primal_falls_to_the_dual_and_the_models_are_those_of_the_duals(task):
    xs, ys, data = labelled()
    if task == "regression":
        data = problem_of(xs, [2.5 * y - x[:, 0] for x, y in zip(xs, ys, strict=True)])
    run = Run("mocha", data, mocha_lambda=0.3, sdca_fraction=1.0, sigma_every=90)
    gaps = []
    for rounds in (1, 10, 79, 1, 89):
        run.go(rounds)
        gaps.append(run.metrics["gap"])
        assert gaps[-1] > -1e-12
        duals, b, sigma, w = (t.numpy() for t in vars(run.state).values())
        of_duals = [duals[t, 0, :m] @ xs[t] / m for t, m in enumerate(SIZES)]
        assert b == pytest.approx(np.array(of_duals), abs=1e-13)
        assert w == pytest.approx(sigma @ b / 0.3, abs=1e-13)
        assert np.trace(sigma) == pytest.approx(1)
    assert gaps[2] < 1e-9 and gaps[4] < 1e-9 < gaps[0]
    assert gaps[3] > 1e-6, "a new Sigma is a new problem"


def test_least_squares_with_relations_is_the_solution_of_its_normal_equations():
    """(1 / m_t) X_t'(X_t w_t - y_t) + lambda sum_t' Omega_tt' w_t' = 0."""
    xs, _, _ = labelled()
    ys = [x @ np.arange(3.0) + t for t, x in enumerate(xs)]
    run = Run("mocha", problem_of(xs, ys), mocha_lambda=0.2, sdca_fraction=1.0, sigma_every=60)
    run.go(120)
    w, omega = run.state.models.numpy(), np.linalg.inv(run.state.sigma.numpy())
    slopes = [x.T @ (x @ v - y) / len(y) for x, y, v in zip(xs, ys, w, strict=True)]
    assert np.array(slopes) == pytest.approx(-0.2 * omega @ w, abs=1e-7)


def test_the_published_variant_leaves_the_models_where_they_are():
    _, _, data = labelled()
    options = {"mocha_lambda": 0.1, "sigma_every": 1, "sdca_fraction": 0.2}
    run = Run("mocha", data, mocha_variant="published", **options).go(1)
    before = run.state
    moved = run.go(1).state
    change = moved.sigma @ (moved.b - before.b) / 0.1
    assert torch.allclose(moved.models, before.models + change, atol=1e-14)
    assert not torch.allclose(moved.models, moved.sigma @ moved.b / 0.1, atol=1e-3)
    assert moved.sigma.numpy() == pytest.approx(relations(before.models.numpy()), abs=1e-12)


def relations(w):
    """The root of the Gram matrix, of trace 1."""
    values, vectors = np.linalg.eigh(w @ w.T)
    root = vectors @ np.diag(np.sqrt(np.maximum(values, 1e-7))) @ vectors.T
    return root / np.trace(root)


def test_relations_of_clients_that_are_alike_are_alike():
    xs, ys, _ = labelled(sizes=(6,))
    data = problem_of(xs * 3, ys * 3, "classification")
    run = Run("mocha", data, mocha_lambda=0.3, sdca_fraction=1.0, sigma_every=1).go()
    run.start_from(models=np.ones((3, 3))).advance()
    assert run.state.sigma.numpy() == pytest.approx(np.full((3, 3), 1 / 3), abs=1e-3)


def test_four_rounds_are_those_of_numpy():
    """Half of the clients take part; Sigma is updated once."""
    sizes, strength = (5, 9, 3, 7), 0.3
    xs, ys, data = labelled(sizes, participation=0.5)
    options = {"mocha_lambda": strength, "sdca_fraction": 0.6, "sigma_every": 2}
    run = Run("mocha", data, **options)
    signs = [2.0 * y - 1 for y in ys]
    a, sigma = [np.zeros(m) for m in sizes], np.eye(4) / 4
    b, w = np.zeros((4, 3)), np.zeros((4, 3))
    for round in range(1, 5):
        if round == 3:
            sigma = relations(w)
            w = sigma @ b / strength
        rho = max(np.abs(sigma[t]).sum() / sigma[t, t] for t in range(4))
        for t in run.participants:
            m, moved = sizes[t], np.zeros(3)
            key = Draws(0, round).client_keys("coordinates", np.array([t]))
            for j in shuffles(key, np.array([m]))[: int(np.ceil(0.6 * m))]:
                x, y = xs[t][j], signs[t][j]
                u = y * (x @ (w[t] + rho * moved))
                best = strength * m * (1 - u) / (sigma[t, t] * rho * x @ x) + y * a[t][j]
                change = y * np.clip(best, 0, 1) - a[t][j]
                a[t][j] += change
                b[t] += change * x / m
                moved += sigma[t, t] * change * x / (strength * m)
        w = sigma @ b / strength
        assert run.go().models() == pytest.approx(w, abs=1e-12)


def test_more_classes_are_one_against_all():
    """Each output of a client is the machine of its label against the others."""
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(10, 3)), np.arange(10) % 3
    data = problem_of([x], [y], "classification")
    run = Run("mocha", data, mocha_lambda=0.4, sdca_fraction=1.0)
    found = run.go(100).models().reshape(3, 3)
    for label in range(3):
        assert found[label] == pytest.approx(machine(x, y == label, 0.4), abs=1e-6)


def test_a_client_steps_alike_alone_and_beside_others():
    """Whether its rank hosts others too."""
    _, _, data = labelled()
    bits = {
        run_rounds(
            {"name": "mocha", "sdca_fraction": 0.8},
            data.samples,
            model=data.model,
            rounds=4,
            ranks=ranks,
        ).digest
        for ranks in (1, 2, 3)
    }
    assert len(bits) == 1


def test_a_late_client_visits_the_first_of_its_samples():
    _, _, data = labelled()

    def after_a_round(fraction, effort):
        run = Run("mocha", data, sdca_fraction=fraction)
        late = replace(run.clients, effort=None if effort == 1 else np.full(3, effort))
        channel = run.exchange.at(1, np.ones(3, bool))
        return run.algorithm.round(run.state, late, channel, Draws(0, 1)).models

    assert torch.equal(after_a_round(0.5, 1), after_a_round(1.0, 0.5))
    assert not torch.equal(after_a_round(1.0, 1), after_a_round(1.0, 0.5))
