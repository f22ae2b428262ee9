"""Models whose rows hold other numbers than those of the model that computes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mpifed.models.base import Gradient, Model

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


class Derived(Model):
    """A model that another one computes, on one or more rows made from its own.

    Local steps then move whatever a method has gradients for: weights between two models, or two
    heads with a loss each. The buffers of the inner model come last in a row, as everywhere.

    Parameters
    ----------
    inner : Model
        What computes.
    size : int
        Numbers in a row without buffers.

    Attributes
    ----------
    inner : Model
        What computes.
    """

    def __init__(self, inner: Model, size: int) -> None:
        self.inner, self._size = inner, size
        self.loss, self.deterministic = inner.loss, inner.deterministic
        self.n_buffers, self.same_bits = inner.n_buffers, inner.same_bits
        self.steppings, self.stepping = inner.steppings, inner.stepping
        self.stepping_on_gpu = inner.stepping_on_gpu
        self.scored_together = inner.scored_together

    @property
    def n_parameters(self) -> int:
        """Numbers in a row, buffers included."""
        return self._size + self.n_buffers

    @abstractmethod
    def inner_rows(self, rows: Float[Tensor, "rows size"]) -> list[Tensor]:
        """Return rows of the inner model, (R, inner.n_parameters) each.

        The first of them is what the model predicts with, and what moves buffers.
        """

    @abstractmethod
    def pulled_back(
        self, rows: Float[Tensor, "rows size"], gradients: Sequence[Tensor]
    ) -> Float[Tensor, "rows trained"]:
        """Return the gradient in the numbers of a row, from those in each of ``inner_rows``.

        Parameters
        ----------
        rows : Tensor
            (R, n_parameters).
        gradients : sequence of Tensor
            One for each of ``inner_rows``, (R, at least its numbers without buffers).

        Returns
        -------
        Tensor
            (R, n_parameters - n_buffers).
        """

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return zeros: a method makes rows from models."""
        return np.zeros(self.n_parameters)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.inner.logits(self.inner_rows(parameters)[0], x)

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.inner.shared_logits(self.inner_rows(parameters)[0], x)

    def gradient(
        self,
        parameters: Float[Tensor, "rows size"],
        x: Float[Tensor, "rows batch *inputs"],
        y: Shaped[Tensor, "rows batch *targets"],
        weights: Float[Tensor, "rows batch"],
    ) -> Float[Tensor, "rows size"]:
        found = [self.inner.gradient(row, x, y, weights) for row in self.inner_rows(parameters)]
        pulled = self.pulled_back(parameters, found)
        return torch.cat([pulled, pulled.new_zeros(len(pulled), self.n_buffers)], 1)

    @contextmanager
    def training(
        self, parameters: Tensor, gradient: Tensor, mask: Tensor | None = None
    ) -> Iterator[Gradient]:
        own = parameters[None]
        row = self.inner_rows(own)[0][0].clone()
        trained = len(row) - self.n_buffers
        found = row.new_empty(trained)
        with self.inner.training(row, found) as compute_inner:

            def compute(x: Tensor, y: Tensor, weights: Tensor) -> None:
                gradients: list[Tensor] = []
                for wanted in self.inner_rows(own):
                    row[:trained] = wanted[0, :trained]
                    buffers = row[trained:].clone()
                    compute_inner(x, y, weights)
                    if gradients:
                        row[trained:] = buffers
                    gradients.append(found[None].clone())
                gradient.copy_(self.pulled_back(own, gradients)[0])

            yield compute
        parameters[self._size :] = row[trained:]


class Between(Derived):
    """Models between two others: own + w (other - own) in some numbers, w being trained.

    A row is w, own and (other - own) of these numbers, then a whole row of the inner model, which
    has the other numbers and the buffers.

    Parameters
    ----------
    inner : Model
        What computes.
    chosen : Tensor
        Which of its numbers w weighs, bool (inner.n_parameters,); buffers are left out.
    """

    def __init__(self, inner: Model, chosen: Tensor) -> None:
        self.chosen = chosen & (torch.arange(len(chosen)) < len(chosen) - inner.n_buffers)
        self.count = int(self.chosen.sum())
        super().__init__(inner, 3 * self.count + inner.n_parameters - inner.n_buffers)

    def rows_of(self, weights: Tensor, own: Tensor, other: Tensor) -> Tensor:
        """Return rows.

        Parameters
        ----------
        weights : Tensor
            w, (..., count).
        own, other : Tensor
            Rows of the inner model, (..., inner.n_parameters).
        """
        kept = own[..., self.chosen]
        return torch.cat([weights, kept, other[..., self.chosen] - kept, other], -1)

    def inner_rows(self, rows: Float[Tensor, "rows size"]) -> list[Tensor]:
        return [self.models_of(rows)]

    def models_of(self, rows: Tensor) -> Tensor:
        """Return the models of rows: (..., n_parameters) to (..., inner.n_parameters)."""
        weights, own, difference = rows[..., : 3 * self.count].chunk(3, -1)
        found = rows[..., 3 * self.count :].clone()
        found[..., self.chosen] = own + difference * weights
        return found

    def pulled_back(
        self, rows: Float[Tensor, "rows size"], gradients: Sequence[Tensor]
    ) -> Float[Tensor, "rows trained"]:
        found = rows.new_zeros(len(rows), self.n_parameters - self.n_buffers)
        slopes = gradients[0][:, self.chosen[: gradients[0].shape[1]]]
        found[:, : self.count] = slopes * rows[:, 2 * self.count : 3 * self.count]
        return found
