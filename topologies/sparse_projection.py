"""The projection on admissible weights in a diagonal metric, on sparse graphs; sparse_mixing.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from topologies.projections import Pattern, descended

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[np.float64]

ROWS, SOLVED, EMPTY = 1e-9, 1e-3, 1e-3


class SparsePattern:
    """The matrices of a pattern in compressed rows.

    Parameters
    ----------
    pattern : Pattern
        Where weights may be.
    """

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
    """Return the admissible matrix nearest to the given one where steps scale the distances.

    As ``projections.project_admissible``, with W_ij = max(0, M_ij + T_ij (y_i + y_j)), and the
    systems of Newton's method solved by conjugate gradients: they are well conditioned on graphs
    that mix.

    Parameters
    ----------
    off, own : ndarray of float64, shapes (m,) and (n,)
        M on edges and on the diagonal.
    sparse : SparsePattern
        Where weights may be, with self-loops.
    steps : Scales
        The steps T, which divide squared distances.
    y : ndarray of float64, shape (n,)
        The multipliers to start from.

    Returns
    -------
    tuple
        The edge weights (m,), the diagonal (n,), whose row sums are one within 1e-9 as a rule, and
        the multipliers.
    """
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
