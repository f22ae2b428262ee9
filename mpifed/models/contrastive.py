"""The model-contrastive loss of MOON (Li, He and Song 2021, eqs. 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from mpifed.models.base import Gradient, Model
from mpifed.models.heads import as_module, last_inputs, representation


class Contrastive(Model):
    """A network that learns beside two fixed ones, ``mu`` and ``tau`` being the paper's.

    A row is its own, then those of the model to be near and of the one to be away from. These are
    among the buffers, which have no moments.
    """

    steppings = ("one_by_one",)
    stepping = stepping_on_gpu = "one_by_one"
    same_bits = False

    def __init__(self, model: Model, mu: float, tau: float) -> None:
        self.mu, self.tau, self.size = mu, tau, model.n_parameters
        own = as_module(model)
        self.loss, self.n_buffers = own.loss, own.n_buffers + 2 * self.size
        self.others = replace(own, network=deepcopy(own.network))
        self.seen: tuple[list[Tensor], Tensor] = [], torch.empty(0)
        self.own = replace(own, loss=replace(own.loss, samples=self._samples))

    @property
    def n_parameters(self) -> int:
        """Numbers of three models."""
        return 3 * self.size

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return zeros: a method makes rows from models."""
        return np.zeros(self.n_parameters)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.others.logits(parameters[:, : self.size], x)

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.others.shared_logits(parameters[:, : self.size], x)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        found = torch.zeros_like(parameters)
        for row, out, *batch in zip(parameters, found, x, y, weights, strict=True):
            with self.training(row.clone(), out[: len(row) - self.n_buffers]) as compute:
                compute(*batch)
        return found

    @contextmanager
    def training(
        self, parameters: Tensor, gradient: Tensor, mask: Tensor | None = None
    ) -> Iterator[Gradient]:
        own, others = parameters[: self.size], parameters[self.size :].view(2, self.size)
        with (
            last_inputs(self.own) as own_seen,
            self.own.training(own, gradient, mask) as supervised,
        ):

            def compute(x: Tensor, y: Tensor, weights: Tensor) -> None:
                own_seen.clear()
                self.seen = own_seen, representation(self.others, others, x)
                supervised(x, y, weights)

            yield compute

    def _samples(self, outputs: Tensor, y: Tensor) -> Tensor:
        """l_sup + mu l_con of each sample."""
        (z,), others = self.seen
        nearness = cosine_similarity(z.flatten(1)[None], others.flatten(2).to(z), dim=-1)
        first = torch.zeros(len(z), dtype=torch.int64, device=z.device)
        contrast = cross_entropy(nearness.T / self.tau, first, reduction="none")
        return self.loss.samples(outputs, y) + self.mu * contrast
