"""Losses with a Lipschitz gradient, of samples z = (x, y) with the target in the last column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mpifed.models.base import Model
from mpifed.models.likelihoods import logistic, sigmoid
from mpifed.models.losses import CROSS_ENTROPY

LABELS = (-1, 0, 1)
"""Targets that a logistic loss may meet, two of them at once."""


@dataclass(frozen=True)
class SmoothLoss:
    """A loss l(z, theta) with a Lipschitz gradient.

    Attributes
    ----------
    values : Callable[[Tensor, Tensor], Tensor]
        Returns the loss of each sample, (samples,), for (z, theta).
    gradient : Callable[[Tensor, Tensor], Tensor]
        Returns the gradient of the mean loss, (d,), for (z, theta).
    curvature : float | None
        The largest second derivative in the linear predictor x theta; None for other losses.
    labels : bool
        Whether targets are two labels, 0 and 1 or -1 and 1.
    """

    values: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    curvature: float | None = None
    labels: bool = False


def _least_squares_values(z: Tensor, theta: Tensor) -> Tensor:
    return 0.5 * (z[:, :-1] @ theta - z[:, -1]) ** 2


def _least_squares_gradient(z: Tensor, theta: Tensor) -> Tensor:
    x = z[:, :-1]
    return x.T @ (x @ theta - z[:, -1]) / len(z)


def _labels(z: Tensor) -> Tensor:
    """Return 1 for the label 1, and 0 for the other label, which is 0 or -1."""
    return (z[:, -1] > 0).to(z)


def _logistic_values(z: Tensor, theta: Tensor) -> Tensor:
    return logistic(z[:, :-1] @ theta, _labels(z))


def _logistic_gradient(z: Tensor, theta: Tensor) -> Tensor:
    x = z[:, :-1]
    return x.T @ (sigmoid(x @ theta) - _labels(z)) / len(z)


LOSSES = {
    "least_squares": SmoothLoss(_least_squares_values, _least_squares_gradient, curvature=1.0),
    "logistic": SmoothLoss(_logistic_values, _logistic_gradient, curvature=0.25, labels=True),
}


def model_loss(model: Model) -> SmoothLoss:
    """Return the loss of an mpifed model with inputs (d,) and one target, on z = (x, target).

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    SmoothLoss
        The loss; its curvature is not known.
    """
    loss = model.loss

    def target(z: Tensor) -> Tensor:
        return z[:, -1].long() if loss is CROSS_ENTROPY else z[:, -1:]

    def values(z: Tensor, theta: Tensor) -> Tensor:
        return loss.samples(model.shared_logits(theta[None], z[:, :-1])[0], target(z))

    def gradient(z: Tensor, theta: Tensor) -> Tensor:
        weights = z.new_full((1, len(z)), 1 / len(z))
        return model.gradient(theta[None], z[None, :, :-1], target(z)[None], weights)[0]

    return SmoothLoss(values, gradient)
