"""The least eigenvalue of symmetric mixing matrices, on which corrections set conditions."""

from __future__ import annotations

import numpy as np
from scipy.sparse.linalg import eigsh

import topologies

DENSE = 1500
"""Nodes up to which all eigenvalues are computed."""

FEW = 8
"""Matrices of a schedule without a period, or with a longer one, that are looked at."""


def least_eigenvalue(schedule: topologies.Schedule) -> float:
    """Return the least eigenvalue of the first few matrices of a symmetric schedule.

    Where edges or nodes are lost from a W with non-negative weights, eigenvalues only rise.

    Examples
    --------
    >>> ring = topologies.build_graph("ring", 4)
    >>> round(least_eigenvalue(topologies.build_schedule(graph=ring, weights="uniform")), 9)
    -0.333333333
    """
    rounds = min(schedule.period or FEW, FEW)
    return min(_least(schedule.matrix(k)) for k in range(1, rounds + 1))


def _least(matrix: topologies.MixingMatrix) -> float:
    if matrix.n <= DENSE:
        return float(np.linalg.eigvalsh(matrix.to_dense())[0])
    start = np.random.default_rng(0).normal(size=matrix.n)
    return float(eigsh(matrix.to_sparse(), 1, which="SA", v0=start, return_eigenvectors=False)[0])
