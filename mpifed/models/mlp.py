"""Multi-layer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from mpifed.data.base import Description
from mpifed.models.base import Model, RowGradients
from mpifed.models.layout import Span, filled, spans_of
from mpifed.models.linear import subtract_products
from mpifed.models.loss import Loss
from mpifed.models.losses import CROSS_ENTROPY, LossName, check_numbers, loss_for


@dataclass(frozen=True)
class Mlp(Model):
    """Dense layers with an activation between them; parameters are W, b of each layer in order."""

    sizes: tuple[int, ...]
    activation: Literal["relu", "tanh"] = "relu"
    loss: Loss = CROSS_ENTROPY
    initial: Literal["uniform", "normal"] = "uniform"
    lanes = 2

    @property
    def n_parameters(self) -> int:
        """Number of weights and biases of all layers."""
        return sum((a + 1) * b for a, b in zip(self.sizes, self.sizes[1:], strict=False))

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Draw each layer uniformly from +-1/sqrt(its inputs), torch's default for a linear layer.
        ``initial: normal`` draws every number from N(0, 1) (Gasanov et al. 2021, published code).
        float64 (n_parameters,).
        """
        if self.initial == "normal":
            return generator.standard_normal(self.n_parameters)
        layers = zip(self.sizes, self.sizes[1:], strict=False)
        return np.concatenate(
            [generator.uniform(-1, 1, (a + 1) * b) / math.sqrt(a) for a, b in layers]
        )

    @property
    def single_rows(self) -> bool:  # type: ignore[override]
        """Not with layers of one number, whose products alone have another kernel."""
        return min(self.sizes[1:]) > 1

    def spans(self) -> tuple[Span, ...]:
        """Return the spans of ``layers.K.weight`` and ``layers.K.bias``, K from 0."""
        tensors: list[tuple[str, tuple[int, ...]]] = []
        for layer, (a, b) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            tensors += [(f"layers.{layer}.weight", (b, a)), (f"layers.{layer}.bias", (b,))]
        return spans_of(tensors)

    def _layers(self, parameters: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """W (R, outputs, inputs) and b (R, outputs) of each layer, as views."""
        start = 0
        for a, b in zip(self.sizes, self.sizes[1:], strict=False):
            end = start + a * b
            yield parameters[:, start:end].view(-1, b, a), parameters[:, end : end + b]
            start = end + b

    def _activations(self, layers: Iterable[tuple[Tensor, Tensor]], x: Tensor) -> list[Tensor]:
        """The inputs of every layer, then the outputs: (R, B, width) each."""
        activations = [x]
        for layer, (weight, bias) in enumerate(layers):
            h = activations[-1]
            if layer:
                self._activate(h)
            activations.append(torch.baddbmm(bias.unsqueeze(1), h, weight.transpose(1, 2)))
        return activations

    def _activate(self, h: Tensor) -> Tensor:
        """``h`` behind the function between layers, in place."""
        return torch.relu_(h) if self.activation == "relu" else torch.tanh_(h)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self._activations(self._layers(parameters), x.flatten(2))[-1]

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.logits_of_parts(parameters, x, [len(x)])

    def logits_of_parts(self, parameters: Tensor, x: Tensor, sizes: Sequence[int]) -> Tensor:
        (weight, bias), *layers = self._layers(parameters)
        # The first layers of all models side by side: one product reads each sample once.
        together, shifts = weight.flatten(0, 1).T, bias.flatten()
        outputs = []
        for part in x.flatten(1).split(list(sizes)):
            h = torch.addmm(shifts, part, together).unflatten(1, bias.shape).transpose(0, 1)
            for deeper, shift in layers:
                self._activate(h)
                h = torch.baddbmm(shift.unsqueeze(1), h, deeper.transpose(1, 2))
            outputs.append(h)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    def gradient(
        self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor, lowest: int = 0
    ) -> Tensor:
        """Return the gradient; see ``Model.gradient``."""
        gradient = torch.zeros_like(parameters) if lowest else torch.empty_like(parameters)
        layers, by_layer = list(self._layers(parameters)), list(self._layers(gradient))
        for number, slopes, h in self._backwards(layers, x, y, weights, lowest):
            by_weight, by_bias = by_layer[number]
            torch.bmm(slopes.transpose(1, 2), h, out=by_weight)
            torch.sum(slopes, 1, out=by_bias)
        return gradient

    def descend(
        self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor, rates: Tensor
    ) -> None:
        layers = list(self._layers(parameters))
        for number, slopes, h in self._backwards(layers, x, y, weights * rates):
            weight, bias = layers[number]
            subtract_products(weight, slopes.transpose(1, 2), h)
            bias -= slopes.sum(1)

    def _backwards(
        self,
        layers: list[tuple[Tensor, Tensor]],
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        lowest: int = 0,
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield, from the last layer to the lowest, its number, the weighted derivatives of the
        losses by its outputs, and its inputs. A layer is read before it is yielded.
        """
        *inputs, outputs = self._activations(layers, x.flatten(2))
        slopes = self.loss.slopes_of_rows(outputs, y) * weights.unsqueeze(-1)
        for number in range(len(layers) - 1, lowest - 1, -1):
            h, (weight, _) = inputs[number], layers[number]
            below = torch.bmm(slopes, weight) if number > lowest else slopes
            yield number, slopes, h
            if number > lowest:
                # The sign of what relu gives is its derivative, and quicker than ``h > 0``.
                slopes = below.mul_(h.sign() if self.activation == "relu" else 1 - h.square())

    def gradient_within(self, mask: Tensor) -> RowGradients:
        sizes = [(a + 1) * b for a, b in zip(self.sizes, self.sizes[1:], strict=False)]
        trained = [bool(part.any()) for part in mask.split(sizes)]
        return partial(self.gradient, lowest=trained.index(True)) if any(trained) else self.gradient

    def representation(self, parameters: Tensor, x: Tensor) -> Tensor:
        if len(self.sizes) == 2:
            return x.flatten(1).expand(len(parameters), -1, -1)
        below = Mlp(self.sizes[:-1], self.activation)
        return self._activate(below.shared_logits(parameters[:, : below.n_parameters], x))

    def module(self, parameters: Tensor) -> nn.Module:
        """Return one copy as ``Sequential(Flatten, Linear, ReLU, ..., Linear)``."""

        def build() -> nn.Module:
            between = nn.ReLU if self.activation == "relu" else nn.Tanh
            layers: list[nn.Module] = [nn.Flatten()]
            for a, b in zip(self.sizes, self.sizes[1:], strict=False):
                layers += [nn.Linear(a, b), between()]
            return nn.Sequential(*layers[:-1])

        return filled(build, parameters)


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
    check_numbers(data, "mlp")
    widths = [64] if hidden is None else hidden
    sizes = (math.prod(data.input_shape), *widths, data.n_outputs)
    return Mlp(sizes, activation, loss_for(data.task, loss), initial)
