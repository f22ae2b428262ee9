"""Edge weights: canonical order, sums at nodes, and scaling to sums of at most one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.parameters import TopologyError


def node_sums(n: int, edges: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of the values on each node's edges.

    Parameters
    ----------
    n : int
        The number of nodes.
    edges : ndarray of int64, shape (m, 2)
        The edges.
    values : ndarray, shape (m,)
        A value for each edge.

    Returns
    -------
    ndarray of float64, shape (n,)
        The sums.
    """
    ends = np.concatenate([edges[:, 0], edges[:, 1]])
    return np.bincount(ends, np.concatenate([values, values]), n).astype(np.float64)


def at_most_one(
    n: int, edges: NDArray[np.int64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Scale weights down so that the sum at each node is at most one, also in floating point.

    Parameters
    ----------
    n : int
        The number of nodes.
    edges : ndarray of int64, shape (m, 2)
        The edges.
    weights : ndarray of float64, shape (m,)
        Non-negative weights.

    Returns
    -------
    ndarray of float64, shape (m,)
        The scaled weights.
    """
    while (sums := node_sums(n, edges, weights)).max() > 1:
        divisor = np.where(sums > 1, sums * (1 + np.finfo(float).eps), 1)
        weights = weights / divisor[edges].max(axis=1)
    return weights


def canonical_edges(
    n: int, edges: Any, weights: Any, symmetric: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return fresh arrays in canonical order."""
    edges = np.array(edges, dtype=np.int64).reshape(-1, 2)
    weights = np.array(weights, dtype=np.float64)
    if n < 1:
        raise TopologyError(f"n is {n}, but must be an integer of at least 1")
    if weights.shape != (len(edges),):
        raise TopologyError(
            f"weights have shape {weights.shape}, but must be one for each of {len(edges)} edges"
        )
    if not np.isfinite(weights).all():
        raise TopologyError("a weight is not finite")
    if symmetric:
        edges = np.sort(edges, axis=1)
    if len(edges) and (edges.min() < 0 or edges.max() >= n or (edges[:, 0] == edges[:, 1]).any()):
        raise TopologyError(f"an edge does not join two different nodes of 0 .. {n - 1}")
    keys = edges[:, 0] * n + edges[:, 1]
    if (np.diff(keys) < 0).any():
        order = np.argsort(keys, kind="stable")
        edges, weights, keys = edges[order], weights[order], keys[order]
    if (np.diff(keys) == 0).any():
        raise TopologyError("an edge is given twice")
    return edges, weights
