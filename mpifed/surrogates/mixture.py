"""Gaussian mixtures as distributions: densities and posterior probabilities of components."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import InputError


@dataclass(frozen=True)
class Mixture:
    """The parameters of a Gaussian mixture.

    Attributes
    ----------
    means : Tensor, shape (L, p)
        The means.
    covariances : Tensor, shape (L, p, p)
        The covariances.
    weights : Tensor, shape (L,)
        The weights, with sum 1.
    """

    means: Tensor
    covariances: Tensor
    weights: Tensor

    def log_joint(self, z: Tensor) -> Tensor:
        """Return ln weight + ln density of each component, (samples, L)."""
        columns = []
        for mean, covariance, weight in zip(
            self.means, self.covariances, self.weights, strict=True
        ):
            factor = torch.linalg.cholesky(covariance)
            identity = torch.eye(len(factor), dtype=factor.dtype)
            whitening = torch.linalg.solve_triangular(factor, identity, upper=False)
            white = (z - mean) @ whitening.T
            constant = torch.log(weight) + whitening.diagonal().log().sum()
            columns.append(constant - 0.5 * (white * white).sum(1))
        dimension = self.means.shape[1]
        return torch.stack(columns, 1) - 0.5 * dimension * math.log(2 * math.pi)

    def responsibilities(self, z: Tensor) -> Tensor:
        """Return the posterior probabilities of the components, (samples, L)."""
        joint = self.log_joint(z)
        return torch.exp(joint - torch.logsumexp(joint, 1, keepdim=True))


def weights_of(given: list[float] | None, components: int) -> Tensor:
    """Return the weights that a configuration gives, or equal ones: float64 (components,).

    Raises
    ------
    InputError
        If they are not so many numbers with sum 1.
    """
    weights = np.full(components, 1 / components) if given is None else np.array(given, float)
    if weights.shape != (components,) or abs(weights.sum() - 1) > 1e-9:
        raise InputError(
            f"algorithm.surrogate.weights is {given}; it must be {components} numbers with sum 1"
        )
    return torch.from_numpy(weights)


def covariances_of(given: list[list[list[float]]] | None, components: int, p: int) -> Tensor:
    """Return the covariances that a configuration gives, or identities: (components, p, p).

    Raises
    ------
    InputError
        If they are not so many symmetric positive definite matrices.
    """
    if given is None:
        return torch.eye(p, dtype=torch.float64).repeat(components, 1, 1)
    wanted = f"{components} symmetric positive definite matrices of {p} x {p}"
    try:
        found = torch.tensor(given, dtype=torch.float64)
    except (TypeError, ValueError):
        raise InputError(f"covariances has rows of unequal length; it must be {wanted}") from None
    if found.shape != (components, p, p):
        raise InputError(f"covariances has shape {tuple(found.shape)}; it must be {wanted}")
    if not torch.equal(found, found.mT) or float(torch.linalg.eigvalsh(found).min()) <= 0:
        raise InputError(f"covariances has another kind of matrix; it must be {wanted}")
    return found
