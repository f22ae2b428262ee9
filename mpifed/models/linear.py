"""Linear models: logistic, softmax and least-squares regression, one sigmoid for each tag."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mpifed.data.base import Description
from mpifed.models.base import Model
from mpifed.models.layout import Span, filled, spans_of
from mpifed.models.loss import Loss, in_lanes
from mpifed.models.losses import CROSS_ENTROPY, LossName, check_numbers, loss_for

# Outputs of all copies, but for a single one, up to which x Wᵀ is faster than W xᵀ.
FEW_ROWS = 6

# Numbers of a copy's matrix from which a product is subtracted as it is computed, copy by copy;
# smaller ones are computed together first.
LARGE = 1 << 12


def subtract_products(matrices: Tensor, left: Tensor, right: Tensor) -> None:
    """Subtract ``left @ right`` from matrices (R, outputs, inputs), in place."""
    if matrices[0].numel() < LARGE:
        matrices -= torch.bmm(left, right)
    else:
        matrices.baddbmm_(left, right, alpha=-1)


@dataclass(frozen=True)
class Linear(Model):
    """logits = W x + b; parameters are W (outputs x inputs, row by row), then b (outputs)."""

    n_inputs: int
    n_outputs: int
    bias: bool = True
    loss: Loss = CROSS_ENTROPY
    single_rows = True
    lanes = 2

    @property
    def n_parameters(self) -> int:
        """Number of entries of W and b."""
        return self.n_outputs * (self.n_inputs + self.bias)

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Draw uniformly from +-1/sqrt(inputs), torch's default for linear layers: float64 (P,)."""
        return generator.uniform(-1, 1, self.n_parameters) / math.sqrt(self.n_inputs)

    def spans(self) -> tuple[Span, ...]:
        """Return the spans of ``weight`` and ``bias``."""
        bias = [("bias", (self.n_outputs,))] if self.bias else []
        return spans_of([("weight", (self.n_outputs, self.n_inputs)), *bias])

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """W (R, outputs, inputs) and b (R, outputs, 1); b is (R, 0, 1) without bias."""
        size = self.n_outputs * self.n_inputs
        weight = parameters[:, :size].view(-1, self.n_outputs, self.n_inputs)
        return weight, parameters[:, size:].unsqueeze(-1)

    def _outputs(self, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        """W x + b as (R, outputs, B), for flat inputs (R, B, inputs)."""
        # W xᵀ rather than x Wᵀ: with one output the kernel of the latter is half as fast.
        z = torch.bmm(weight, x.transpose(1, 2))
        return z.add_(bias) if self.bias else z

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self._outputs(*self._split(parameters), x.flatten(2)).transpose(1, 2)

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.logits_of_parts(parameters, x, [len(x)])

    def logits_of_parts(self, parameters: Tensor, x: Tensor, sizes: Sequence[int]) -> Tensor:
        weight, bias = self._split(parameters)
        rows, flat, parts = weight.flatten(0, 1), x.flatten(1), list(sizes)
        if 1 < len(rows) <= FEW_ROWS:
            products = torch.cat(
                [torch.mm(part, rows.T) for part in flat.split(parts)]
            ).T.contiguous()
        else:
            products = torch.cat([torch.mm(rows, part) for part in flat.T.split(parts, 1)], 1)
        z = products.unflatten(0, weight.shape[:2])
        if self.bias:
            z += bias
        return z.transpose(1, 2)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        x = x.flatten(2)
        slopes = self._slopes(*self._split(parameters), x, y, weights)
        parts = [torch.bmm(slopes, x).flatten(1)]
        if self.bias:
            parts.append(slopes.sum(-1))
        return torch.cat(parts, 1)

    def descend(
        self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor, rates: Tensor
    ) -> None:
        x = x.flatten(2)
        weight, bias = self._split(parameters)
        slopes = self._slopes(weight, bias, x, y, weights * rates)
        subtract_products(weight, slopes, x)
        if self.bias:
            bias -= slopes.sum(-1, keepdim=True)

    def _slopes(
        self, weight: Tensor, bias: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> Tensor:
        """Weighted derivatives of the losses by the outputs, (R, outputs, B)."""
        z = self._outputs(weight, bias, x)
        if self.n_outputs == 1 and self.loss is CROSS_ENTROPY:
            slopes = torch.sigmoid_(in_lanes(z, 2))[..., : y.shape[1]].sub_(y.unsqueeze(1))
        else:
            slopes = self.loss.slopes_of_rows(z.transpose(1, 2), y).transpose(1, 2)
        slopes *= weights.unsqueeze(1)
        return slopes

    def representation(self, parameters: Tensor, x: Tensor) -> Tensor:
        return x.flatten(1).expand(len(parameters), -1, -1)

    def module(self, parameters: Tensor) -> nn.Module:
        """Return one copy as ``Sequential(Flatten, Linear)``; see ``Model.module``."""

        def build() -> nn.Module:
            return nn.Sequential(
                nn.Flatten(), nn.Linear(self.n_inputs, self.n_outputs, bias=self.bias)
            )

        return filled(build, parameters)


def linear(data: Description, *, bias: bool = True, loss: LossName = "auto") -> Linear:
    """Linear predictor: logistic, softmax, multi-label or least-squares regression.

    Parameters
    ----------
    data : Description
        What the samples are.
    bias : bool
        Whether each output has a bias.
    loss : {'auto', 'squared', 'half_squared'}
        Loss of a regression: the mean squared error (auto, squared), or half the sum of squares.
    """
    check_numbers(data, "linear")
    kind = loss_for(data.task, loss)
    return Linear(math.prod(data.input_shape), data.n_outputs, bias, kind)
