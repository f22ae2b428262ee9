"""Weights of edges, int64 (m, 2) on 0 .. n-1, in closed form from degrees or the Laplacian."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Edges = NDArray[np.int64]


def degrees_of(n: int, edges: Edges) -> NDArray[np.int64]:
    """Return the number of edges at each node."""
    return np.bincount(edges.ravel(), minlength=n)


def larger_degrees(n: int, edges: Edges) -> NDArray[np.int64]:
    """Return the larger degree of each edge's ends."""
    larger: NDArray[np.int64] = degrees_of(n, edges)[edges].max(axis=1, initial=0)
    return larger


def metropolis_hastings_weights(n: int, edges: Edges) -> Array:
    """Return 1 / (1 + max(d_i, d_j)) for each edge (Xiao, Boyd and Kim 2007, section 3)."""
    return 1 / (1 + larger_degrees(n, edges))


def by_size_weights(n: int, edges: Edges, sizes: Array) -> tuple[Edges, Array]:
    """Return arcs (receiver, sender) with min(1 / (1 + d_i), (s_j / s_i) / (1 + d_j)) for each."""
    arcs = np.concatenate([edges, edges[:, ::-1]])
    share = sizes / (1 + degrees_of(n, edges))
    return arcs, share[arcs].min(axis=1) / sizes[arcs[:, 0]]


def max_degree_weights(n: int, edges: Edges) -> Array:
    """Return 1 / (1 + d_max) for all edges."""
    return np.full(len(edges), 1 / (1 + degrees_of(n, edges).max()))


def best_constant_weights(n: int, edges: Edges, components: int = 1) -> Array:
    """Return 2 / (l_2 + l_n) for all edges (Xiao and Boyd 2004, section 4.1)."""
    if not len(edges):
        return np.zeros(0)
    spectrum = np.linalg.eigvalsh(laplacian(n, edges, np.ones(len(edges))))
    return np.full(len(edges), 2 / (spectrum[components] + spectrum[-1]))


def laplacian(n: int, edges: Edges, weights: Array) -> Array:
    """Return the weighted Laplacian D - A."""
    i, j = edges.T
    matrix = np.zeros((n, n))
    matrix[i, j] = matrix[j, i] = -weights
    np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return matrix
