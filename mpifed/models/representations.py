"""Representations, which are what a network's last layer is given: losses in them, and their
means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from mpifed.data.base import Split
from mpifed.models.base import Gradient, Model
from mpifed.models.heads import as_module, last_inputs, last_sizes, representation

Term = Callable[[Tensor, Tensor], Tensor]
TermOf = Callable[[Tensor, Tensor], Term]


class RepresentationLoss(Model):
    """A network with a term of its loss in the inputs of its last layer.

    A row is the network's, then numbers that are given. These are among the buffers, so that they
    have no moments, and that clients step one by one.

    Parameters
    ----------
    model : Model
        The network.
    n_constants : int
        How many numbers are given.
    term : callable
        For the numbers that are given and the inputs of a minibatch it returns the term, a function
        of representations (B, h) and labels (B,) with values (B,).
    """

    steppings = ("one_by_one",)
    stepping = stepping_on_gpu = "one_by_one"
    same_bits = False

    def __init__(self, model: Model, n_constants: int, term: TermOf) -> None:
        self.inner, module, self.size = model, as_module(model), model.n_parameters
        self.term_of = term
        self.loss, self.n_buffers = module.loss, module.n_buffers + n_constants
        self._n_parameters = self.size + n_constants
        self._seen = list[Tensor]()
        self._term: Term | None = None  # of the present minibatch
        self.inner_module = replace(module, loss=replace(module.loss, samples=self._samples))

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
                self._term = self.term_of(constants, x)
                supervised(x, y, weights)

            yield compute

    def _samples(self, outputs: Tensor, y: Tensor) -> Tensor:
        (z,) = self._seen
        assert self._term is not None
        term = self._term(z.flatten(1).to(outputs.dtype), y)
        return self.loss.samples(outputs, y) + term


def label_sums(model: Model, models: Tensor, split: Split, rows: np.ndarray, labels: int) -> Tensor:
    """Return sums over each client's samples of each label: of z, 1 and |z|^2.

    Tensor of (clients, labels, h + 2), with the representations z of the samples of ``rows`` of the
    split, by the row of ``models`` of each, (clients, 1, P).
    """
    inputs, _ = last_sizes(model)
    all_sums = models.new_zeros(len(rows), labels, inputs + 2)
    for sums, weights, row in zip(all_sums, models, rows, strict=True):
        samples = split.of_client(row)
        parts = zip(*(a.split(model.scored_together) for a in (samples.x, samples.y)), strict=True)
        for x, y in parts:
            z = representation(model, weights, x)[0]
            squares = z.square().sum(1, keepdim=True)
            sums.index_add_(0, y, torch.cat([z, torch.ones_like(squares), squares], 1))
    return all_sums


def label_means(sums: Tensor, before: Tensor) -> Tensor:
    """Return prototypes (labels, h + 1) of sums of z and 1; those of ``before`` without samples."""
    counts = sums[:, -1:]
    means = (sums / counts.clamp(min=1)).to(before)
    return torch.where(counts > 0, means, before)


def contrastive(model: Model, mu: float, tau: float) -> RepresentationLoss:
    """Return MOON's network (Li, He and Song 2021, eqs. 3 and 4); mu is the contrast's weight.

    What is given are the models to be near and to be away from.
    """
    module = as_module(model)
    others = replace(module, network=deepcopy(module.network))

    def term_of(constants: Tensor, x: Tensor) -> Term:
        references = representation(others, constants.view(2, model.n_parameters), x).flatten(2)

        def term(z: Tensor, y: Tensor) -> Tensor:
            nearness = cosine_similarity(z[None], references, dim=-1)
            first = torch.zeros(len(z), dtype=torch.int64, device=z.device)
            return mu * cross_entropy(nearness.T / tau, first, reduction="none")

        return term

    return RepresentationLoss(model, 2 * model.n_parameters, term_of)


def prototyped(model: Model, shape: tuple[int, int], strength: float) -> RepresentationLoss:
    """Return a network that is pulled to prototypes, of which those are known that 1 marks.

    The term is ``strength`` times the mean square of z - C(y) (Tan et al. 2022, eq. 7, in the form
    of their code).
    """

    def term_of(constants: Tensor, x: Tensor) -> Term:
        def term(z: Tensor, y: Tensor) -> Tensor:
            prototypes = constants.view(shape)[y]
            return strength * prototypes[:, -1] * (z - prototypes[:, :-1]).square().mean(1)

        return term

    return RepresentationLoss(model, shape[0] * shape[1], term_of)
