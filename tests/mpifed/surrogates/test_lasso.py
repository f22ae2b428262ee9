"""Lasso codes: KKT conditions, duality gaps, scikit-learn, and each sample by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from sklearn.decomposition import sparse_encode
from sklearn.linear_model import Lasso

from mpifed.surrogates.lasso import (
    Quadratic,
    block_pivots,
    codes,
    describe_samples,
    face_minimum,
    quadratic,
    solve_side_by_side,
    subsystems,
)


def problem(p, n_atoms, samples, seed=0, correlation=0.0):
    """A dictionary (p, K) with atoms that share a direction, and sparse mixes of others."""
    generator = np.random.default_rng(seed)
    dictionary = generator.standard_normal((p, n_atoms))
    dictionary += correlation * generator.standard_normal((p, 1))
    h = generator.standard_normal((samples, n_atoms)) * (generator.random((samples, n_atoms)) < 0.3)
    z = h @ generator.standard_normal((p, n_atoms)).T + 0.1 * generator.standard_normal(
        (samples, p)
    )
    return torch.from_numpy(dictionary), torch.from_numpy(z)


def relative_gap(dictionary, z, h, l1, nonnegative=False):
    """The duality gap of each sample over 1/2 ||z||^2, in numpy and from its definition."""
    dictionary, z, h = dictionary.numpy(), z.numpy(), h.numpy()
    residual = z - h @ dictionary.T
    slopes = residual @ dictionary
    steepest = (slopes if nonnegative else np.abs(slopes)).max(1)
    dual = residual * np.minimum(1, l1 / np.maximum(steepest, 1e-300))[:, None]
    primal = 0.5 * (residual**2).sum(1) + l1 * np.abs(h).sum(1)
    energy = 0.5 * (z**2).sum(1)
    return (primal - energy + 0.5 * ((z - dual) ** 2).sum(1)) / np.maximum(energy, 1e-300)


SHAPES = [
    *((20, 15, 0.0), (8, 15, 0.0), (30, 12, 3.0), (60, 40, 1.0), (5, 1, 0.0), (20, 30, 0.5)),
    *((52, 50, 0.0), (200, 50, 0.0)),
]


@pytest.mark.parametrize(("p", "n_atoms", "correlation"), SHAPES)
@pytest.mark.parametrize("l1", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_gaps_and_kkt_conditions_hold(p, n_atoms, correlation, l1, nonnegative):
    dictionary, z = problem(p, n_atoms, 70, correlation=correlation)
    z[3] = 0
    h = codes(dictionary, z, l1, nonnegative=nonnegative)
    assert h.shape == (70, n_atoms) and torch.equal(h[3], torch.zeros(n_atoms).double())
    assert relative_gap(dictionary, z, h, l1, nonnegative).max() <= 1.01e-8
    h = codes(dictionary, z, l1, 1e-12, nonnegative=nonnegative)
    slopes = (z - h @ dictionary.T) @ dictionary
    scale = 1e-5 * (1 + float(dictionary.abs().max()))
    assert (slopes if nonnegative else slopes.abs()).max() <= l1 + scale
    used = h != 0
    assert torch.allclose(slopes[used], l1 * h.sign()[used], atol=scale)
    assert not nonnegative or (h >= 0).all()


@pytest.mark.parametrize(("l1", "share"), [(0.01, 0.0), (0.1, 0.6), (1.0, 0.9)])
def test_what_pivots_leave_unfinished_is_finished_all_the_same(l1, share):
    """Nearly as many atoms as dimensions: the condition number is 10^4."""
    dictionary, z = problem(52, 50, 150)
    samples = describe_samples(dictionary, z, 1e-8)
    h, unfinished = block_pivots(quadratic(dictionary, l1, False), samples)
    done = torch.from_numpy(~unfinished[:150])
    assert float((~done).double().mean()) == pytest.approx(share, abs=0.2)
    found = codes(dictionary, z, l1)
    assert torch.equal(found[done], torch.from_numpy(h[:150])[done])
    assert relative_gap(dictionary, z, found, l1).max() <= 1.01e-8


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8])
def test_padding_of_small_systems_does_not_change_a_bit(size):
    generator = np.random.default_rng(size)
    square = generator.standard_normal((size, size + 3, 40))
    systems = np.zeros((8, 9, 40))
    systems[range(8), range(8)] = 1
    systems[:size, :size] = np.einsum("ikn,jkn->ijn", square, square)
    systems[:size, 8] = generator.standard_normal((size, 40))
    bare = np.delete(systems[:size], range(size, 8), 1)
    expected = np.linalg.solve(bare[:, :-1].transpose(2, 0, 1), bare[:, -1].T[:, :, None])
    alone = solve_side_by_side(bare[:, :, 7:8].copy())
    found = solve_side_by_side(bare)
    assert np.allclose(found.T, expected[:, :, 0], rtol=1e-8)
    assert np.array_equal(found[:, 7:8], alone)
    assert np.array_equal(solve_side_by_side(systems)[:size], found)


def test_codes_are_those_of_scikit_learn():
    dictionary, z = problem(30, 20, 60, seed=3)
    h = codes(dictionary, z, 0.4, 1e-14)
    lars = sparse_encode(z.numpy(), dictionary.T.numpy(), algorithm="lasso_lars", alpha=0.4)
    assert np.allclose(h, lars, atol=1e-10)
    model = Lasso(alpha=0.4 / 30, fit_intercept=False, tol=1e-14, max_iter=100_000)
    for i in range(5):
        assert np.allclose(h[i], model.fit(dictionary.numpy(), z[i].numpy()).coef_, atol=1e-9)


def test_nonnegative_codes_are_those_of_nnls():
    """1/2 ||z - D h||^2 + l1 sum h is a least-squares problem if D has full column rank."""
    dictionary, z = problem(30, 12, 20, seed=4)
    h = codes(dictionary, z, 0.7, 1e-14, nonnegative=True)
    factor = np.linalg.cholesky((dictionary.T @ dictionary).numpy())
    for i in range(20):
        right = np.linalg.solve(factor, (dictionary.T @ z[i]).numpy() - 0.7)
        assert np.allclose(h[i], nnls(factor.T, right)[0], atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 1000),
    rows=st.lists(st.integers(0, 149), min_size=1, max_size=80),
)
def test_a_samples_code_does_not_depend_on_the_others(shape, seed, rows):
    p, n_atoms, correlation = shape
    dictionary, z = problem(p, n_atoms, 150, seed, correlation)
    together = codes(dictionary, z, 0.2)
    assert torch.equal(codes(dictionary, z[rows], 0.2), together[rows])


@pytest.mark.parametrize("count", [1, 8, 24, 32, 100, 500])
def test_a_samples_code_does_not_depend_on_its_place(count):
    """Also in the columns that are left over where a kernel computes 8 or 12 at a time."""
    dictionary, z = problem(10, 15, 3, seed=1)
    alone = codes(dictionary, z[:1], 0.1)
    assert torch.equal(codes(dictionary, z[:1].repeat(count, 1), 0.1), alone.repeat(count, 1))


@settings(max_examples=40, deadline=None)
@given(
    n_atoms=st.integers(1, 40),
    rows=st.integers(1, 12),
    density=st.floats(0, 1),
    seed=st.integers(0, 1000),
    full=st.booleans(),
)
def test_the_minimum_on_a_face_solves_its_system(n_atoms, rows, density, seed, full):
    generator = np.random.default_rng(seed)
    square = generator.standard_normal((n_atoms + 5, n_atoms))
    gram = square.T @ square
    active = generator.random((rows, n_atoms)) < density
    b = generator.standard_normal((rows, n_atoms))
    expected = np.zeros((rows, n_atoms))
    for i, own in enumerate(active):
        expected[i, own] = np.linalg.solve(gram[np.ix_(own, own)], b[i, own])
    columns = [np.ascontiguousarray(part.T) for part in (active, b)]
    found = subsystems(gram, *columns)
    if full:
        signs = np.where(columns[0], np.sign(columns[1]), 0.0)
        problem = Quadratic(gram, np.linalg.inv(gram), 0.0, 0.5, False)
        c = columns[1] + 0.5 * signs
        found, g = face_minimum(problem, signs, c)
        assert np.allclose(g, c - gram @ found, rtol=1e-6, atol=1e-7)
    found = found.T
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_a_dictionary_of_zeros_and_no_samples_have_codes():
    z = torch.ones(5, 4, dtype=torch.float64)
    assert not codes(torch.zeros(4, 3, dtype=torch.float64), z, 0.1).any()
    assert codes(torch.ones(4, 3, dtype=torch.float64), z[:0], 0.1).shape == (0, 3)
    twins = torch.ones(4, 2, dtype=torch.float64)
    assert codes(twins, z, 0.1).sum(1).tolist() == pytest.approx([1 - 0.1 / 4] * 5)
