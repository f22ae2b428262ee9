"""Negative log-likelihoods of labels under logits, element by element.

Each is written so that a CPU computes it alike at any position in a tensor; see ``losses``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid(z: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-z)); overflow of exp gives the right limit, 0."""
    return 1 / (1 + torch.exp(-z))


def logistic(z: Tensor, y: Tensor) -> Tensor:
    """Return -log of the probability that a logit ``z`` gives to ``y`` in {0, 1}; elementwise.

    Examples
    --------
    >>> logistic(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([0.6931])
    """
    return z.clamp(min=0) - z * y + torch.log1p(torch.exp(-z.abs()))


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Return -log p(y | x) of each sample: (..., B, outputs) and (..., B) to (..., B)."""
    if outputs.shape[-1] == 1:
        return logistic(outputs[..., 0], y)
    return -torch.log_softmax(outputs, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def cross_entropy_slopes(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the derivative of ``cross_entropy`` in the outputs, shape of ``outputs``."""
    if outputs.shape[-1] == 1:
        return sigmoid(outputs) - y.unsqueeze(-1)
    slopes = torch.softmax(outputs, -1)
    return slopes.scatter_add(-1, y.unsqueeze(-1), torch.full_like(slopes[..., :1], -1))
