"""Projections and proximal maps against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from surrogate_problems import REGULARISERS, build

from mpifed.surrogate import columns_in_unit_ball, positive_semidefinite, simplex

FLOOR = 1e-9
"""The least weight of a component of a mixture."""
SEEDS = st.integers(0, 10_000)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 7), floor=st.sampled_from([0.0, 1e-9, 0.1]))
def test_the_simplex_projection_solves_its_quadratic_programme(seed, n, floor):
    v = np.random.default_rng(seed).standard_normal(n)
    found = simplex(torch.from_numpy(v), floor).numpy()
    assert found.sum() == pytest.approx(1) and found.min() >= floor - 1e-15
    programme = minimize(
        lambda x: ((x - v) ** 2).sum(),
        np.full(n, 1 / n),
        jac=lambda x: 2 * (x - v),
        bounds=[(floor, None)] * n,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert np.allclose(found, programme.x, atol=1e-6)
    assert np.allclose(simplex(torch.from_numpy(found), floor), found, atol=1e-14)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 6))
def test_the_semidefinite_projection_is_nearest(seed, n):
    generator = np.random.default_rng(seed)
    matrix = torch.from_numpy(generator.standard_normal((n, n)))
    found = positive_semidefinite(matrix)
    assert torch.equal(found, found.T)
    assert torch.linalg.eigvalsh(found)[0] >= -1e-12
    assert torch.allclose(positive_semidefinite(found), found, atol=1e-13)
    for scale in (1e-3, 0.1, 1.0):
        for _ in range(10):
            root = torch.from_numpy(generator.standard_normal((n, n)))
            nudge = torch.from_numpy(generator.standard_normal((n, n))) * scale
            for other in (root @ root.T, _clip(found + nudge + nudge.T)):
                assert (matrix - found).norm() <= (matrix - other).norm() + 1e-12


def semidefinite_with_shares(matrices):
    """Moments as the surrogate of a mixture projects them, of which all is learnt."""
    count, n, _ = matrices.shape
    mixture = build("gaussian_mixture", n - 1, components=count, learn="all")
    parts = (matrices[:, -1, :-1], matrices[:, -1, -1], matrices[:, :-1, :-1])
    projected = mixture.project(torch.cat([part.flatten() for part in parts]))
    first, second, third = projected.split([part.numel() for part in parts])
    found = torch.empty_like(matrices)
    found[:, -1, :-1] = found[:, :-1, -1] = first.view(count, n - 1)
    found[:, -1, -1] = second
    found[:, :-1, :-1] = third.view(count, n - 1, n - 1)
    return found


def _clip(symmetric):
    values, vectors = np.linalg.eigh(symmetric.numpy())
    return torch.from_numpy((vectors * np.maximum(values, 0)) @ vectors.T)


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    count=st.integers(1, 4),
    n=st.integers(2, 4),
    shift=st.sampled_from([0.0, 3.0, -3.0]),
)
def test_the_projection_on_moments_is_nearest(seed, count, n, shift):
    """A set of matrices like that which random ones are drawn from is no nearer."""
    generator = np.random.default_rng(seed)
    given = torch.from_numpy(generator.standard_normal((count, n, n)))
    given[:, -1, -1] += shift
    given = (given + given.mT) / 2
    found = semidefinite_with_shares(given)
    assert torch.equal(found, found.mT)
    assert float(torch.linalg.eigvalsh(found).min()) >= -1e-12 * (1 + float(found.abs().max()))
    assert float(found[:, -1, -1].sum()) == pytest.approx(1, abs=1e-12)
    assert float(found[:, -1, -1].min()) >= FLOOR
    assert torch.allclose(semidefinite_with_shares(found), found, atol=1e-11)
    for scale in (1e-3, 0.1, 1.0):
        for _ in range(10):
            other = _moments_near(found, scale, generator)
            # The nearest point of a convex set sees every other at an obtuse angle.
            assert float(((given - found) * (other - found)).sum()) <= 1e-8


def _moments_near(found, scale, generator):
    """Other matrices of the set: semidefinite ones with their last entries set to shares."""
    nudge = torch.from_numpy(generator.standard_normal(found.shape)) * scale
    other = torch.stack([_clip(one) for one in found + nudge + nudge.mT])
    shares = simplex(other[:, -1, -1], FLOOR)
    before = other[:, -1, -1].clamp(min=1e-300)
    factors = torch.ones(other.shape[:2], dtype=torch.float64)
    factors[:, -1] = (shares / before).sqrt()
    # Rows and columns scaled alike stay semidefinite; where nothing was, a share is added.
    scaled = other * factors[:, :, None] * factors[:, None, :]
    scaled[:, -1, -1] = shares
    return scaled


def test_moments_of_samples_keep_all_but_the_rounding_of_their_shares():
    z = np.random.default_rng(0).standard_normal((50, 3))
    z[:, 2] = 1
    gram = torch.from_numpy(z.T @ z / 50)
    moments = torch.stack([0.25 * gram, 0.75 * gram])
    moments = (moments + moments.mT) / 2
    found = semidefinite_with_shares(moments)
    assert torch.equal(found[:, -1, -1], simplex(moments[:, -1, -1], 1e-9))
    found[:, -1, -1] = moments[:, -1, -1]
    assert torch.equal(found, moments)


def test_a_semidefinite_matrix_stays_and_an_asymmetric_one_becomes_its_symmetric_part():
    root = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram = root @ root.T
    gram = (gram + gram.T) / 2
    assert torch.equal(positive_semidefinite(gram), gram)
    skew = torch.triu(root, 1) - torch.triu(root, 1).T
    assert torch.allclose(positive_semidefinite(gram + skew), gram, atol=1e-14)


def test_columns_are_scaled_into_the_ball():
    matrix = torch.tensor([[3.0, 0.1], [4.0, 0.2]], dtype=torch.float64)
    assert torch.allclose(
        columns_in_unit_ball(matrix), torch.tensor([[0.6, 0.1], [0.8, 0.2]]).double()
    )


@pytest.mark.parametrize("name", REGULARISERS)
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, rho=st.floats(0.05, 2))
def test_a_proximal_map_minimises_and_its_preimage_leads_back(name, seed, rho):
    options = {"strength": 0.6, "radius": 0.9, "group_size": 2, "regularisation": name}
    g, near = (build("quadratic", 5, rho=each, **options) for each in (rho, 1e-9))
    generator = np.random.default_rng(seed)
    s = torch.from_numpy(1.5 * generator.standard_normal(4))
    best = g.minimiser(s)

    def value(theta):
        return g.penalty(theta) + float(((theta - s) ** 2).sum()) / (2 * rho)

    for scale in (1e-4, 1e-2, 0.5):
        for _ in range(15):
            step = torch.from_numpy(scale * generator.standard_normal(4))
            for other in (best + step, near.minimiser(best + step), best * (1 - scale)):
                assert value(best) <= value(other) + 1e-12
    assert torch.allclose(g.minimiser(g.surrogate_of(best)), best, atol=1e-12)
