"""The lasso of many samples in terms of the Gram matrix, and what its algorithms measure.

A sample is a column: arrays are (K, samples), so that what is done to all samples runs along long
rows, and a sum over atoms adds rows. Numpy's operations on numbers and its sums over the first axis
round a column alike whatever stands beside it; products go through torch, whose MKL does so too
(``mpifed/__init__.py``) for a number of columns that is a multiple of ``COLUMNS``.
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
    """1/2 hᵀ G h - cᵀ h + l1 ||h||_1, and h >= 0 if ``nonnegative``, for many c.

    ``inverse`` is that of ``gram`` (K, K), or None where that is singular to rounding; ``damping``
    is then what exact steps add to its diagonal.
    """

    gram: np.ndarray
    inverse: np.ndarray | None
    damping: float
    l1: float
    nonnegative: bool


def quadratic(dictionary: Tensor, l1: float, nonnegative: bool) -> Quadratic:
    """The problem of ``dictionary`` (p, K); raises ``RunError`` if that is not finite."""
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
    """Samples still at work, filled up to a multiple of ``COLUMNS``; the first ``count`` are real.

    ``owner`` (samples,) numbers them in the input; ``c`` = Dᵀ z is (K, samples); ``energy`` is
    ||z||^2 and ``limit`` the duality gap to reach, both (samples,).
    """

    count: int
    owner: np.ndarray
    c: np.ndarray
    energy: np.ndarray
    limit: np.ndarray

    def reached(self, problem: Quadratic, h: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Whose codes ``h`` are good enough, bool (samples,), for g = c - G h."""
        return duality_gaps(problem, h, g, self.c, self.energy) <= self.limit

    def part(self, columns: slice) -> Samples:
        """Some of them, of which some may not be real; a multiple of ``COLUMNS``."""
        count = min(self.count, columns.stop) - columns.start
        c = np.ascontiguousarray(self.c[:, columns])
        parts = (part[columns] for part in (self.energy, self.limit))
        return Samples(count, self.owner[columns], c, *parts)

    def where(self, going_on: np.ndarray) -> tuple[Samples, np.ndarray] | None:
        """Those that are real and ``going_on``, bool (samples,), and their columns here, int64.

        None if there is none. Columns are filled up by the first of them.
        """
        columns = np.flatnonzero(going_on[: self.count])
        count = len(columns)
        if not count:
            return None
        columns = filled(columns)
        c = self.c.take(columns, 1)
        parts = (part.take(columns) for part in (self.energy, self.limit))
        return Samples(count, self.owner.take(columns), c, *parts), columns


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b, for matrices."""
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()


def over_atoms(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """sum_k a_k b_k of each column: (samples,)."""
    return np.add.reduce(a * b, 0)


def steepest(problem: Quadratic, g: np.ndarray) -> np.ndarray:
    """The largest slope of each column of g, (samples,): max |g_k|, or max g_k if nonnegative."""
    highest = np.maximum.reduce(g, 0)
    return highest if problem.nonnegative else np.maximum(highest, -np.minimum.reduce(g, 0))


def duality_gaps(
    problem: Quadratic, h: np.ndarray, g: np.ndarray, c: np.ndarray, energy: np.ndarray
) -> np.ndarray:
    """Objective minus the dual value at the scaled residual, (samples,), for g = c - G h = Dᵀ r.

    The dual point is a r with the largest a <= 1 that is feasible; ``energy`` is ||z||^2. Written
    as 1/2 (1 - a)^2 ||r||^2 + l1 ||h||_1 - a hᵀ g, nothing cancels.
    """
    scale = problem.l1 / np.maximum(steepest(problem, g), problem.l1)
    along = over_atoms(h, g)
    residual = np.maximum(energy - over_atoms(h, c) - along, 0)
    length = np.add.reduce(np.abs(h), 0)
    return 0.5 * (1 - scale) ** 2 * residual + (problem.l1 * length - scale * along)


def objectives(h: np.ndarray, g: np.ndarray, c: np.ndarray, l1: float) -> np.ndarray:
    """1/2 hᵀ G h - cᵀ h + l1 ||h||_1 for g = c - G h: (samples,)."""
    return l1 * np.add.reduce(np.abs(h), 0) - 0.5 * over_atoms(h, c + g)


def filled(columns: np.ndarray) -> np.ndarray:
    """``columns``, numbers (n,) of at least one, with the first repeated to fill ``COLUMNS``."""
    return np.concatenate([columns, columns[:1].repeat(-len(columns) % COLUMNS)])
