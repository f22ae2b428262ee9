"""Multi-layer perceptrons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.base import Model
from mpifed.models.losses import CROSS_ENTROPY, Loss, LossName, loss_for
from mpifed.models.stacked import autograd_gradient

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

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

    def logits(
        self, parameters: Float[Tensor, "rows size"], x: Float[Tensor, "rows batch *inputs"]
    ) -> Float[Tensor, "rows batch outputs"]:
        h, start = x.flatten(2), 0
        for layer, (a, b) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            weight = parameters[:, start : start + a * b].unflatten(1, (b, a))
            bias = parameters[:, start + a * b : start + (a + 1) * b]
            start += (a + 1) * b
            if layer:
                h = torch.relu(h) if self.activation == "relu" else torch.tanh(h)
            h = torch.baddbmm(bias.unsqueeze(1), h, weight.transpose(1, 2))
        return h

    def shared_logits(
        self, parameters: Float[Tensor, "models size"], x: Float[Tensor, "batch *inputs"]
    ) -> Float[Tensor, "models batch outputs"]:
        return self.logits(parameters, x.expand(len(parameters), *x.shape))

    def gradient(
        self,
        parameters: Float[Tensor, "rows size"],
        x: Float[Tensor, "rows batch *inputs"],
        y: Shaped[Tensor, "rows batch *targets"],
        weights: Float[Tensor, "rows batch"],
    ) -> Float[Tensor, "rows size"]:
        return autograd_gradient(self.logits, self.loss, parameters, x, y, weights)


def mlp(
    data: Description,
    *,
    hidden: list[Annotated[int, Ge(1)]] | None = None,
    activation: Literal["relu", "tanh"] = "relu",
    loss: LossName = "auto",
    initial: Literal["uniform", "normal"] = "uniform",
) -> Mlp:
    """Multi-layer perceptron.

    Parameters
    ----------
    data : Description
        What the samples are.
    hidden : list of int, optional
        Widths of the hidden layers. None is [64].
    activation : {'relu', 'tanh'}
        Between layers.
    loss : {'auto', 'squared', 'half_squared'}
        Loss of a regression: the mean squared error (auto, squared), or half the sum of squares.
    initial : {'uniform', 'normal'}
        First parameters: uniform on +-1/sqrt(inputs), torch's default, or N(0, 1).
    """
    widths = [64] if hidden is None else hidden
    if len(widths) > MOST_LAYERS:
        raise InputError(f"model.hidden has {len(widths)} layers, above {MOST_LAYERS}")
    sizes = (math.prod(data.input_shape), *widths, data.n_outputs)
    return Mlp(sizes, activation, loss_for(data.task, loss), initial)
