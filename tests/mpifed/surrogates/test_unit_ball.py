"""The map T of dictionaries with atoms in unit balls, against optimality conditions and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls
from sklearn.decomposition import DictionaryLearning, sparse_encode
from sklearn.linear_model import Lasso
from surrogate_problems import PROBLEMS, build, mean_statistic, mm, objective, start

from mpifed.surrogates.dictionary import unit_ball_atoms
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


# Dictionary learning against scipy and scikit-learn.


@pytest.mark.parametrize("name", ["lasso", "printed", "overcomplete", "factors", "nonnegative"])
def test_the_gradient_of_the_objective_is_that_of_the_surrogate(name):
    """The envelope: grad of (28) = factor (theta s1 - s2) + 2 eta theta at s = E S̄(Z, theta)."""
    problem = PROBLEMS[name]
    surrogate = build("dictionary", 8, **problem.options, tolerance=1e-14)
    z, theta = problem.samples(30), start(surrogate, 2)
    s = mean_statistic(surrogate, z, theta)
    k = surrogate.n_atoms
    matrix = theta.view(8, k)
    slope = surrogate.factor * (matrix @ s[: k * k].view(k, k) - s[k * k :].view(8, k))
    expected = (slope + 2 * surrogate.ridge * matrix).flatten()
    step = 1e-5
    for i in range(0, len(theta), 5):
        bump = torch.zeros_like(theta)
        bump[i] = step
        ahead, behind = (objective(surrogate, z, theta + sign * bump) for sign in (1, -1))
        assert (ahead - behind) / (2 * step) == pytest.approx(float(expected[i]), abs=2e-6)


def least(objective, z, size, positive):
    """The minimum over h (or over h = u - v with u, v >= 0) by a quasi-Newton method."""
    bounds = [(0, None)] * size if positive else None
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 100_000}
    begin = np.zeros(size)
    return minimize(objective, begin, (z,), "L-BFGS-B", bounds=bounds, options=options).fun


@pytest.mark.parametrize("name", ["factors", "lasso", "printed", "nonnegative"])
def test_losses_are_the_minimum_over_codes(name):
    surrogate, z = PROBLEMS[name].make(), PROBLEMS[name].samples(6)
    theta = start(surrogate, 1)
    matrix, factor = theta.view(8, 6).numpy(), surrogate.factor
    split = np.hstack([matrix, -matrix])

    def ridge(h, row):
        return 0.5 * np.sum((row - matrix @ h) ** 2) + 0.05 * h @ h

    def lasso(uv, row):
        return 0.5 * factor * np.sum((row - split @ uv) ** 2) + 0.1 * uv.sum()

    def nonnegative(h, row):
        return 0.5 * np.sum((row - matrix @ h) ** 2) + 0.1 * h.sum()

    objective_of, size = {
        "factors": (ridge, 6),
        "nonnegative": (nonnegative, 6),
        "lasso": (lasso, 12),
        "printed": (lasso, 12),
    }[name]
    for row, loss in zip(z.numpy(), surrogate.losses(z, theta).tolist(), strict=True):
        assert loss == pytest.approx(least(objective_of, row, size, name != "factors"), rel=1e-6)


def test_the_printed_factor_two_is_another_objective():
    half, printed = PROBLEMS["lasso"].make(), PROBLEMS["printed"].make()
    s = mean_statistic(half, PROBLEMS["lasso"].samples(50), start(half, 0))
    k, eta = 6, 0.2
    s1, s2 = s[: k * k].view(k, k), s[k * k :].view(8, k)
    for surrogate, shift in ((half, 2 * eta), (printed, eta)):
        expected = s2 @ torch.linalg.inv(s1 + shift * torch.eye(k, dtype=torch.float64))
        assert torch.allclose(surrogate.minimiser(s), expected.flatten(), atol=1e-10)
    assert float((half.minimiser(s) - printed.minimiser(s)).abs().max()) > 1e-3


def test_unit_ball_dictionaries_are_as_good_as_scikit_learns():
    z = PROBLEMS["balls"].samples(100)
    surrogate = build("dictionary", 8, n_atoms=6, atoms="unit_ball", code_penalty=0.3)
    theta = start(surrogate, 0)
    ours = objective(surrogate, z, mm(surrogate, z, theta, 40)[-1])
    begin = theta.view(8, 6).T.numpy()
    model = DictionaryLearning(
        6,
        alpha=0.3,
        max_iter=40,
        tol=1e-12,
        fit_algorithm="cd",
        transform_algorithm="lasso_cd",
        dict_init=begin,
        code_init=np.zeros((100, 6)),
        random_state=0,
    ).fit(z.numpy())
    theirs = torch.from_numpy(model.components_.T.copy()).flatten()
    theirs = objective(surrogate, z, theirs / theirs.view(8, 6).norm(dim=0).max().clamp(min=1))
    assert ours <= 1.03 * theirs


# Lasso codes: KKT conditions, duality gaps, scikit-learn, and each sample by itself.


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
