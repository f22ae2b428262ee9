"""The projection on the moments of a mixture: semidefinite, with shares that sum to one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from scipy.optimize import brentq
from torch import Tensor

from mpifed.surrogates.projections import positive_semidefinite, simplex


def semidefinite_with_shares(matrices: Tensor, floor: float) -> Tensor:
    """Return the nearest semidefinite matrices whose last diagonal entries sum to 1.

    With a multiplier nu on that entry the nearest semidefinite matrix is A - nu E with its negative
    eigenvalues set to 0, and its entry decreases in nu; one nu makes the sum 1. A matrix whose
    entry would be below the floor has a separate nu, which makes it the floor.

    Parameters
    ----------
    matrices : Tensor of float64, shape (L, n, n)
        The matrices A.
    floor : float
        The least last diagonal entry, at most 1 / L.

    Returns
    -------
    Tensor of float64, shape (L, n, n)
        The nearest matrices in Frobenius norm, symmetric.
    """
    symmetric = (matrices + matrices.mT) / 2
    shares = symmetric[:, -1, -1]
    kept = symmetric.clone()
    kept[:, -1, -1] = simplex(shares, floor)
    if all(torch.equal(positive_semidefinite(one), one) for one in kept):
        return kept

    def clipped(prices: Tensor) -> Tensor:
        lowered = symmetric.clone()
        lowered[:, -1, -1] -= prices
        values, vectors = torch.linalg.eigh(lowered)
        raised = (vectors * values.clamp(min=0)[:, None]) @ vectors.mT
        return (raised + raised.mT) / 2

    def above_floor(one: int, price: float) -> float:
        return float(clipped(torch.full_like(shares, price))[one, -1, -1]) - floor

    def total(price: float) -> float:
        at = clipped(torch.full_like(shares, price))[:, -1, -1]
        return float(at.clamp(min=floor).sum()) - 1

    # Clipping adds to a diagonal entry, so that each is at least A - nu.
    price = _root(total, float(shares.sum() - 1) / len(shares))
    prices = torch.full_like(shares, price)
    for one in (clipped(prices)[:, -1, -1] < floor).nonzero()[:, 0].tolist():
        low = float(shares[one]) - floor
        prices[one] = _root(partial(above_floor, one), low)
    found = clipped(prices)
    found[:, -1, -1] = found[:, -1, -1].clamp(min=floor)
    return found


def _root(falling: Callable[[float], float], low: float) -> float:
    """Return the root of a decreasing function that is at least 0 at ``low``, but for rounding."""
    if falling(low) <= 0:
        return low
    step = 1.0
    while falling(low + step) > 0:
        step *= 2
    return float(brentq(falling, low, low + step, xtol=1e-15, rtol=1e-15))
