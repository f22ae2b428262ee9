"""The lasso of many samples in terms of the Gram matrix, with objective and duality gap.

A sample is a column: arrays are (K, samples), so that an operation on all samples runs along long
rows, and a sum over atoms adds rows. Numpy's elementwise operations and its sums over the first
axis round a column independently of the other columns; products go through torch, whose MKL does so
too (``mpifed/__init__.py``) for a number of columns that is a multiple of ``COLUMNS``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import RunError
from mpifed.local.invariance import COLUMNS

RANK_TOLERANCE = 1e-10
"""A Gram matrix is singular where it and its inverse have norms with a larger inverse product."""
DAMPING = 1e-7
"""What exact steps add to a singular Gram matrix, relative to its largest eigenvalue."""


@dataclass(frozen=True)
class Quadratic:
    """The problem 1/2 hᵀ G h - cᵀ h + l1 ||h||_1, and h >= 0 if ``nonnegative``, for many c.

    Attributes
    ----------
    gram : ndarray, shape (K, K)
        G.
    inverse : ndarray, shape (K, K), or None
        G^-1; None where G is singular to rounding.
    damping : float
        What exact steps add to the diagonal of a singular G, otherwise 0.
    l1 : float
        The penalty.
    nonnegative : bool
        Whether codes must be non-negative.
    """

    gram: np.ndarray
    inverse: np.ndarray | None
    damping: float
    l1: float
    nonnegative: bool


def quadratic(dictionary: Tensor, l1: float, nonnegative: bool) -> Quadratic:
    """Return the problem of a dictionary.

    Parameters
    ----------
    dictionary : Tensor of float64, shape (p, K)
        The atoms as columns.
    l1 : float
        The penalty.
    nonnegative : bool
        Whether codes must be non-negative.

    Returns
    -------
    Quadratic
        The problem.

    Raises
    ------
    RunError
        If the dictionary is not finite or too large.
    """
    gram = dictionary.T @ dictionary
    norm = float(torch.linalg.vector_norm(gram))
    if not np.isfinite(norm):
        raise RunError("the dictionary has a value that is not finite or too large: it diverged")
    inverse = None
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not int(failed):
        inverse = torch.cholesky_inverse(factor)
        if not norm * float(torch.linalg.vector_norm(inverse)) * RANK_TOLERANCE < 1:
            inverse = None
    if inverse is not None:
        return Quadratic(gram.numpy(), inverse.numpy(), 0.0, l1, nonnegative)
    damping = DAMPING * float(torch.linalg.eigvalsh(gram)[-1])
    return Quadratic(gram.numpy(), None, damping, l1, nonnegative)


@dataclass(frozen=True)
class Samples:
    """Unfinished samples, filled up to a multiple of ``COLUMNS``; the first ``count`` are real.

    Attributes
    ----------
    count : int
        The number of real samples.
    owner : ndarray of int64, shape (samples,)
        Their numbers in the input.
    c : ndarray, shape (K, samples)
        Dᵀ z.
    energy : ndarray, shape (samples,)
        ||z||^2.
    limit : ndarray, shape (samples,)
        The duality gap to reach.
    """

    count: int
    owner: np.ndarray
    c: np.ndarray
    energy: np.ndarray
    limit: np.ndarray

    def reached(self, problem: Quadratic, h: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Return which codes ``h`` are good enough, bool (samples,), for g = c - G h."""
        return duality_gaps(problem, h, g, self.c, self.energy) <= self.limit

    def part(self, columns: slice) -> Samples:
        """Return some of the samples, a multiple of ``COLUMNS``, of which some may not be real."""
        count = min(self.count, columns.stop) - columns.start
        c = np.ascontiguousarray(self.c[:, columns])
        parts = (part[columns] for part in (self.energy, self.limit))
        return Samples(count, self.owner[columns], c, *parts)

    def where(self, unfinished: np.ndarray) -> tuple[Samples, np.ndarray] | None:
        """Return the real samples for which ``unfinished``, bool (samples,), is true.

        Columns are filled up with the first of them.

        Parameters
        ----------
        unfinished : ndarray of bool, shape (samples,)
            Which samples to keep.

        Returns
        -------
        tuple or None
            The samples and their columns here, int64; None if there are none.
        """
        columns = np.flatnonzero(unfinished[: self.count])
        count = len(columns)
        if not count:
            return None
        columns = filled(columns)
        c = self.c.take(columns, 1)
        parts = (part.take(columns) for part in (self.energy, self.limit))
        return Samples(count, self.owner.take(columns), c, *parts), columns


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the matrix product a b."""
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()


def over_atoms(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return sum_k a_k b_k of each column, (samples,)."""
    return np.add.reduce(a * b, 0)


def steepest(problem: Quadratic, g: np.ndarray) -> np.ndarray:
    """Return the largest slope of each column of g: max |g_k|, or max g_k if nonnegative."""
    highest = np.maximum.reduce(g, 0)
    return highest if problem.nonnegative else np.maximum(highest, -np.minimum.reduce(g, 0))


def duality_gaps(
    problem: Quadratic, h: np.ndarray, g: np.ndarray, c: np.ndarray, energy: np.ndarray
) -> np.ndarray:
    """Return the objective minus the dual value at the scaled residual.

    The dual point is a r with the largest feasible a <= 1. In the form
    1/2 (1 - a)^2 ||r||^2 + l1 ||h||_1 - a hᵀ g nothing cancels.

    Parameters
    ----------
    problem : Quadratic
        The lasso.
    h : ndarray, shape (K, samples)
        The codes.
    g : ndarray, shape (K, samples)
        c - G h = Dᵀ r, for the residual r.
    c : ndarray, shape (K, samples)
        Dᵀ z.
    energy : ndarray, shape (samples,)
        ||z||^2.

    Returns
    -------
    ndarray, shape (samples,)
        The gaps.
    """
    scale = problem.l1 / np.maximum(steepest(problem, g), problem.l1)
    along = over_atoms(h, g)
    residual = np.maximum(energy - over_atoms(h, c) - along, 0)
    length = np.add.reduce(np.abs(h), 0)
    return 0.5 * (1 - scale) ** 2 * residual + (problem.l1 * length - scale * along)


def objectives(h: np.ndarray, g: np.ndarray, c: np.ndarray, l1: float) -> np.ndarray:
    """Return 1/2 hᵀ G h - cᵀ h + l1 ||h||_1 for g = c - G h, (samples,)."""
    return l1 * np.add.reduce(np.abs(h), 0) - 0.5 * over_atoms(h, c + g)


def filled(columns: np.ndarray) -> np.ndarray:
    """Return the column numbers (n,), n > 0, with the first repeated to fill ``COLUMNS``."""
    return np.concatenate([columns, columns[:1].repeat(-len(columns) % COLUMNS)])
