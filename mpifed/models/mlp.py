"""Multi-layer perceptrons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.components.schema import AtLeast
from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.base import Model
from mpifed.models.losses import CROSS_ENTROPY, Loss, LossName, loss_for
from mpifed.models.stacked import autograd_gradient

MOST_LAYERS = 1000
"""Hidden layers at most: nothing is learnt through more without connections that skip some."""


@dataclass(frozen=True)
class Mlp(Model):
    """Layers of ``sizes`` [inputs, hidden ..., outputs]; parameters are W, b of each layer in
    order.
    """

    sizes: tuple[int, ...]
    activation: Literal["relu", "tanh"] = "relu"
    loss: Loss = CROSS_ENTROPY
    initial: Literal["uniform", "normal"] = "uniform"

    @property
    def n_parameters(self) -> int:
        return sum((a + 1) * b for a, b in zip(self.sizes, self.sizes[1:], strict=False))

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Each layer uniform on +-1/sqrt(its inputs), torch's default for a linear layer.

        ``initial: normal`` draws every number from N(0, 1) (Gasanov et al. 2021, published code).
        """
        if self.initial == "normal":
            return generator.standard_normal(self.n_parameters)
        layers = zip(self.sizes, self.sizes[1:], strict=False)
        return np.concatenate(
            [generator.uniform(-1, 1, (a + 1) * b) / math.sqrt(a) for a, b in layers]
        )

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        h, start = x.flatten(2), 0
        for layer, (a, b) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            weight = parameters[:, start : start + a * b].unflatten(1, (b, a))
            bias = parameters[:, start + a * b : start + (a + 1) * b]
            start += (a + 1) * b
            if layer:
                h = torch.relu(h) if self.activation == "relu" else torch.tanh(h)
            h = torch.baddbmm(bias.unsqueeze(1), h, weight.transpose(1, 2))
        return h

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.logits(parameters, x.expand(len(parameters), *x.shape))

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return autograd_gradient(self.logits, self.loss, parameters, x, y, weights)


def mlp(
    data: Description,
    *,
    hidden: list[Annotated[int, AtLeast(1)]] | None = None,
    activation: Literal["relu", "tanh"] = "relu",
    loss: LossName = "auto",
    initial: Literal["uniform", "normal"] = "uniform",
) -> Mlp:
    """Multi-layer perceptron; ``hidden`` lists the widths (default: [64])."""
    widths = [64] if hidden is None else hidden
    if len(widths) > MOST_LAYERS:
        raise InputError(f"model.hidden has {len(widths)} layers, above {MOST_LAYERS}")
    sizes = (math.prod(data.input_shape), *widths, data.n_outputs)
    return Mlp(sizes, activation, loss_for(data.task, loss), initial)
