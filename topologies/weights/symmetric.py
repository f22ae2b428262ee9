"""Fastest mixing weights where a graph's symmetries make them a small linear program.

Optimal weights can be taken equal on edges that a symmetry of the graph carries into each other
(Boyd, Diaconis, Parrilo and Xiao 2009, Fastest mixing Markov chain on graphs with symmetries).
Where the Laplacians of the classes of edges commute, as on rings, tori, hypercubes, exponential and
complete graphs, each eigenvalue of W is linear in the few weights, and the best of them solve a
linear program whose multipliers are a dual certificate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topologies.weights.patterns import Pattern

Array = NDArray[np.float64]

# A graph with more classes of edges has few symmetries, if any, and each class costs a product of
# matrices.
MOST_CLASSES = 32

# Values of the order of one that differ by less are equal but for rounding.
SAME = 1e-9


def symmetric_solution(pattern: Pattern) -> tuple[Array, Array, Array] | None:
    """Return optimal weights with their dual pair, if the graph's symmetries give them."""
    n = pattern.n
    if n == 1:
        return np.zeros(0), np.zeros((1, 1)), np.zeros(1)
    degrees = pattern.node_sums(np.ones(len(pattern.i)))
    if len(np.unique(degrees)) > 2:
        return None
    edge_class, node_class = _classes(pattern, degrees)
    count = int(edge_class.max()) + 1
    if count > MOST_CLASSES:
        return None

    # A mixture with unlike coefficients separates the eigenspaces that all classes share.
    vectors = np.linalg.eigh(_laplacian(pattern, np.sqrt(2.0 + edge_class)))[1][:, 1:]
    eigenvalues, class_degrees = np.empty((n - 1, count)), np.empty((n, count))
    for c in range(count):
        laplacian = _laplacian(pattern, (edge_class == c).astype(np.float64))
        class_degrees[:, c] = laplacian.diagonal()
        moved = laplacian @ vectors
        eigenvalues[:, c] = (moved * vectors).sum(axis=0)
        if np.abs(moved - vectors * eigenvalues[:, c]).max() > SAME * n:
            return None

    space = _alike(eigenvalues @ np.sqrt(2.0 + np.arange(count)))
    weights, forces = _best_weights(_representatives(eigenvalues, space), class_degrees)
    shares = (forces / np.bincount(space))[space]
    y = (vectors * shares) @ vectors.T
    return weights[edge_class], y, _node_values(pattern, y, edge_class, node_class)


def _laplacian(pattern: Pattern, weights: Array) -> Array:
    return pattern.dense(-weights, pattern.node_sums(weights))


def _classes(pattern: Pattern, degrees: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the class of each edge and node; those with the same heat kernel are in one class."""
    spectrum, vectors = np.linalg.eigh(_laplacian(pattern, np.ones(len(pattern.i))))
    kernel = (vectors * np.exp(-spectrum / degrees.max())) @ vectors.T
    i, j, self_kernel = pattern.i, pattern.j, kernel.diagonal()
    return _alike(kernel[i, j] + np.sqrt(2) * (self_kernel[i] + self_kernel[j])), _alike(
        self_kernel
    )


def _alike(values: Array) -> NDArray[np.int64]:
    """Number the clusters of equal values, in ascending order."""
    order = np.argsort(values)
    steps = np.diff(values[order], prepend=values[order[0]]) > SAME
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.cumsum(steps)
    return number


def _representatives(rows: Array, number: NDArray[np.int64]) -> Array:
    return rows[np.unique(number, return_index=True)[1]]


def _best_weights(eigenvalues: Array, class_degrees: Array) -> tuple[Array, Array]:
    """Minimise t over w >= 0 with -t <= 1 - eigenvalues w <= t and class_degrees w <= 1."""
    # Imported when it is needed, since it takes half as long as the whole package.
    from scipy.optimize import linprog

    k, count = eigenvalues.shape
    degrees = np.unique(class_degrees, axis=0)
    t = np.ones((k, 1))
    program = linprog(
        np.append(np.zeros(count), 1.0),
        A_ub=np.block([[-eigenvalues, -t], [eigenvalues, -t], [degrees, 0 * degrees[:, :1]]]),
        b_ub=np.concatenate([-t[:, 0], t[:, 0], np.ones(len(degrees))]),
        method="highs",
    )
    marginals = program.ineqlin.marginals
    return program.x[:count], marginals[k : 2 * k] - marginals[:k]


def _node_values(
    pattern: Pattern, y: Array, edge_class: NDArray[np.int64], node_class: NDArray[np.int64]
) -> Array:
    """Return the z of largest sum with z_i + z_j <= 2 Y_ij on edges and z_i <= Y_ii."""
    from scipy.optimize import linprog

    edges = np.unique(edge_class, return_index=True)[1]
    ends = np.stack([node_class[pattern.i[edges]], node_class[pattern.j[edges]]])
    sums = np.zeros((len(edges), node_class.max() + 1))
    np.add.at(sums, (np.arange(len(edges)), ends), 1.0)
    program = linprog(
        -np.bincount(node_class).astype(np.float64),
        A_ub=sums,
        b_ub=2 * y[pattern.i[edges], pattern.j[edges]],
        bounds=[(None, top) for top in _representatives(y.diagonal(), node_class)],
        method="highs",
    )
    values: Array = program.x[node_class]
    return values
