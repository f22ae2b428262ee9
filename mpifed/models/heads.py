"""Parts of a model by what they do: its last layer, what that layer is given, its normalisation.
A ``Derived`` model computes another one on rows made from its own: ``Between`` two models, or
``TwoHeads`` on one body with a loss for each (Chen and Chao 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mpifed.errors import InputError
from mpifed.models.base import Gradient, Model
from mpifed.models.layout import layout_of
from mpifed.models.modules import Builder, ModuleModel

# Layers with running statistics: batch normalisation and its relatives.
BATCH = (nn.modules.batchnorm._NormBase,)

# All layers that normalise.
EVERY = (*BATCH, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.RMSNorm)


def last_layer(model: Model) -> str:
    """Return the name of a model's last layer; ``*`` where the model has one layer."""
    named = getattr(model.network, "last_layer", None) if isinstance(model, ModuleModel) else None
    if isinstance(named, str):
        return named
    trained = [p for p in model.spans() if p.begin < model.n_parameters - model.n_buffers]
    if not trained:
        raise InputError(
            f"the model is a {type(model).__name__}, whose parameters have no names (spans), so "
            "that it has no last layer; allowed: linear, mlp, or a torch module"
        )
    return trained[-1].name.rpartition(".")[0] or "*"


def head_of(model: Model, names: list[str] | None, field: str = "algorithm.head") -> Tensor:
    """Return which numbers of a row are the head."""
    if names is not None:
        return model.mask(names, field)
    head = model.mask([last_layer(model)], field)
    if head.all():
        raise InputError(
            f"{field} is null, the last layer, but the model has no other one, so that clients "
            "would share nothing; use a model with several layers, such as mlp, or name a part of "
            f"this one ({field}=[bias])"
        )
    return head


def representation(model: Model, parameters: Tensor, x: Tensor) -> Tensor:
    """Return the inputs of the last layer, of M copies on the same samples."""
    if not isinstance(model, ModuleModel):
        return model.representation(parameters, x)
    name = last_layer(model)
    with last_inputs(model) as seen:
        model.shared_logits(parameters, x)
    if len(seen) != len(parameters) or any(len(inputs) != len(x) for inputs in seen):
        raise InputError(
            f"the model calls its last layer, '{name}', {len(seen) / len(parameters):g} times for "
            "a batch, or not on samples; name another one in the module's attribute last_layer"
        )
    return torch.stack(seen)


def as_module(model: Model) -> ModuleModel:
    """Return a model whose rows are those of ``model``, and which is a torch module."""
    if isinstance(model, ModuleModel):
        return model
    row = (torch.arange(model.n_parameters) % 2**16).float()
    network = model.module(row)
    parts = [row[:0], *(tensor.detach().flatten() for tensor in network.parameters())]
    if not torch.equal(torch.cat(parts), row):
        raise InputError(
            f"the model is a {type(model).__name__}, which is no torch module; allowed: linear, "
            "mlp, or a torch module"
        )
    builder = Builder(lambda: deepcopy(network), (), torch.float32, 0)
    return ModuleModel(builder, network, layout_of(network), loss=model.loss)


def last_module(model: ModuleModel) -> nn.Module:
    """Return the module of the last layer."""
    name = last_layer(model)
    return model.network if name == "*" else model.network.get_submodule(name)


def last_sizes(model: Model) -> tuple[int, int]:
    """Return how many inputs and outputs the last layer has."""
    layer = last_module(as_module(model))
    if not isinstance(layer, nn.Linear):
        raise InputError(
            f"the last layer of the model is a {type(layer).__name__}; it must be a Linear (a "
            "module names another one in its attribute last_layer)"
        )
    return layer.in_features, layer.out_features


@contextmanager
def last_inputs(model: ModuleModel) -> Iterator[list[Tensor]]:
    """Yield the list of what the last layer is given from now on, call by call."""
    seen = list[Tensor]()
    hook = last_module(model).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        hook.remove()


def normalisation_layers(model: Model, every: bool = False) -> list[str]:
    """Return the names of the normalisation layers that have numbers in a row."""
    if not isinstance(model, ModuleModel):
        return []
    kinds, owners = EVERY if every else BATCH, {p.name.rpartition(".")[0] for p in model.spans()}
    return [
        name
        for name, part in model.network.named_modules()
        if isinstance(part, kinds) and name in owners
    ]


class RowsOfModels(Protocol):
    """What makes one or more rows of a model from a row of other numbers.

    Attributes
    ----------
    inner : Model
        The model.
    size : int
        How many other numbers there are; the buffers of the model come after them.
    """

    inner: Model
    size: int

    def inner_rows(self, rows: Tensor) -> list[Tensor]:
        """Return rows of the inner model, (R, inner.n_parameters) each."""

    def pulled_back(self, rows: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        """Return the gradient in the numbers of a row, from those in each of ``inner_rows``."""


class Derived(Model):
    """A model that another one computes, on one or more rows made from its own."""

    def __init__(self, source: RowsOfModels) -> None:
        inner = source.inner
        self.inner, self._size = inner, source.size
        self.inner_rows, self.pulled_back = source.inner_rows, source.pulled_back
        self.loss, self.deterministic = inner.loss, inner.deterministic
        self.n_buffers, self.same_bits = inner.n_buffers, inner.same_bits
        self.steppings, self.stepping = inner.steppings, inner.stepping
        self.stepping_on_gpu = inner.stepping_on_gpu
        self.lanes, self.scored_together = inner.lanes, inner.scored_together

    @property
    def n_parameters(self) -> int:
        """Numbers in a row, buffers included."""
        return self._size + self.n_buffers

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return zeros: a method makes rows from models."""
        return np.zeros(self.n_parameters)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.inner.logits(self.inner_rows(parameters)[0], x)

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.inner.shared_logits(self.inner_rows(parameters)[0], x)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        gradients = [self.inner.gradient(row, x, y, weights) for row in self.inner_rows(parameters)]
        pulled = self.pulled_back(parameters, gradients)
        return torch.cat([pulled, pulled.new_zeros(len(pulled), self.n_buffers)], 1)

    @contextmanager
    def training(
        self, parameters: Tensor, gradient: Tensor, mask: Tensor | None = None
    ) -> Iterator[Gradient]:
        rows = parameters[None]
        row = self.inner_rows(rows)[0][0].clone()
        trained = len(row) - self.n_buffers
        inner_gradient = row.new_empty(trained)
        with self.inner.training(row, inner_gradient) as compute_inner:

            def compute(x: Tensor, y: Tensor, weights: Tensor) -> None:
                gradients: list[Tensor] = []
                for inner_row in self.inner_rows(rows):
                    row[:trained] = inner_row[0, :trained]
                    buffers = row[trained:].clone()
                    compute_inner(x, y, weights)
                    if gradients:
                        row[trained:] = buffers
                    gradients.append(inner_gradient[None].clone())
                gradient.copy_(self.pulled_back(rows, gradients)[0])

            yield compute
        parameters[self._size :] = row[trained:]


class Between:
    """Models between two others: own + w (other - own) in some numbers, w being trained."""

    def __init__(self, inner: Model, chosen: Tensor) -> None:
        self.chosen = chosen & (torch.arange(len(chosen)) < len(chosen) - inner.n_buffers)
        self.count = int(self.chosen.sum())
        self.inner, self.size = inner, 3 * self.count + inner.n_parameters - inner.n_buffers

    def rows_of(self, weights: Tensor, model: Tensor, other: Tensor) -> Tensor:
        """Return rows."""
        chosen = model[..., self.chosen]
        return torch.cat([weights, chosen, other[..., self.chosen] - chosen, other], -1)

    def inner_rows(self, rows: Tensor) -> list[Tensor]:
        return [self.models_of(rows)]

    def models_of(self, rows: Tensor) -> Tensor:
        """Return the models of rows: (..., n_parameters) to (..., inner.n_parameters)."""
        weights, chosen, difference = rows[..., : 3 * self.count].chunk(3, -1)
        models = rows[..., 3 * self.count :].clone()
        models[..., self.chosen] = chosen + difference * weights
        return models

    def pulled_back(self, rows: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        gradient = rows.new_zeros(len(rows), self.size)
        slopes = gradients[0][:, self.chosen[: gradients[0].shape[1]]]
        gradient[:, : self.count] = slopes * rows[:, 2 * self.count : 3 * self.count]
        return gradient


class TwoHeads:
    """A model with two heads: a row is theta and psi, phi, what is given, and the buffers."""

    def __init__(self, inner: Model) -> None:
        self.trained = inner.n_parameters - inner.n_buffers
        name = last_layer(inner)
        self.head = inner.mask([name])[: self.trained]
        biases = [p for p in inner.spans() if p.name == f"{name}.bias".removeprefix("*.")]
        if not biases:
            raise InputError(
                f"algorithm fedrod adds numbers to the biases of the last layer, '{name}', but it "
                "has none; use a model whose last layer has a bias"
            )
        self.bias, self.count = slice(biases[0].begin, biases[0].end), int(self.head.sum())
        self.outputs = biases[0].end - biases[0].begin
        self.personal, self.n_constants = self.sizes()
        self.inner, self.size = inner, self.trained + self.personal + self.n_constants

    def sizes(self) -> tuple[int, int]:
        """Return how many numbers the personal head is made of, and how many are given."""
        return self.count, self.outputs

    def heads_of(self, personal: Tensor, constants: Tensor) -> Tensor:
        """Return phi, (..., count), from the numbers that it is made of, and those given."""
        return personal

    def pulled_head(self, personal: Tensor, constants: Tensor, slopes: Tensor) -> Tensor:
        """Return the gradient in ``personal``, (R, ...), from that in phi, (R, count)."""
        return slopes

    def rows_of(self, models: Tensor, personal: Tensor, constants: Tensor) -> Tensor:
        """Return rows of generic models (..., P), personal numbers and those given."""
        return torch.cat(
            [models[..., : self.trained], personal, constants, models[..., self.trained :]], -1
        )

    def parts_of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return theta and psi, personal numbers, those given and the buffers."""
        sizes = [self.trained, self.personal, self.n_constants, self.inner.n_buffers]
        model, personal, constants, buffers = rows.split(sizes, -1)
        return model, personal, constants, buffers

    def inner_rows(self, rows: Tensor) -> list[Tensor]:
        model, head, constants, buffers = self.parts_of(rows)
        generic, personal = model.clone(), model.clone()
        generic[..., self.bias] += constants[..., : self.outputs]
        personal[..., self.head] += self.heads_of(head, constants)
        return [torch.cat([trained, buffers], -1) for trained in (generic, personal)]

    def pulled_back(self, rows: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        _, personal, constants, _ = self.parts_of(rows)
        balanced, empirical = (gradient[:, : self.trained] for gradient in gradients)
        of_personal = self.pulled_head(personal, constants, empirical[:, self.head])
        return torch.cat([balanced, of_personal, rows.new_zeros(len(rows), self.n_constants)], -1)


class HyperHeads(TwoHeads):
    """Two heads, of which a perceptron nu makes the personal one from the client's label shares."""

    def __init__(self, inner: Model, width: int) -> None:
        self.width = width
        super().__init__(inner)

    @property
    def labels(self) -> int:
        """Numbers of a: one output tells two labels apart."""
        return max(self.outputs, 2)

    def sizes(self) -> tuple[int, int]:
        hidden, output = self.width * (self.labels + 1), self.count * (self.width + 1)
        return hidden + output, self.outputs + self.labels

    def first(self, generator: np.random.Generator) -> np.ndarray:
        """Draw nu, float64: U and u as torch's linear layers, V and v zero, so that phi is zero."""
        hidden = self.width * (self.labels + 1)
        drawn = generator.uniform(-1, 1, hidden) / math.sqrt(self.labels)
        return np.concatenate([drawn, np.zeros(self.sizes()[0] - hidden)])

    def heads_of(self, personal: Tensor, constants: Tensor) -> Tensor:
        hidden, columns, last = self._layers(personal, constants)
        return _total(hidden[..., None] * columns).add_(last)

    def pulled_head(self, personal: Tensor, constants: Tensor, slopes: Tensor) -> Tensor:
        hidden, columns, _ = self._layers(personal, constants)
        shares = constants[..., -self.labels :]
        inner = (columns * slopes[:, None]).sum(-1) * (hidden > 0)
        first = inner[:, None] * shares[:, :, None]
        outer = hidden[:, :, None] * slopes[:, None]
        return torch.cat([first.flatten(1), inner, outer.flatten(1), slopes], 1)

    def _layers(self, personal: Tensor, constants: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return relu(u + U a), (..., width), the columns of V, (..., width, count), and v."""
        sizes = [self.labels * self.width, self.width, self.width * self.count, self.count]
        first, bias, outer, last = personal.split(sizes, -1)
        columns = first.unflatten(-1, (self.labels, self.width))
        shares = constants[..., -self.labels :]
        hidden = _total(shares[..., None] * columns).add_(bias).clamp_(min=0)
        return hidden, outer.unflatten(-1, (self.width, self.count)), last


def _total(parts: Tensor) -> Tensor:
    """Return the sum over the axis before the last, (..., K, n) to (..., n), entry by entry."""
    while (count := parts.shape[-2]) > 1:
        half = count // 2
        added = parts[..., :half, :] + parts[..., half : 2 * half, :]
        parts = torch.cat([added, parts[..., 2 * half :, :]], -2) if count % 2 else added
    return parts[..., 0, :]
