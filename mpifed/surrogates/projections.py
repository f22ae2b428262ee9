"""Euclidean projections of flat float64 vectors and symmetric matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.errors import RunError

SURE = 1e-10
"""A matrix is positive semidefinite beyond rounding if less so many times its trace it still is."""


def simplex(v: Tensor, floor: float = 0.0) -> Tensor:
    """The nearest point to ``v`` (n,) with sum 1 and no entry below ``floor`` (at most 1/n).

    Held, Wolfe and Crowder 1974: subtract one number from all, cut at zero; the number follows
    from the sorted entries.
    """
    mass = 1 - floor * len(v)
    ordered = torch.sort(v - floor, descending=True).values
    excess = ordered.cumsum(0) - mass
    support = ordered * torch.arange(1, len(v) + 1) > excess
    last = int(support.nonzero()[-1])
    return (v - floor - excess[last] / (last + 1)).clamp(min=0) + floor


def positive_semidefinite(matrix: Tensor) -> Tensor:
    """The nearest symmetric positive semidefinite matrix in Frobenius norm, for any (K, K).

    That of the symmetric part: its negative eigenvalues become 0.
    """
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
    """Each column of ``matrix`` (p, K) scaled to norm at most 1."""
    return matrix / torch.linalg.vector_norm(matrix, dim=0).clamp(min=1)


def cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factor of a statistic; raises ``RunError`` where there is none."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        raise RunError(
            "a statistic is not positive semidefinite or not finite: it was not projected, or the "
            "training diverged"
        )
    return factor
