"""Models with two linear heads on one body, and a loss for each (Chen and Chao 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import InputError
from mpifed.models.base import Model
from mpifed.models.derived import Derived
from mpifed.models.heads import last_layer


class TwoHeads(Derived):
    """A model with two heads: a row is theta and psi, phi, what is given, and the buffers.

    What is given begins with log n.

    Parameters
    ----------
    inner : Model
        A model whose last layer is linear, with a bias for each output.
    """

    def __init__(self, inner: Model) -> None:
        self.trained = inner.n_parameters - inner.n_buffers
        name = last_layer(inner)
        self.head = inner.mask([name])[: self.trained]
        biases = [p for p in inner.places() if p.name == f"{name}.bias".removeprefix("*.")]
        if not biases:
            raise InputError(
                f"algorithm fedrod adds numbers to the biases of the last layer, '{name}', but it "
                "has none; use a model whose last layer has a bias"
            )
        self.bias, self.count = slice(biases[0].begin, biases[0].end), int(self.head.sum())
        self.outputs = biases[0].end - biases[0].begin
        self.personal, self.given = self.sizes()
        super().__init__(inner, self.trained + self.personal + self.given)

    def sizes(self) -> tuple[int, int]:
        """Return how many numbers the personal head is made of, and how many are given."""
        return self.count, self.outputs

    def heads_of(self, personal: Tensor, given: Tensor) -> Tensor:
        """Return phi, (..., count), from the numbers that it is made of, and those given.

        Of the latter the last ones are enough, without log n.
        """
        return personal

    def pulled_head(self, personal: Tensor, given: Tensor, slopes: Tensor) -> Tensor:
        """Return the gradient in ``personal``, (R, ...), from that in phi, (R, count)."""
        return slopes

    def rows_of(self, models: Tensor, personal: Tensor, given: Tensor) -> Tensor:
        """Return rows of generic models (..., P), personal numbers and those given."""
        return torch.cat(
            [models[..., : self.trained], personal, given, models[..., self.trained :]], -1
        )

    def parts_of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return theta and psi, personal numbers, those given and the buffers."""
        sizes = [self.trained, self.personal, self.given, self.n_buffers]
        model, personal, given, buffers = rows.split(sizes, -1)
        return model, personal, given, buffers

    def inner_rows(self, rows: Tensor) -> list[Tensor]:
        model, head, given, buffers = self.parts_of(rows)
        generic, personal = model.clone(), model.clone()
        generic[..., self.bias] += given[..., : self.outputs]
        personal[..., self.head] += self.heads_of(head, given)
        return [torch.cat([found, buffers], -1) for found in (generic, personal)]

    def pulled_back(self, rows: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        _, personal, given, _ = self.parts_of(rows)
        balanced, empirical = (found[:, : self.trained] for found in gradients)
        own = self.pulled_head(personal, given, empirical[:, self.head])
        return torch.cat([balanced, own, rows.new_zeros(len(rows), self.given)], -1)


class HyperHeads(TwoHeads):
    """Two heads, of which a perceptron nu makes the personal one from the client's label shares:

        phi = v + V relu(u + U a)

    A row has nu = (U, u, V, v) in place of phi; given are log n and a. All is computed entry by
    entry, so that a row's numbers do not depend on the other rows.

    Parameters
    ----------
    inner : Model
        As for ``TwoHeads``.
    width : int
        Numbers of the perceptron's hidden layer.
    """

    def __init__(self, inner: Model, width: int) -> None:
        self.width = width
        super().__init__(inner)

    @property
    def labels(self) -> int:
        """Numbers of a: one output tells two labels apart."""
        return max(self.outputs, 2)

    def sizes(self) -> tuple[int, int]:
        hidden, made = self.width * (self.labels + 1), self.count * (self.width + 1)
        return hidden + made, self.outputs + self.labels

    def first(self, generator: np.random.Generator) -> np.ndarray:
        """Draw nu, float64: U and u as torch's linear layers, V and v zero, so that phi is zero."""
        hidden = self.width * (self.labels + 1)
        drawn = generator.uniform(-1, 1, hidden) / math.sqrt(self.labels)
        return np.concatenate([drawn, np.zeros(self.sizes()[0] - hidden)])

    def heads_of(self, personal: Tensor, given: Tensor) -> Tensor:
        hidden, columns, last = self._layers(personal, given)
        return _total(hidden[..., None] * columns).add_(last)

    def pulled_head(self, personal: Tensor, given: Tensor, slopes: Tensor) -> Tensor:
        hidden, columns, _ = self._layers(personal, given)
        shares = given[..., -self.labels :]
        inner = (columns * slopes[:, None]).sum(-1) * (hidden > 0)
        first = inner[:, None] * shares[:, :, None]
        made = hidden[:, :, None] * slopes[:, None]
        return torch.cat([first.flatten(1), inner, made.flatten(1), slopes], 1)

    def _layers(self, personal: Tensor, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return relu(u + U a), (..., width), the columns of V, (..., width, count), and v."""
        sizes = [self.labels * self.width, self.width, self.width * self.count, self.count]
        first, bias, made, last = personal.split(sizes, -1)
        columns = first.unflatten(-1, (self.labels, self.width))
        shares = given[..., -self.labels :]
        hidden = _total(shares[..., None] * columns).add_(bias).clamp_(min=0)
        return hidden, made.unflatten(-1, (self.width, self.count)), last


def _total(parts: Tensor) -> Tensor:
    """Return the sum over the axis before the last, (..., K, n) to (..., n), entry by entry."""
    while (count := parts.shape[-2]) > 1:
        half = count // 2
        added = parts[..., :half, :] + parts[..., half : 2 * half, :]
        parts = torch.cat([added, parts[..., 2 * half :, :]], -2) if count % 2 else added
    return parts[..., 0, :]
