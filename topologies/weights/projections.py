"""The two projections of the solver in fastest_mixing.py: on admissible weights and on a norm ball.

A weight matrix is admissible if it is symmetric and non-negative, zero outside the pattern of the
graph, and has rows that sum to one.

The projection on admissible weights in a diagonal metric, on sparse graphs; sparse_mixing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array


Array = NDArray[np.float64]

ROW_TOLERANCE = 1e-11


@dataclass(frozen=True)
class Pattern:
    """Where weights may be: on the edges (i[e], j[e]) and, with self-loops, on the diagonal."""

    n: int
    edges: NDArray[np.int64]
    self_loops: bool

    @cached_property
    def i(self) -> NDArray[np.int64]:
        """The first end of each edge."""
        return np.ascontiguousarray(self.edges[:, 0])

    @cached_property
    def j(self) -> NDArray[np.int64]:
        """The second end of each edge."""
        return np.ascontiguousarray(self.edges[:, 1])

    def node_sums(self, on_edges: NDArray[Any]) -> Array:
        """Return the sum of the values (m,) on each node's edges, float64 of shape (n,)."""
        both = np.concatenate([on_edges, on_edges])
        return np.bincount(self._ends, both, self.n).astype(np.float64, copy=False)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """The nodes of ``node_sums``, which asks for them hundreds of times."""
        return np.concatenate([self.i, self.j])

    def dense(self, on_edges: Array, diagonal: Array) -> Array:
        """Return the symmetric (n, n) with these values on edges (m,) and diagonal (n,)."""
        matrix = np.zeros((self.n, self.n))
        matrix[self.i, self.j] = on_edges
        matrix[self.j, self.i] = on_edges
        np.fill_diagonal(matrix, diagonal)
        return matrix


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
    own = matrix.diagonal() if pattern.self_loops else np.full(pattern.n, -np.inf)

    def at(y: Array) -> tuple[Array, Array, float]:
        w, d = np.maximum(off + y[i] + y[j], 0), np.maximum(own + 2 * y, 0)
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
        found = at(y + length * step)
        # Near the solution rounding decides the comparison, and the full step is right.
        enough = value + 1e-4 * length * slope + 1e-12 * abs(value)
        if found[2] <= enough or length < shortest:
            return y + length * step, found
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
    excess = np.cumsum(descending) - radius
    if excess[-1] <= 0:
        if warm is not None:
            return project_nuclear(matrix, radius)
        return matrix, Threshold(0.0, len(matrix), vectors)
    count = int(np.count_nonzero(descending * np.arange(1, len(sizes) + 1) > excess))
    level = float(excess[count - 1] / count)
    kept = vectors[:, order[: count + count // 4 + 8]]
    active, top = kept[:, :count], values[order[:count]]
    shrunk = top - np.copysign(level, top)
    return (active * shrunk) @ active.T, Threshold(level, count, kept)


ROWS, SOLVED, EMPTY = 1e-9, 1e-3, 1e-3


class SparsePattern:
    """The matrices of a pattern in compressed rows."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.n = n = pattern.n
        own = np.arange(n)
        rows = np.concatenate([pattern.i, pattern.j, own])
        columns = np.concatenate([pattern.j, pattern.i, own])
        self._order = np.lexsort((columns, rows))
        self._columns = columns[self._order].astype(np.int32)
        self._starts = np.append(0, np.cumsum(np.bincount(rows, minlength=n))).astype(np.int32)

    def matrix(self, on_edges: Array, diagonal: Array) -> csr_array:
        """Return the symmetric (n, n) with these values on edges (m,) and diagonal (n,)."""
        from scipy.sparse import csr_array

        data = np.concatenate([on_edges, on_edges, diagonal])[self._order]
        return csr_array((data, self._columns, self._starts), shape=(self.n, self.n))


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
    off: Array, own: Array, sparse: SparsePattern, steps: Scales, y: Array
) -> tuple[Array, Array, Array]:
    """Return the admissible matrix nearest to the given one where steps scale the distances."""
    pattern = sparse.pattern
    i, j = pattern.i, pattern.j
    everything = pattern.node_sums(steps.edges) + 2 * steps.loops

    def at(y: Array) -> tuple[Array, Array, float]:
        w = np.maximum(off + steps.edges * (y[i] + y[j]), 0)
        d = np.maximum(own + 2 * steps.loops * y, 0)
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
    wanted = SOLVED * np.abs(target).max()
    direction = scaled = residual / diagonal
    product = float(residual @ scaled)
    for _ in range(100):
        image = matrix @ direction
        length = product / float(direction @ image)
        x += length * direction
        residual -= length * image
        if np.abs(residual).max() <= wanted:
            break
        scaled = residual / diagonal
        next_product = float(residual @ scaled)
        direction = scaled + next_product / product * direction
        product = next_product
    return x
