"""The quadratic surrogate of a smooth loss: proximal gradient in MM form.

Dieuleveut et al. 2025, Example 1: for f with an L-Lipschitz gradient and rho in (0, 1/L],
psi = ||theta||^2 / (2 rho), phi = theta / rho, S̄(Z, tau) = tau - rho grad l(Z, tau), S = R^d and
T = prox of rho g. A sample is z = (x, y), the target in the last column.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.base import Model
from mpifed.models.losses import CROSS_ENTROPY, logistic, loss_of, sigmoid
from mpifed.schema import Above, AtLeast
from mpifed.surrogates.base import client_means, each_row, padded, with_target
from mpifed.surrogates.proximal import Regulariser, regulariser


@dataclass(frozen=True)
class SmoothLoss:
    """l(z, theta): ``values`` per sample, (samples,), and ``gradient``, the mean's, (d,)."""

    values: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]


def _least_squares_values(z: Tensor, theta: Tensor) -> Tensor:
    return 0.5 * (z[:, :-1] @ theta - z[:, -1]) ** 2


def _least_squares_gradient(z: Tensor, theta: Tensor) -> Tensor:
    x = z[:, :-1]
    return x.T @ (x @ theta - z[:, -1]) / len(z)


def _logistic_values(z: Tensor, theta: Tensor) -> Tensor:
    return logistic(z[:, :-1] @ theta, z[:, -1])


def _logistic_gradient(z: Tensor, theta: Tensor) -> Tensor:
    x = z[:, :-1]
    return x.T @ (sigmoid(x @ theta) - z[:, -1]) / len(z)


LOSSES = {
    "least_squares": SmoothLoss(_least_squares_values, _least_squares_gradient),
    "logistic": SmoothLoss(_logistic_values, _logistic_gradient),
}


def model_loss(model: Model) -> SmoothLoss:
    """The loss of an mpifed model with inputs (d,) and one target, on z = (x, target)."""
    loss = loss_of(model)

    def target(z: Tensor) -> Tensor:
        return z[:, -1].long() if loss is CROSS_ENTROPY else z[:, -1:]

    def values(z: Tensor, theta: Tensor) -> Tensor:
        return loss.samples(model.shared_logits(theta[None], z[:, :-1])[0], target(z))

    def gradient(z: Tensor, theta: Tensor) -> Tensor:
        weights = z.new_full((1, len(z)), 1 / len(z))
        return model.gradient(theta[None], z[None, :, :-1], target(z)[None], weights)[0]

    return SmoothLoss(values, gradient)


@dataclass(frozen=True)
class QuadraticSurrogate:
    """``rho`` is the step, ``n_parameters`` the d of theta, which s has too."""

    n_parameters: int
    rho: float
    loss: SmoothLoss
    regulariser: Regulariser

    @property
    def size(self) -> int:
        return self.n_parameters

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """T of a standard normal s, so that it lies in the domain of g."""
        return self.minimiser(torch.from_numpy(generator.standard_normal(self.size))).numpy()

    def statistics(self, z: Tensor, theta: Tensor, offsets: np.ndarray) -> Tensor:
        return client_means(
            lambda own, tau: tau - self.rho * self.loss.gradient(own, tau), z, theta, offsets
        )

    def minimiser(self, s: Tensor) -> Tensor:
        return each_row(lambda row: self.regulariser.prox(row, self.rho), s)

    def project(self, s: Tensor) -> Tensor:
        return s

    def project_parameters(self, theta: Tensor) -> Tensor:
        """On the box or the ball, where the regulariser is the indicator of one."""
        return each_row(self.regulariser.onto_domain, theta)

    def losses(self, z: Tensor, theta: Tensor) -> Tensor:
        return self.loss.values(padded(z.double()), theta)[: len(z)]

    def penalty(self, theta: Tensor) -> float:
        return self.regulariser.value(theta)

    def surrogate_of(self, theta: Tensor) -> Tensor:
        return self.regulariser.preimage(theta, self.rho)

    def parts(self, theta: Tensor) -> dict[str, Tensor]:
        """``coefficients`` (d,), one for each input."""
        return {"coefficients": theta}

    def psi(self, theta: Tensor) -> Tensor:
        return theta @ theta / (2 * self.rho)

    def phi(self, theta: Tensor) -> Tensor:
        return theta / self.rho


@with_target
def quadratic(
    data: Description,
    *,
    loss: Literal["least_squares", "logistic"] = "least_squares",
    rho: Annotated[float, Above(0)] = 0.1,
    regularisation: Literal["none", "l1", "ridge", "box", "ball", "group"] = "none",
    strength: Annotated[float, AtLeast(0)] = 0.1,
    radius: Annotated[float, Above(0)] = 1.0,
    group_size: Annotated[int, AtLeast(1)] = 1,
) -> QuadraticSurrogate:
    """Proximal gradient with step ``rho`` on linear or logistic regression, target last.

    The target is the label or the single target of a sample, the last column of unlabelled ones.
    """
    if data.task == "regression" and data.n_classes != 1:
        raise InputError(
            f"quadratic learns one target, but the samples of '{data.source}' have {data.n_classes}"
        )
    dimension = math.prod(data.input_shape) - 1
    if dimension < 1:
        raise InputError(
            f"quadratic needs inputs and a target in each sample; data has {data.input_shape}"
        )
    g = regulariser(regularisation, dimension, strength, radius, group_size)
    return QuadraticSurrogate(dimension, rho, LOSSES[loss], g)
