"""Empirical risks of the hosted clients: exact values and gradients over whole shards.

    f_i(w) = (1 / m_i) sum_j loss(w; s_ij) + r(w)

``LocalSolver`` steps on minibatches of these; methods that need the whole risk (FLIX, DCGD, DIANA,
the MAML family) use this module. Clients are stacked: those with equally long shards, up to
padding, form one batched product; linear models on sparse data form one sparse product for all
clients (``linear_objective``). A client's numbers do not depend on the other clients of its rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Split
from mpifed.federation.clients import Clients
from mpifed.local.minibatches import chosen, never_alone
from mpifed.local.scoring import held_out_risks
from mpifed.models.base import Model
from mpifed.models.loss import LANES

BLOCK_BYTES = 64 << 20
"""Bytes of padded inputs in one batched product at most."""


@dataclass(frozen=True)
class Regulariser:
    """r(w): ``l2`` is (strength / 2) ||w||^2; ``nonconvex`` is strength sum_j w_j^2 / (1 + w_j^2).

    The second is in the published code of FLIX, not in its paper.

    Attributes
    ----------
    kind : {'l2', 'nonconvex'}
    strength : float
        lambda; 0 for no regulariser.

    Examples
    --------
    >>> Regulariser("l2", 2.0).value(torch.tensor([[1.0, 2.0]]))
    tensor([5.])
    """

    kind: Literal["l2", "nonconvex"] = "l2"
    strength: float = 0.0

    def value(self, rows: Tensor) -> Tensor:
        """Return r of each row, (R, P) to (R,)."""
        squares = rows.square()
        if self.kind == "l2":
            return squares.sum(1) * (self.strength / 2)
        return (squares / (1 + squares)).sum(1) * self.strength

    def gradient(self, rows: Tensor) -> Tensor:
        """Return the gradient of r at each row, (R, P)."""
        if self.kind == "l2":
            return rows * self.strength
        return rows * (2 * self.strength) / (1 + rows.square()).square()

    def hessian_diagonal(self, rows: Tensor) -> Tensor:
        """Return the diagonal of the Hessian of r at each row, (R, P); all other entries are 0."""
        if self.kind == "l2":
            return torch.full_like(rows, self.strength)
        squares = rows.square()
        return 2 * self.strength * (1 - 3 * squares) / (1 + squares) ** 3

    @property
    def smoothness(self) -> float:
        """Lipschitz constant of the gradient."""
        return self.strength if self.kind == "l2" else 2 * self.strength

    @property
    def strong_convexity(self) -> float:
        """Smallest second derivative of r; negative where r is not convex."""
        return self.strength if self.kind == "l2" else -self.strength / 2


class Objective(Protocol):
    """f_i of some hosted clients, in their order."""

    @property
    def rows(self) -> np.ndarray:
        """Where the samples of these clients are in a split, int64 (clients,)."""

    def losses(self, parameters: Tensor) -> Tensor:
        """Return f_i(w_i), (clients, P) to float64 (clients,)."""

    def gradients(self, parameters: Tensor) -> Tensor:
        """Return the gradients of f_i at w_i, (clients, P) to (clients, P)."""

    def hessian_products(self, parameters: Tensor, directions: Tensor) -> Tensor:
        """Return the Hessians of f_i at w_i times ``directions``, all (clients, P)."""


@dataclass(frozen=True)
class ShardBatch:
    """Clients whose shards have the same padded width, as one batch.

    Attributes
    ----------
    members : Tensor
        Positions among the objective's clients, int64 (members,).
    x : Tensor
        (members, width, *input_shape).
    y : Tensor
        (members, width, ...).
    weights : Tensor
        1 / m_i on samples, 0 on padding, (members, width).
    """

    members: Tensor
    x: Tensor
    y: Tensor
    weights: Tensor


@dataclass(frozen=True)
class StackedObjective:
    """f_i by the model's batched gradient, for any model.

    Attributes
    ----------
    model : Model
    rows : numpy.ndarray
        Positions in ``split`` of the clients whose risks these are, int64 (clients,).
    regulariser : Regulariser
        Added to every f_i.
    split : Split
        Samples.
    """

    model: Model
    rows: np.ndarray
    regulariser: Regulariser
    split: Split

    @cached_property
    def groups(self) -> list[ShardBatch]:
        """Shards, padded and stacked once."""
        counts = self.split.counts[self.rows]
        widths = -(-counts // LANES) * LANES
        return [
            self._group(part, int(width))
            for width in np.unique(widths[counts > 0])
            for part in _parts(np.flatnonzero(widths == width), int(width), self.split)
        ]

    def losses(self, parameters: Tensor) -> Tensor:
        values = self.regulariser.value(parameters).double()
        loss = self.model.loss
        for group in self.groups:
            outputs = never_alone(
                lambda w, x: self.model.logits(w, x), parameters[group.members], group.x
            )
            samples = loss.samples(outputs, group.y).double() * group.weights
            values[group.members] += samples.sum(1)
        return values

    def gradients(self, parameters: Tensor) -> Tensor:
        gradients = self.regulariser.gradient(parameters)
        for group in self.groups:
            gradients[group.members] += never_alone(
                self.model.gradient, parameters[group.members], group.x, group.y, group.weights
            )
        return gradients

    def hessian_products(self, parameters: Tensor, directions: Tensor) -> Tensor:
        products = self.regulariser.hessian_diagonal(parameters) * directions
        for group in self.groups:
            rows, along = parameters[group.members], directions[group.members]
            products[group.members] += never_alone(
                self._products, rows, along, group.x, group.y, group.weights
            )
        return products

    def _products(
        self, parameters: Tensor, directions: Tensor, x: Tensor, y: Tensor, weights: Tensor
    ) -> Tensor:
        """The derivative of a batched gradient along ``directions``, by differentiating twice."""
        with torch.enable_grad():
            leaf = parameters.detach().requires_grad_()
            outputs = self.model.logits(leaf, x)
            slopes = self.model.loss.slopes(outputs, y) * weights.unsqueeze(-1)
            (gradient,) = torch.autograd.grad(outputs, leaf, slopes, create_graph=True)
            return torch.autograd.grad(gradient, leaf, directions)[0]

    def _group(self, members: np.ndarray, width: int) -> ShardBatch:
        """Pad and stack the shards of ``members`` to one ``width``."""
        rows = self.rows[members]
        starts, counts = self.split.offsets[rows], self.split.counts[rows]
        columns = np.arange(width)
        inside = columns < counts[:, None]
        samples = torch.from_numpy(np.where(inside, starts[:, None] + columns, starts[:, None]))
        # Several times faster than ``x[samples]``.
        flat, shape = samples.view(-1).to(self.split.x.device), samples.shape
        x, y = (t.index_select(0, flat).unflatten(0, shape) for t in (self.split.x, self.split.y))
        weights = torch.from_numpy(inside / counts[:, None]).to(x)
        return ShardBatch(torch.from_numpy(members), x, y, weights)


def _parts(members: np.ndarray, width: int, split: Split) -> list[np.ndarray]:
    """``members`` cut so that a batch of them stays small."""
    numbers = math.prod(split.x.shape[1:]) * width * split.x.element_size()
    most = max(1, BLOCK_BYTES // max(1, numbers))
    return [members[a : a + most] for a in range(0, len(members), most)]


@dataclass(frozen=True)
class HeldOutRisks:
    """The risks of models on the samples of ``scoring.held_out_risks``, one client at a time.

    Attributes
    ----------
    model : Model
    clients : Clients
        The clients whose samples these are; ``participant`` is a client's among them.
    like : Tensor
        A tensor with the type and device of models.
    """

    model: Model
    clients: Clients
    like: Tensor

    def losses(self, participant: int, models: np.ndarray) -> np.ndarray:
        """Return the risks of models (k, P), float64 (k,)."""
        rows = torch.from_numpy(models).to(self.like)
        return held_out_risks(self.model, rows, self.clients, np.array([participant]))[0].numpy()

    def gradient(self, participant: int, model: np.ndarray) -> np.ndarray:
        """Return the gradient at a model (P,), float64 (P,)."""
        shards, row = self.clients.shards, self.clients.rows[[participant]]
        split = shards.val if shards.val.counts[row[0]] else shards.train
        risk = StackedObjective(self.model, row, Regulariser(), split)
        gradient = risk.gradients(torch.from_numpy(model[None]).to(self.like))[0]
        return np.asarray(gradient.double().cpu().numpy())


def row_norms(rows: Tensor) -> Tensor:
    """Return the Euclidean norm of each row, float64 (R,).

    Examples
    --------
    >>> row_norms(torch.tensor([[3.0, 4.0]]))
    tensor([5.], dtype=torch.float64)
    """
    return rows.double().square().sum(1).sqrt()


def row_products(left: Tensor, right: Tensor) -> Tensor:
    """Return the inner product of each pair of rows, float64 (R,).

    Examples
    --------
    >>> row_products(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0]]))
    tensor([11.], dtype=torch.float64)
    """
    return (left.double() * right.double()).sum(1)


def sampled_gradients(
    model: Model,
    clients: Clients,
    regulariser: Regulariser,
    parameters: Tensor,
    samples: list[np.ndarray],
) -> Tensor:
    """Return gradients of f_i on samples that were drawn.

    Parameters
    ----------
    model : Model
        The model of all clients.
    clients : Clients
        The clients whose gradients are computed.
    regulariser : Regulariser
        Added to every f_i.
    parameters : Tensor
        w_i, (clients, P).
    samples : list of numpy.ndarray
        Rows of the training split for each client, int64.

    Returns
    -------
    Tensor
        (clients, P).
    """
    part = chosen(clients.shards.train, samples)
    rows = np.arange(len(samples))
    return StackedObjective(model, rows, regulariser, part).gradients(parameters)
