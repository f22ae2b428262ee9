"""The map T of dictionaries with atoms in unit balls, against optimality conditions and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from mpifed.surrogates.dictionary import unit_ball_atoms


def atoms_of(s1, s2):
    """The atoms in numpy, (p, K)."""
    return unit_ball_atoms(torch.from_numpy(s1), torch.from_numpy(s2)).numpy()


def value(theta, s1, s2):
    return 0.5 * np.sum(theta @ s1 * theta) - np.sum(theta * s2)


def gap(theta, s1, s2):
    """f(theta) - min f at most: the largest decrease of the linearisation over the balls."""
    slope = theta @ s1 - s2
    return np.sum(slope * theta) + np.linalg.norm(slope, axis=0).sum()


def statistics(seed, samples, n_atoms, p, noise=0.1):
    """s of codes and samples that fit; s1 is singular where ``samples`` are fewer than atoms."""
    draw = np.random.default_rng(seed)
    h = draw.normal(size=(samples, n_atoms)) * (draw.random((samples, n_atoms)) < 0.4)
    z = h @ draw.normal(size=(n_atoms, p)) + noise * draw.normal(size=(samples, p))
    return h.T @ h / samples, z.T @ h / samples


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    samples=st.integers(1, 40),
    n_atoms=st.integers(1, 16),
    p=st.integers(1, 8),
)
@example(seed=1, samples=9, n_atoms=14, p=1)
@example(seed=8, samples=9, n_atoms=14, p=1)
@example(seed=16, samples=9, n_atoms=14, p=1)
@example(seed=20, samples=9, n_atoms=14, p=1)
@example(seed=43, samples=9, n_atoms=14, p=1)
@example(seed=66, samples=9, n_atoms=14, p=1)
@example(seed=135, samples=9, n_atoms=14, p=1)
@example(seed=75, samples=5, n_atoms=12, p=2)
@example(seed=131, samples=5, n_atoms=12, p=2)
@example(seed=4, samples=20, n_atoms=60, p=2)
def test_no_dictionary_is_better(seed, samples, n_atoms, p):
    s1, s2 = statistics(seed, samples, n_atoms, p)
    theta = atoms_of(s1, s2)
    assert (np.linalg.norm(theta, axis=0) <= 1 + 1e-14).all()
    assert gap(theta, s1, s2) <= 1e-11 * (np.linalg.norm(s2, axis=0).sum() + 1e-300)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    samples=st.integers(1, 20),
    n_atoms=st.integers(1, 16),
    p=st.integers(1, 5),
)
@example(seed=0, samples=11, n_atoms=11, p=2)
def test_no_dictionary_is_better_where_all_norms_are_1_and_all_multipliers_0(
    seed, samples, n_atoms, p
):
    """Samples without noise of a dictionary on the spheres: it fits, and attains the minimum."""
    draw = np.random.default_rng(seed)
    h, truth = draw.normal(size=(samples, n_atoms)), draw.normal(size=(p, n_atoms))
    truth /= np.linalg.norm(truth, axis=0)
    s1 = h.T @ h / samples
    s2 = truth @ s1
    theta = atoms_of(s1, s2)
    assert (np.linalg.norm(theta, axis=0) <= 1 + 1e-14).all()
    assert gap(theta, s1, s2) <= 1e-10 * np.linalg.norm(s2, axis=0).sum()
    assert value(theta, s1, s2) == pytest.approx(value(truth, s1, s2), rel=1e-10)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), samples=st.integers(1, 20), n_atoms=st.integers(1, 16))
@example(seed=5, samples=9, n_atoms=14)
@example(seed=53, samples=9, n_atoms=14)
def test_no_dictionary_is_better_where_codes_differ_in_size(seed, samples, n_atoms):
    s1, s2 = statistics(seed, samples, n_atoms, 3)
    size = 10.0 ** np.random.default_rng(seed).uniform(-6, 6, n_atoms)
    s1, s2 = s1 * np.outer(size, size), s2 * size
    assert gap(atoms_of(s1, s2), s1, s2) <= 1e-9 * (np.linalg.norm(s2, axis=0).sum() + 1e-300)


@pytest.mark.parametrize("case", [(1, 9, 14, 1), (0, 30, 14, 3)])
@pytest.mark.parametrize("power", [-500, -400, 400, 500])
def test_a_common_factor_of_the_statistics_does_not_matter(power, case):
    """argmin f = argmin c f; powers of 4 change no bit, and squares of these are not numbers."""
    s1, s2 = statistics(*case)
    assert np.array_equal(atoms_of(s1 * 4.0**power, s2 * 4.0**power), atoms_of(s1, s2))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), n_atoms=st.integers(1, 10), p=st.integers(1, 8))
def test_atoms_and_multipliers_satisfy_the_kkt_conditions(seed, n_atoms, p):
    """theta s1 - s2 = -theta diag(nu), nu >= 0, and nu_k = 0 inside of the ball."""
    draw = np.random.default_rng(seed)
    s1 = statistics(seed, 3 * n_atoms, n_atoms, p)[0] + 0.01 * np.eye(n_atoms)
    s2 = 1.5 * draw.normal(size=(p, n_atoms))
    theta = atoms_of(s1, s2)
    slope, norms = theta @ s1 - s2, np.linalg.norm(theta, axis=0)
    nu = -(theta * slope).sum(0)
    assert slope == pytest.approx(-theta * nu, abs=1e-11)
    assert (nu >= -1e-11).all()
    assert (np.abs(nu[norms < 1 - 1e-9]) <= 1e-11).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("samples", "n_atoms"), [(20, 3), (20, 4), (2, 3)])
def test_as_good_as_a_general_solver(seed, samples, n_atoms):
    s1, s2 = statistics(seed, samples, n_atoms, 3)
    balls = {
        "type": "ineq",
        "fun": lambda x: 1 - (x.reshape(3, -1) ** 2).sum(0),
        "jac": lambda x: np.concatenate([-2 * np.diag(row) for row in x.reshape(3, -1)], 1),
    }
    found = minimize(
        lambda x: value(x.reshape(3, -1), s1, s2),
        np.zeros(3 * n_atoms),
        jac=lambda x: (x.reshape(3, -1) @ s1 - s2).ravel(),
        method="SLSQP",
        constraints=[balls],
        options={"ftol": 1e-15, "maxiter": 500},
    )
    theta = atoms_of(s1, s2)
    assert value(theta, s1, s2) == pytest.approx(found.fun, abs=1e-8)
    if samples > n_atoms:
        assert theta.ravel() == pytest.approx(found.x, abs=1e-4)


@pytest.mark.parametrize(
    ("s1", "s2", "expected"),
    [
        ([[2.0]], [[1.0]], [[0.5]]),  # inside
        ([[2.0]], [[-5.0]], [[-1.0]]),  # cut
        ([[0.0]], [[1e-3]], [[1.0]]),  # linear
        ([[0.0]], [[0.0]], [[0.0]]),  # anything is a minimiser: the least
        ([[1.0, 0.0], [0.0, 0.0]], [[0.5, 0.0], [0.0, 0.0]], [[0.5, 0.0], [0.0, 0.0]]),
        ([[1.0, 1.0], [1.0, 1.0]], [[0.6, 0.6]], [[0.3, 0.3]]),  # atoms used together share
        ([[1.0, 1.0], [1.0, 1.0]], [[5.0, 5.0]], [[1.0, 1.0]]),
        ([[4.0, 0.0], [0.0, 1.0]], [[3.0, 3.0], [4.0, 4.0]], [[0.6, 0.6], [0.8, 0.8]]),
    ],
)
def test_closed_forms(s1, s2, expected):
    singular = np.linalg.det(s1) == 0
    near = pytest.approx(np.array(expected), abs=1e-5 if singular else 1e-14)
    assert atoms_of(np.array(s1), np.array(s2)) == near


def test_where_statistics_are_nearly_singular_it_is_as_good_as_descent_over_the_atoms():
    """Online dictionary learning: the first statistics are of fewer samples than atoms."""
    draw = np.random.default_rng(0)
    s1, s2 = np.zeros((6, 6)), np.zeros((5, 6))
    for t in range(1, 13):
        h = draw.normal(size=6) * (draw.random(6) < 0.5)
        z = 2 * draw.normal(size=5)
        s1, s2 = s1 + (np.outer(h, h) - s1) / t, s2 + (np.outer(z, h) - s2) / t
        best = np.zeros((5, 6))
        for _ in range(3000):
            for k in np.flatnonzero(s1.diagonal() > 0):
                moved = best[:, k] + (s2[:, k] - best @ s1[:, k]) / s1[k, k]
                best[:, k] = moved / max(1, np.linalg.norm(moved))
        theta = atoms_of(s1, s2)
        assert value(theta, s1, s2) <= value(best, s1, s2) + 1e-12 * (1 + abs(value(best, s1, s2)))


def test_it_is_a_function_of_the_statistics_alone():
    s1, s2 = statistics(3, 5, 9, 7)
    first = atoms_of(s1, s2)
    atoms_of(*statistics(4, 50, 9, 7))
    buffer = np.zeros(9 * 9 + 7 * 9 + 3)
    for shift in range(4):
        inner = buffer[shift : shift + 81].reshape(9, 9)
        inner[:] = s1
        outer = np.empty(63 + shift)[shift:].reshape(7, 9)
        outer[:] = s2
        assert np.array_equal(atoms_of(inner, outer), first)
