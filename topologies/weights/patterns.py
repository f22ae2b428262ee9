"""Where weights may be: on the edges of a graph and, with self-loops, on the diagonal.

A weight matrix is admissible if it is symmetric and non-negative, zero outside the pattern of the
graph, and has rows that sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[np.float64]


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


class SparsePattern:
    """The matrices of a pattern in compressed rows."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.n = n = pattern.n
        nodes = np.arange(n)
        rows = np.concatenate([pattern.i, pattern.j, nodes])
        columns = np.concatenate([pattern.j, pattern.i, nodes])
        self._order = np.lexsort((columns, rows))
        self._columns = columns[self._order].astype(np.int32)
        self._starts = np.append(0, np.cumsum(np.bincount(rows, minlength=n))).astype(np.int32)

    def matrix(self, on_edges: Array, diagonal: Array) -> csr_array:
        """Return the symmetric (n, n) with these values on edges (m,) and diagonal (n,)."""
        from scipy.sparse import csr_array

        data = np.concatenate([on_edges, on_edges, diagonal])[self._order]
        return csr_array((data, self._columns, self._starts), shape=(self.n, self.n))
