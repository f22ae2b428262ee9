"""Networks whose loss depends on their representations, and on what else a client was given."""

from __future__ import annotations

from abc import abstractmethod
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


class RepresentationLoss(Model):
    """A network with a term of its loss in the inputs of its last layer.

    A row is the network's, then numbers that are given. These are among the buffers, so that they
    have no moments, and that clients step one by one.
    """

    steppings = ("one_by_one",)
    stepping = stepping_on_gpu = "one_by_one"
    same_bits = False

    def __init__(self, model: Model, n_constants: int) -> None:
        self.inner, module, self.size = model, as_module(model), model.n_parameters
        self.loss, self.n_buffers = module.loss, module.n_buffers + n_constants
        self._n_parameters = self.size + n_constants
        self._seen, self._references = list[Tensor](), torch.empty(0)
        self.inner_module = replace(module, loss=replace(module.loss, samples=self._samples))

    @abstractmethod
    def term(self, z: Tensor, references: Tensor, y: Tensor) -> Tensor:
        """Return the term for each sample, (B,), with its representation (B, h)."""

    def references(self, constants: Tensor, x: Tensor) -> Tensor:
        """Return what ``term`` gets of the numbers that are given, for a minibatch."""
        return constants

    @property
    def n_parameters(self) -> int:
        """Numbers of the network, and those given."""
        return self._n_parameters

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return zeros: a method makes rows from models."""
        return np.zeros(self.n_parameters)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.inner.logits(parameters[:, : self.size], x)

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.inner.shared_logits(parameters[:, : self.size], x)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        gradients = torch.zeros_like(parameters)
        for row, out, *batch in zip(parameters, gradients, x, y, weights, strict=True):
            with self.training(row.clone(), out[: len(row) - self.n_buffers]) as compute:
                compute(*batch)
        return gradients

    @contextmanager
    def training(
        self, parameters: Tensor, gradient: Tensor, mask: Tensor | None = None
    ) -> Iterator[Gradient]:
        model, constants = parameters[: self.size], parameters[self.size :]
        with (
            last_inputs(self.inner_module) as self._seen,
            self.inner_module.training(model, gradient, mask) as supervised,
        ):

            def compute(x: Tensor, y: Tensor, weights: Tensor) -> None:
                self._seen.clear()
                self._references = self.references(constants, x)
                supervised(x, y, weights)

            yield compute

    def _samples(self, outputs: Tensor, y: Tensor) -> Tensor:
        (z,) = self._seen
        term = self.term(z.flatten(1).to(outputs.dtype), self._references, y)
        return self.loss.samples(outputs, y) + term


class Contrastive(RepresentationLoss):
    """MOON's network (Li, He and Song 2021, eqs. 3 and 4), with the weight mu of the contrast.

    What is given are the models to be near and to be away from.
    """

    def __init__(self, model: Model, mu: float, tau: float) -> None:
        super().__init__(model, 2 * model.n_parameters)
        self.mu, self.tau = mu, tau
        self.others = replace(
            self.inner_module, network=deepcopy(self.inner_module.network), loss=self.loss
        )

    def references(self, constants: Tensor, x: Tensor) -> Tensor:
        return representation(self.others, constants.view(2, self.size), x).flatten(2)

    def term(self, z: Tensor, references: Tensor, y: Tensor) -> Tensor:
        nearness = cosine_similarity(z[None], references, dim=-1)
        first = torch.zeros(len(z), dtype=torch.int64, device=z.device)
        return self.mu * cross_entropy(nearness.T / self.tau, first, reduction="none")


class Prototyped(RepresentationLoss):
    """A network that is pulled to prototypes, of which those given are known if marked by 1.

    The term is ``strength`` times the mean square of z - C(y) (Tan et al. 2022, eq. 7, in the form
    of their code).
    """

    def __init__(self, model: Model, shape: tuple[int, int], strength: float) -> None:
        super().__init__(model, shape[0] * shape[1])
        self.shape, self.strength = shape, strength

    def term(self, z: Tensor, references: Tensor, y: Tensor) -> Tensor:
        prototypes = references.view(self.shape)[y]
        return self.strength * prototypes[:, -1] * (z - prototypes[:, :-1]).square().mean(1)
