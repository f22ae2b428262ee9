"""How the models of T clients are related: what the server of MOCHA computes (Smith et al. 2017).

Models w_t are the rows of a tensor (T, P). Sigma (T, T) is positive definite with trace 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_EIGENVALUE = 1e-7
"""Smaller eigenvalues of W'W count as this, so that Sigma has an inverse."""


def relations(models: Tensor) -> Tensor:
    """Return the Sigma that is best for some models (Zhang and Yeung 2010).

    Parameters
    ----------
    models : Tensor
        w_t, (T, P).

    Returns
    -------
    Tensor
        (W'W)^(1/2) / tr (W'W)^(1/2), (T, T).

    Examples
    --------
    >>> relations(torch.diag(torch.tensor([1.0, 3.0])))
    tensor([[0.2500, 0.0000],
            [0.0000, 0.7500]])
    """
    values, vectors = torch.linalg.eigh(models @ models.T)
    roots = values.clamp(min=LEAST_EIGENVALUE).sqrt()
    return (vectors * (roots / roots.sum())) @ vectors.T


def separability(sigma: Tensor) -> float:
    """Return rho = max_t sum_t' |Sigma_tt'| / Sigma_tt.

    With it the clients' parts of the dual add up to a lower bound of the whole (Lemma 9).
    """
    return float((sigma.abs().sum(1) / sigma.diagonal()).max())


def penalties(models: Tensor, b: Tensor, sigma: Tensor, strength: float) -> tuple[float, float]:
    """Return the quadratic terms of the primal and of the dual objective.

    Parameters
    ----------
    models, b : Tensor
        w_t and b_t, (T, P).
    sigma : Tensor
        (T, T).
    strength : float
        lambda.

    Returns
    -------
    tuple of float
        (lambda / 2) tr(W Sigma^-1 W') and tr(B Sigma B') / (2 lambda); the same where
        W = B Sigma / lambda.
    """
    of_models = (models * torch.linalg.solve(sigma, models)).sum() * strength / 2
    of_duals = (b * (sigma @ b)).sum() / (2 * strength)
    return float(of_models), float(of_duals)
