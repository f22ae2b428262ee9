"""Projections of the solvers of fastest mixing: on admissible weights, and on a ball of a norm.

Multipliers y of the row sums give the nearest admissible matrix, W_ij = max(0, M_ij + y_i + y_j),
and Newton's method finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from topologies.weights.patterns import Pattern, SparsePattern

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[np.float64]

# By how much rows of weights may miss the sum of one: about what rounding leaves.
ROW_TOLERANCE = 1e-11

# Likewise in the primal-dual method, whose weights are brought to sums of at most one anyway.
ROWS = 1e-9

# The residual that conjugate gradients leave of a Newton step, which the next step corrects.
SOLVED = 1e-3

# Of the curvature that a node has with all its edges, what it has at least: without positive
# weights it has none, and the system is singular.
EMPTY = 1e-3


@dataclass(frozen=True)
class Multipliers:
    """Multipliers of the row sums, with the Cholesky factor there: where a search starts."""

    values: Array
    support: NDArray[np.bool_] | None = None
    factor: tuple[Array, bool] | None = None

    def scaled(self, by: float) -> Multipliers:
        """Return the multipliers of a problem whose matrix is scaled."""
        return Multipliers(self.values * by, self.support, self.factor)


def project_admissible(
    matrix: Array, pattern: Pattern, start: Multipliers
) -> tuple[Array, Array, Multipliers]:
    """Return the admissible matrix nearest to ``matrix`` in Frobenius norm."""
    from scipy import linalg

    i, j = pattern.i, pattern.j
    off = matrix[i, j]
    loops = matrix.diagonal() if pattern.self_loops else np.full(pattern.n, -np.inf)

    def at(y: Array) -> tuple[Array, Array, float]:
        w, d = np.maximum(off + y[i] + y[j], 0), np.maximum(loops + 2 * y, 0)
        return w, d, float(w @ w + 0.5 * d @ d - 2 * y.sum())

    y, support, factor = start.values, start.support, start.factor
    w, d, value = at(y)
    for _ in range(100):
        lack = 1 - d - pattern.node_sums(w)
        if np.abs(lack).max() < ROW_TOLERANCE:
            break
        now = np.concatenate([w > 0, d > 0])
        if factor is None or support is None or (now != support).any():
            support, factor = now, _factor(pattern, now[: len(w)], now[len(w) :])
        step = linalg.cho_solve(factor, lack, check_finite=False)
        y, (w, d, value) = descended(at, y, step, value, -2 * float(lack @ step), 1e-6)
    return w, d, Multipliers(y, support, factor)


def descended(
    at: Callable[[Array], tuple[Array, Array, float]],
    y: Array,
    step: Array,
    value: float,
    slope: float,
    shortest: float,
) -> tuple[Array, tuple[Array, Array, float]]:
    """Return where a step from y ends that is halved until it descends, and what ``at``
    has there.
    """
    length = 1.0
    while True:
        end = at(y + length * step)
        # Near the solution rounding decides the comparison, and the full step is right.
        enough = value + 1e-4 * length * slope + 1e-12 * abs(value)
        if end[2] <= enough or length < shortest:
            return y + length * step, end
        length /= 2


def _factor(
    pattern: Pattern, edges: NDArray[np.bool_], loops: NDArray[np.bool_]
) -> tuple[Array, bool]:
    from scipy import linalg

    # The shift keeps the system regular where the support is bipartite, and changes no digit.
    diagonal = 2 * loops + pattern.node_sums(edges) + 1e-9
    hessian = pattern.dense(edges.astype(np.float64), diagonal)
    factor: tuple[Array, bool] = linalg.cho_factor(hessian, overwrite_a=True, check_finite=False)
    return factor


@dataclass(frozen=True)
class Threshold:
    """The result of a soft threshold: ``count`` eigenvalues lie beyond +-level."""

    level: float
    count: int
    basis: Array


def project_nuclear(
    matrix: Array, radius: float, warm: Threshold | None = None
) -> tuple[Array, Threshold]:
    """Return the matrix of nuclear norm at most ``radius`` that is nearest to a symmetric one."""
    if warm is not None and 4 * warm.basis.shape[1] <= len(matrix):
        block, _ = np.linalg.qr(np.hstack([warm.basis, matrix @ warm.basis]))
        values, mixing = np.linalg.eigh(block.T @ (matrix @ block))
        vectors = block @ mixing
    else:
        values, vectors = np.linalg.eigh(matrix)
    sizes = np.abs(values)
    order = np.argsort(-sizes)
    descending = sizes[order]
    if np.cumsum(descending)[-1] - radius <= 0:
        if warm is not None:
            return project_nuclear(matrix, radius)
        return matrix, Threshold(0.0, len(matrix), vectors)
    count, level = soft_threshold(descending, radius)
    leading = vectors[:, order[: count + count // 4 + 8]]
    active, top = leading[:, :count], values[order[:count]]
    shrunk = top - np.copysign(level, top)
    return (active * shrunk) @ active.T, Threshold(level, count, leading)


@dataclass(frozen=True)
class Scales:
    """The diagonal of a metric: a step for each edge (m,) and each self-loop (n,)."""

    edges: Array
    loops: Array

    def norm(self, on_edges: Array, diagonal: Array) -> float:
        """Return the squared norm of the matrix with these values times the root of the steps."""
        return float(2 * self.edges @ on_edges**2 + self.loops @ diagonal**2)

    def times(self, by: float) -> Scales:
        """Return all steps times a factor."""
        return Scales(self.edges * by, self.loops * by)

    def reduced(self, by: float) -> Scales:
        """Return the steps times a factor below one, but none above one brought below it."""
        return Scales(
            np.maximum(self.edges * by, np.minimum(self.edges, 1)),
            np.maximum(self.loops * by, np.minimum(self.loops, 1)),
        )


def project_scaled(
    off: Array, loops: Array, sparse: SparsePattern, steps: Scales, y: Array
) -> tuple[Array, Array, Array]:
    """Return the admissible matrix nearest to the given one where steps scale the distances."""
    pattern = sparse.pattern
    i, j = pattern.i, pattern.j
    everything = pattern.node_sums(steps.edges) + 2 * steps.loops

    def at(y: Array) -> tuple[Array, Array, float]:
        w = np.maximum(off + steps.edges * (y[i] + y[j]), 0)
        d = np.maximum(loops + 2 * steps.loops * y, 0)
        value = (w * w / steps.edges).sum() + 0.5 * (d * d / steps.loops).sum() - 2 * y.sum()
        return w, d, float(value)

    w, d, value = at(y)
    for _ in range(60):
        lack = 1 - d - pattern.node_sums(w)
        if np.abs(lack).max() < ROWS:
            break
        support = (w > 0) * steps.edges
        diagonal = 2 * (d > 0) * steps.loops + pattern.node_sums(support)
        # A node without positive weights has no curvature, but a direction.
        diagonal += 1e-9 * everything + EMPTY * everything * (diagonal < EMPTY * everything)
        step = _solve(sparse.matrix(support, diagonal), diagonal, lack)
        y, (w, d, value) = descended(at, y, step, value, -2 * float(lack @ step), 1e-12)
    return w, d, y


def _solve(matrix: csr_array, diagonal: Array, target: Array) -> Array:
    """Solve a system to a relative residual of SOLVED by preconditioned conjugate gradients."""
    x, residual = np.zeros(len(target)), target.copy()
    enough = SOLVED * np.abs(target).max()
    direction = scaled = residual / diagonal
    product = float(residual @ scaled)
    for _ in range(100):
        image = matrix @ direction
        length = product / float(direction @ image)
        x += length * direction
        residual -= length * image
        if np.abs(residual).max() <= enough:
            break
        scaled = residual / diagonal
        next_product = float(residual @ scaled)
        direction = scaled + next_product / product * direction
        product = next_product
    return x


def soft_threshold(descending: Array, total: float = 1.0) -> tuple[int, float]:
    """Return how many values exceed the level above which they sum to the total, and the level."""
    excess = np.cumsum(descending) - total
    ranks = np.arange(1, len(descending) + 1)
    count = int(np.count_nonzero(descending * ranks > excess))
    return count, max(0.0, float(excess[count - 1] / count))
