"""Euclidean projections of flat float64 vectors and symmetric matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.errors import RunError

# A matrix is positive semidefinite beyond rounding if less so many times its trace it still is.
SURE = 1e-10


def simplex(v: Tensor, floor: float = 0.0) -> Tensor:
    """Return the nearest point with sum 1 and no entry below ``floor``. Held, Wolfe and Crowder
    1974: subtract one number from all entries and set negative ones to zero; the number follows
    from the sorted entries.
    """
    mass = 1 - floor * len(v)
    ordered = torch.sort(v - floor, descending=True).values
    excess = ordered.cumsum(0) - mass
    support = ordered * torch.arange(1, len(v) + 1) > excess
    last = int(support.nonzero()[-1])
    return (v - floor - excess[last] / (last + 1)).clamp(min=0) + floor


def positive_semidefinite(matrix: Tensor) -> Tensor:
    """Return the nearest symmetric positive semidefinite matrix in Frobenius norm."""
    symmetric = (matrix + matrix.T) / 2
    # Where even this has a Cholesky factor, no eigenvalue can be negative: much quicker to see.
    lowered = symmetric.clone()
    lowered.diagonal().sub_(SURE * symmetric.diagonal().sum().clamp(min=0))
    if not int(torch.linalg.cholesky_ex(lowered).info):
        return symmetric
    values, vectors = torch.linalg.eigh(symmetric)
    if values[0] >= 0:
        return symmetric
    raised = (vectors * values.clamp(min=0)) @ vectors.T
    return (raised + raised.T) / 2


def columns_in_unit_ball(matrix: Tensor) -> Tensor:
    """Return ``matrix`` (p, K) with each column scaled to norm at most 1."""
    return matrix / torch.linalg.vector_norm(matrix, dim=0).clamp(min=1)


def cholesky(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of a statistic."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        raise RunError(
            "a statistic is not positive semidefinite or not finite: it was not projected, or the "
            "training diverged"
        )
    return factor


def eigenvalues_at_least(floor: float, matrix: Tensor) -> Tensor:
    """Return the nearest symmetric matrix, in Frobenius norm, whose eigenvalues reach a floor."""
    values, vectors = torch.linalg.eigh(matrix)
    if values[0] >= floor:
        return matrix
    raised = (vectors * values.clamp(min=floor)) @ vectors.T
    return (raised + raised.T) / 2
