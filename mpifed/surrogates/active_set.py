"""Exact steps for the lasso: the minimum on the face of given signs, for many samples.

On the face where the signs are s (0: not in the support), the lasso is a linear system in the
support's rows and columns of the Gram matrix. Where more than half of the atoms are in use, the
complement is solved for instead, in the inverse of the Gram matrix, so that the systems stay small.
Samples are columns, see ``lasso_problem``.

``block_pivots`` starts with all atoms in use, by the signs of the least-squares codes, exchanging
whatever the minimum on the face shows to be on the wrong side: block principal pivoting (Judice and
Pires 1994; Kim and Park 2011). A few exchanges suffice for most dictionaries, but no bound is
known.

``refine`` improves given codes. A singular Gram matrix is damped around them; a step along its
null space then ends where the first atom leaves, like a pivot. It never increases a sample's
objective; with proximal gradient steps between, this is feature-sign search (Lee et al. 2007).
"""

from __future__ import annotations

import numpy as np
import torch

from mpifed.surrogates.lasso_problem import (
    Quadratic,
    Samples,
    filled,
    objectives,
    product,
)

MOST_EXCHANGES = 12
"""Block pivots of a sample, at most."""
PATIENCE = 3
"""Block pivots in a row that need not leave fewer numbers on the wrong side than ever before."""
MOST_UNUSED = 24
"""Atoms that a sample may leave unused for a pivot; with more, gradient steps are cheaper."""
SMALLEST = 4
"""Systems up to this size are solved together, then those up to twice this size, and so on."""
ELIMINATED = 8
"""Up to this size they are solved side by side, larger ones by LAPACK one after the other."""


def block_pivots(problem: Quadratic, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Return codes by block pivots, and which samples are not finished.

    The Gram matrix must have an inverse.

    Parameters
    ----------
    problem : Quadratic
        The lasso.
    samples : Samples
        The samples.

    Returns
    -------
    tuple of ndarray
        Codes (samples, K), the last attempt where not finished, and a bool for each sample.
    """
    assert problem.inverse is not None
    atoms, count = samples.c.shape
    found, unfinished = np.zeros((count, atoms)), np.ones(count, bool)
    signs = np.copysign(1.0, product(problem.inverse, samples.c))
    if problem.nonnegative:
        np.maximum(signs, 0, out=signs)
    owner, fewest = np.arange(count), np.full(count, atoms + 1)
    patience, going = np.full(count, PATIENCE), np.ones(count, bool)
    for _ in range(MOST_EXCHANGES):
        used = np.abs(signs).sum(0)
        going &= (used <= ELIMINATED) | (used >= atoms - MOST_UNUSED)
        if not going.all():
            left = samples.where(going)
            if left is None:
                break
            samples, columns = left
            owner, signs = owner.take(columns), signs.take(columns, 1)
            fewest, patience = fewest.take(columns), patience.take(columns)
        minimum, g = face_minimum(problem, signs, samples.c)
        h, leaving = _clipped(minimum, signs)
        done = samples.reached(problem, h, samples.c - product(problem.gram, h))
        found[owner] = h.T
        unfinished[owner] = ~done
        entering = (g if problem.nonnegative else np.abs(g)) > problem.l1
        entering &= signs == 0
        wrong = (leaving | entering).sum(0)
        patience = np.where(wrong < fewest, PATIENCE, patience - 1)
        fewest = np.minimum(fewest, wrong)
        going = ~done & (wrong > 0) & (patience > 0)
        signs = signs * ~leaving
        if entering.any():
            signs += np.sign(g) * entering
    return found, unfinished


def refine(problem: Quadratic, samples: Samples, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes no worse than the given ones, and which are good enough.

    The candidates are the minimum on the face with entries of the wrong sign set to zero, and the
    point where the segment from ``h`` to that minimum first changes a sign.

    Parameters
    ----------
    problem : Quadratic
        The lasso.
    samples : Samples
        The samples.
    h : ndarray, shape (K, samples)
        The codes.

    Returns
    -------
    tuple of ndarray
        Codes (K, samples), and a bool for each sample.
    """
    g = samples.c - product(problem.gram, h)
    entering = (g if problem.nonnegative else np.abs(g)) > problem.l1
    signs = np.where(h != 0, np.sign(h), np.where(entering, np.sign(g), 0.0))
    minimum, _ = face_minimum(problem, signs, samples.c, h)
    clipped, wrong = _clipped(minimum, signs)
    clipped_g = samples.c - product(problem.gram, clipped)
    done = samples.reached(problem, clipped, clipped_g)
    if done.all():
        return clipped, done
    reach = np.minimum.reduce(np.where(wrong, h / (h - minimum), 1.0), 0)
    crossed = h + reach * (minimum - h)
    crossed = np.where(wrong & (crossed * signs <= 0), 0.0, crossed)
    best, lowest = h, objectives(h, g, samples.c, problem.l1)
    crossed_g = samples.c - product(problem.gram, crossed)
    for candidate, its_g in ((crossed, crossed_g), (clipped, clipped_g)):
        value = objectives(candidate, its_g, samples.c, problem.l1)
        lower = value < lowest
        best = np.where(lower, candidate, best)
        lowest = np.where(lower, value, lowest)
    return np.where(done, clipped, best), done


def _clipped(minimum: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``minimum`` with entries of the wrong sign set to zero, and where they are."""
    agreeing = minimum * signs
    return np.maximum(agreeing, 0) * signs, agreeing < 0


def face_minimum(
    problem: Quadratic, signs: np.ndarray, c: np.ndarray, around: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return h' with G_AA h'_A = c_A - l1 s_A for each sample's A = {s != 0}, zero elsewhere.

    Where the system is singular although damped, the result is meaningless or not finite.

    Parameters
    ----------
    problem : Quadratic
        The lasso.
    signs : ndarray, shape (K, samples)
        s.
    c : ndarray, shape (K, samples)
        Dᵀ z.
    around : ndarray, shape (K, samples), optional
        The codes around which a singular G is damped.

    Returns
    -------
    tuple of ndarray, shape (K, samples)
        H' and c - G h'.
    """
    gram, inverse, active = problem.gram, problem.inverse, signs != 0
    pull = problem.l1 * signs
    b = c - pull
    if inverse is None:
        assert around is not None
        damped = gram + problem.damping * np.eye(len(gram))
        h = subsystems(damped, active, b + problem.damping * around)
        return h, c - product(gram, h)
    # h' = P (b - nu) with nu zero on A and h' zero off A, so P_II nu_I = (P b)_I for I off A.
    free = product(inverse, b)
    used = active.sum(0)
    if used.min() == len(gram):
        return free, pull
    dense = used > len(gram) // 2
    nu = subsystems(inverse, ~active & dense, free)
    h, g = (free - product(inverse, nu)) * active, pull + nu
    if not dense.all():
        sparse = filled(np.flatnonzero(~dense))
        h[:, sparse] = own = subsystems(gram, active.take(sparse, 1), b.take(sparse, 1))
        g[:, sparse] = c.take(sparse, 1) - product(gram, own)
    return h, g


def subsystems(matrix: np.ndarray, members: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return x with M_JJ x_J = b_J for each sample's J, zero elsewhere.

    Systems are padded with ones on the diagonal: large ones to a power of two, which depends on the
    size of J alone, small ones to the largest, which does not change a bit.

    Parameters
    ----------
    matrix : ndarray, shape (K, K)
        M, symmetric and positive definite.
    members : ndarray of bool, shape (K, samples)
        J.
    b : ndarray, shape (K, samples)
        The right sides.

    Returns
    -------
    ndarray, shape (K, samples)
        The solutions.
    """
    n, samples = b.shape
    counts = members.sum(0)
    most, size = int(counts.max()), SMALLEST
    while size < most:
        size *= 2
    # The atoms of each J, of which atom n is none.
    index = np.full((size, samples), n)
    flat = np.flatnonzero(members.T)
    sample = flat // n
    index[np.arange(len(flat)) - (counts.cumsum() - counts)[sample], sample] = flat - sample * n
    framed = np.zeros((n + 1, n + 1))
    framed[:n, :n] = matrix
    x = np.zeros((n + 1, samples))
    low, high = 0, SMALLEST
    while low < most:
        own = np.flatnonzero((counts > low) & (counts <= high))
        if len(own):
            width = min(high, most) if high <= ELIMINATED else high
            atoms = index[:width].take(own, 1)
            none = atoms == n
            systems = np.empty((width, width + 1, len(own)))
            systems[:, :width] = framed.take((atoms * (n + 1))[:, None] + atoms)
            systems.reshape(-1, len(own))[:: width + 2] += none
            systems[:, width] = b.take(atoms * samples + own, mode="clip")
            systems[:, width][none] = 0
            solve = solve_side_by_side if high <= ELIMINATED else solve_one_by_one
            x[atoms, own] = solve(systems)
        low, high = high, 2 * high
    return x[:n]


def solve_side_by_side(systems: np.ndarray) -> np.ndarray:
    """Return the solutions of definite systems by Gaussian elimination, in parallel over samples.

    Parameters
    ----------
    systems : ndarray, shape (n, n + 1, samples)
        The matrices with the right sides last; overwritten.

    Returns
    -------
    ndarray, shape (n, samples)
        The solutions.
    """
    n, right = len(systems), systems[:, -1]
    for j in range(n):
        row = systems[j, j + 1 :]
        row /= systems[j, j]
        if j + 1 < n:
            systems[j + 1 :, j + 1 :] -= systems[j + 1 :, j, None] * row
    for j in range(n - 1, 0, -1):
        right[:j] -= systems[:j, j] * right[j]
    return right


def solve_one_by_one(systems: np.ndarray) -> np.ndarray:
    """Return the solutions of definite systems by Cholesky factors, NaN where there is none."""
    apart = torch.from_numpy(np.ascontiguousarray(systems.transpose(2, 0, 1)))
    factor, failed = torch.linalg.cholesky_ex(apart[:, :, :-1])
    solution = torch.cholesky_solve(apart[:, :, -1:], factor)[:, :, 0]
    solution[failed > 0] = torch.nan
    return solution.T.numpy()
