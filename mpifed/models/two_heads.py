"""Models with two linear heads on one body, and a loss for each (Chen and Chao 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mpifed.errors import InputError
from mpifed.models.base import Model
from mpifed.models.derived import Derived
from mpifed.models.heads import last_layer


class TwoHeads(Derived):
    """A model with two heads: a row is theta and psi, phi, log n, and the buffers.

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
        super().__init__(inner, self.trained + self.count + self.outputs)

    def rows_of(self, models: Tensor, heads: Tensor, priors: Tensor) -> Tensor:
        """Return rows of generic models (..., P), personal heads and log n, (..., outputs)."""
        return torch.cat(
            [models[..., : self.trained], heads, priors, models[..., self.trained :]], -1
        )

    def parts_of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return theta and psi, phi, log n and the buffers, each (..., numbers)."""
        sizes = [self.trained, self.count, self.outputs, self.n_buffers]
        model, head, prior, buffers = rows.split(sizes, -1)
        return model, head, prior, buffers

    def inner_rows(self, rows: Tensor) -> list[Tensor]:
        model, head, prior, buffers = self.parts_of(rows)
        generic, personal = model.clone(), model.clone()
        generic[..., self.bias] += prior
        personal[..., self.head] += head
        return [torch.cat([found, buffers], -1) for found in (generic, personal)]

    def pulled_back(self, rows: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        balanced, empirical = (found[:, : self.trained] for found in gradients)
        none = rows.new_zeros(len(rows), self.outputs)
        return torch.cat([balanced, empirical[:, self.head], none], -1)
