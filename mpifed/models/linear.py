"""Linear models: logistic, softmax and least-squares regression, one sigmoid for each tag."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Description
from mpifed.models.base import Model
from mpifed.models.losses import CROSS_ENTROPY, Loss, LossName, loss_for


@dataclass(frozen=True)
class Linear(Model):
    """logits = W x + b; parameters are W (outputs x inputs, row by row), then b (outputs)."""

    n_inputs: int
    n_outputs: int
    bias: bool = True
    loss: Loss = CROSS_ENTROPY

    @property
    def n_parameters(self) -> int:
        return self.n_outputs * (self.n_inputs + self.bias)

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Uniform on +-1/sqrt(inputs), torch's default for a linear layer."""
        return generator.uniform(-1, 1, self.n_parameters) / math.sqrt(self.n_inputs)

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """W (R, outputs, inputs) and b (R, outputs, 1); b has no rows of its own without bias."""
        size = self.n_outputs * self.n_inputs
        weight = parameters[:, :size].view(-1, self.n_outputs, self.n_inputs)
        return weight, parameters[:, size:].unsqueeze(-1)

    def _outputs(self, parameters: Tensor, x: Tensor) -> Tensor:
        """W x + b as (R, outputs, B), for flat inputs (R, B, inputs)."""
        # W xᵀ rather than x Wᵀ: with one output the kernel of the latter is half as fast.
        weight, bias = self._split(parameters)
        z = torch.bmm(weight, x.transpose(1, 2))
        return z.add_(bias) if self.bias else z

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self._outputs(parameters, x.flatten(2)).transpose(1, 2)

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        weight, bias = self._split(parameters)
        z = torch.mm(weight.flatten(0, 1), x.flatten(1).T).view(*weight.shape[:2], len(x))
        if self.bias:
            z += bias
        return z.transpose(1, 2)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        x = x.flatten(2)
        z = self._outputs(parameters, x)
        if self.n_outputs == 1 and self.loss is CROSS_ENTROPY:
            slopes = torch.sigmoid_(z).sub_(y.unsqueeze(1))
        else:
            slopes = self.loss.slopes(z.transpose(1, 2), y).transpose(1, 2)
        slopes *= weights.unsqueeze(1)
        parts = [torch.bmm(slopes, x).flatten(1)]
        if self.bias:
            parts.append(slopes.sum(-1))
        return torch.cat(parts, 1)


def linear(data: Description, *, bias: bool = True, loss: LossName = "auto") -> Linear:
    """Linear predictor: logistic (two classes), softmax, multi-label or least-squares regression.

    ``loss`` of a regression: the mean squared error (auto), or half the sum of squares.
    """
    kind = loss_for(data.task, loss)
    return Linear(math.prod(data.input_shape), data.n_outputs, bias, kind)
