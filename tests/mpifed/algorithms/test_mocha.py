"""MOCHA: support vector machines alone and together, its duality gap, and a program in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from old_convex import Run, clients_of
from sklearn.svm import LinearSVC

from mpifed.algorithms.personal.mocha import Mocha, ascend, relations
from mpifed.federation.clients import Draws, participants
from mpifed.models.linear import Linear, linear
from mpifed.random import shuffles

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
    return xs, ys, clients_of(xs, ys, "classification", **how)


def machine(x, y, strength):
    """The minimiser of mean hinge + (strength / 2) |w|^2, by another package."""
    found = LinearSVC(
        loss="hinge", C=1 / (strength * len(y)), fit_intercept=False, tol=1e-11, max_iter=1000000
    )
    return found.fit(x, y).coef_[0]


def test_one_client_is_a_support_vector_machine():
    xs, ys, data = labelled(sizes=(14,))
    run = Run(Mocha, data, mocha_lambda=0.3, sdca_fraction=1.0).go(100)
    assert run.deployed()[0] == pytest.approx(machine(xs[0], ys[0], 0.3), abs=1e-6)
    assert 0 <= run.measured()["gap"] + 1e-12 < 1e-9


def test_clients_without_relations_are_machines_of_their_own():
    """Sigma = I / T makes Omega = T I: each has the regulariser lambda T."""
    xs, ys, data = labelled()
    run = Run(Mocha, data, mocha_lambda=0.1, sdca_fraction=1.0, sigma_every=None).go(120)
    for w, x, y in zip(run.deployed(), xs, ys, strict=True):
        assert w == pytest.approx(machine(x, y, 0.1 * len(SIZES)), abs=1e-6)
    assert run.measured()["gap"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_primal_falls_to_the_dual_and_the_models_are_those_of_the_duals(task):
    xs, ys, data = labelled()
    if task == "regression":
        data = clients_of(xs, [2.5 * y - x[:, 0] for x, y in zip(xs, ys, strict=True)])
    run = Run(Mocha, data, mocha_lambda=0.3, sdca_fraction=1.0, sigma_every=90)
    gaps = []
    for rounds in (1, 10, 79, 1, 89):
        run.go(rounds)
        gaps.append(run.measured()["gap"])
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
    run = Run(Mocha, clients_of(xs, ys), mocha_lambda=0.2, sdca_fraction=1.0, sigma_every=60)
    run.go(120)
    w, omega = run.state.models.numpy(), np.linalg.inv(run.state.sigma.numpy())
    slopes = [x.T @ (x @ v - y) / len(y) for x, y, v in zip(xs, ys, w, strict=True)]
    assert np.array(slopes) == pytest.approx(-0.2 * omega @ w, abs=1e-7)


def test_the_published_variant_leaves_the_models_where_they_are():
    _, _, data = labelled()
    options = {"mocha_lambda": 0.1, "sigma_every": 1, "sdca_fraction": 0.2}
    run = Run(Mocha, data, mocha_variant="published", **options).go(1)
    before = run.state
    moved = run.go(1).state
    change = moved.sigma @ (moved.b - before.b) / 0.1
    assert torch.allclose(moved.models, before.models + change, atol=1e-14)
    assert not torch.allclose(moved.models, moved.sigma @ moved.b / 0.1, atol=1e-3)
    assert torch.equal(moved.sigma, relations(before.models))


def test_relations_are_the_root_of_the_gram_matrix():
    w = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 5)))
    sigma = relations(w)
    squared, gram = sigma @ sigma, w @ w.T
    assert torch.allclose(squared / squared.trace(), gram / gram.trace(), atol=1e-12)
    assert float(sigma.trace()) == pytest.approx(1)
    alike = relations(torch.ones(3, 5, dtype=torch.float64))
    assert torch.allclose(alike, torch.full((3, 3), 1 / 3).double(), atol=1e-3)


def test_four_rounds_are_those_of_numpy():
    """Half of the clients take part; Sigma is updated once."""
    sizes, strength = (5, 9, 3, 7), 0.3
    xs, ys, data = labelled(sizes, participation=0.5)
    options = {"mocha_lambda": strength, "sdca_fraction": 0.6, "sigma_every": 2}
    run = Run(Mocha, data, **options)
    signs = [2.0 * y - 1 for y in ys]
    a, sigma = [np.zeros(m) for m in sizes], np.eye(4) / 4
    b, w = np.zeros((4, 3)), np.zeros((4, 3))
    for round in range(1, 5):
        if round == 3:
            values, vectors = np.linalg.eigh(w @ w.T)
            root = vectors @ np.diag(np.sqrt(np.maximum(values, 1e-7))) @ vectors.T
            sigma = root / np.trace(root)
            w = sigma @ b / strength
        rho = max(np.abs(sigma[t]).sum() / sigma[t, t] for t in range(4))
        for t in np.flatnonzero(participants(data[0].federation, 0.5, 0, round)):
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
        assert run.go().deployed() == pytest.approx(w, abs=1e-12)


def test_more_classes_are_one_against_all():
    """Each output of a client is the machine of its label against the others."""
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(10, 3)), np.arange(10) % 3
    (clients, description) = clients_of([x], [y], "classification")
    model = Linear(3, 3, bias=False)
    run = Run(Mocha, (clients, description), model=model, mocha_lambda=0.4, sdca_fraction=1.0)
    found = run.go(100).deployed().reshape(3, 3)
    for label in range(3):
        assert found[label] == pytest.approx(machine(x, y == label, 0.4), abs=1e-6)


def test_a_client_steps_alike_alone_and_beside_others():
    _, _, (clients, description) = labelled()
    model = linear(description)
    draws, run = Draws(0, 1), Run(Mocha, (clients, description), model=model)
    state, place = run.state, torch.arange(3)
    coupling = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)

    def found(rows):
        some = replace(clients, rows=rows.numpy())
        loss, duals = run.method.loss, state.duals[rows]
        return ascend(
            model, loss, duals, state.models[rows] + 0.1, coupling[rows], 0.8, some, draws
        )

    together = found(place)
    for row in place:
        for one, all_three in zip(found(row[None]), together, strict=True):
            assert torch.equal(one[0], all_three[row])


def test_a_late_client_visits_the_first_of_its_samples():
    _, _, (clients, description) = labelled()
    run = Run(Mocha, (clients, description))
    late = replace(clients, effort=np.full(3, 0.5))
    state, coupling = run.state, torch.ones(3, dtype=torch.float64)

    def found(some, fraction):
        tasks = state.duals, state.models, coupling, fraction
        return ascend(run.model, run.method.loss, *tasks, some, Draws(0, 1))

    for of_half, of_late in zip(found(clients, 0.5), found(late, 1.0), strict=True):
        assert torch.equal(of_half, of_late)
    assert not torch.equal(found(clients, 1.0)[0], found(late, 1.0)[0])
