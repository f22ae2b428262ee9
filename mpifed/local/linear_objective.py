"""The empirical risks of linear models: sparse products, Hessians and smoothness constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from mpifed.data.base import Shards, Split
from mpifed.errors import InputError
from mpifed.federation.clients import Clients
from mpifed.local.objective import Objective, Regulariser, StackedObjective
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.models.loss import sigmoid
from mpifed.models.losses import CROSS_ENTROPY, HALF_SQUARED, MULTI_LABEL, SQUARED

# Share of non-zero inputs below which sparse products are faster; scripts/bench measures it.
SPARSE_BELOW = 0.25

# Sets of clients whose objectives are kept; with partial participation every round has another.
REMEMBERED = 4

# Columns up to which the largest eigenvalue comes from a dense solver, not from Lanczos.
EIGENVALUES_UP_TO = 2000


def objective_of(
    model: Model,
    clients: Clients,
    regulariser: Regulariser,
    split: Split | None = None,
    sparse: bool | None = None,
) -> Objective:
    """Return f_i of ``clients`` on ``split`` (None: their training samples), by the
    fastest way.
    """
    split = clients.shards.train if split is None else split
    stacked = StackedObjective(model, clients.rows, regulariser, split)
    if not isinstance(model, Linear) or sparse is False or split.x.device.type != "cpu":
        return stacked
    # Decided client by client, so that it does not depend on the other clients of the rank.
    chosen = np.array([bool(sparse) or _density(split, row) < SPARSE_BELOW for row in clients.rows])
    if chosen.all():
        return SparseObjective(model, clients.rows, regulariser, split)
    if not chosen.any():
        return stacked
    kinds = (SparseObjective, chosen), (StackedObjective, ~chosen)
    parts = []
    for kind, which in kinds:
        part = kind(model, clients.rows[which], regulariser, split)
        parts.append((torch.from_numpy(np.flatnonzero(which)), part))
    return MixedObjective(clients.rows, parts)


class Objectives:
    """Objectives of sets of clients, each made once; those of a few sets are kept."""

    def __init__(
        self,
        model: Model,
        regulariser: Regulariser,
        choose: Callable[[Split], Split] = lambda train: train,
    ) -> None:
        self._model, self._regulariser, self._choose = model, regulariser, choose
        self._objectives: dict[bytes, Objective] = {}
        self._shards: Shards | None = None

    def __call__(self, clients: Clients) -> Objective:
        """Return f_i of ``clients``. Those of other shards than in the last call are forgotten."""
        train, key = clients.shards.train, clients.rows.tobytes()
        if self._shards is not clients.shards:
            self._objectives.clear()
            self._shards, self._split = clients.shards, self._choose(train)
        if key not in self._objectives:
            if len(self._objectives) >= REMEMBERED:
                self._objectives.clear()
            self._objectives[key] = objective_of(
                self._model, clients, self._regulariser, self._split
            )
        return self._objectives[key]


def _density(split: Split, row: int) -> float:
    part = split.x[split.rows_of(row)]
    return float(torch.count_nonzero(part)) / max(1, part.numel())


@dataclass(frozen=True)
class MixedObjective:
    """f_i of clients, some of them sparse; ``parts`` has (positions, objective) of each kind."""

    rows: np.ndarray
    parts: list[tuple[Tensor, Any]]

    def losses(self, parameters: Tensor) -> Tensor:
        values = torch.zeros(len(parameters), dtype=torch.float64)
        for members, part in self.parts:
            values[members] = part.losses(parameters[members])
        return values

    def gradients(self, parameters: Tensor) -> Tensor:
        gradients = torch.empty_like(parameters)
        for members, part in self.parts:
            gradients[members] = part.gradients(parameters[members])
        return gradients

    def hessian_products(self, parameters: Tensor, directions: Tensor) -> Tensor:
        products = torch.empty_like(parameters)
        for members, part in self.parts:
            products[members] = part.hessian_products(parameters[members], directions[members])
        return products


@dataclass(frozen=True)
class SparseObjective:
    """f_i of a linear model by sparse products, on the samples ``rows`` of ``split``."""

    model: Linear
    rows: np.ndarray
    regulariser: Regulariser
    split: Split

    @cached_property
    def designs(self) -> list[scipy.sparse.csr_array]:
        """A_i of each client, (m_i, columns)."""
        return [scipy.sparse.csr_array(design(self.model, self.split, row)) for row in self.rows]

    @cached_property
    def forward(self) -> scipy.sparse.csr_array:
        """All A_i as one block-diagonal matrix, (samples, clients x columns)."""
        if not self.designs:
            return scipy.sparse.csr_array((0, 0))
        return scipy.sparse.csr_array(scipy.sparse.block_diag(self.designs, format="csr"))

    @cached_property
    def backward(self) -> scipy.sparse.csr_array:
        """Its transpose, by rows, so that each entry of a gradient is summed in one order."""
        return scipy.sparse.csr_array(self.forward.T)

    @cached_property
    def labels(self) -> Tensor:
        """Targets of these clients' samples, (samples, ...)."""
        targets = [self.split.y[self.split.rows_of(row)] for row in self.rows]
        return torch.cat(targets) if targets else self.split.y[:0]

    @cached_property
    def counts(self) -> np.ndarray:
        """m_i of these clients, int64 (clients,)."""
        return self.split.counts[self.rows]

    @cached_property
    def _share(self) -> Tensor:
        """1 / m_i of every sample, (samples, 1)."""
        shares = np.repeat(1 / np.maximum(1, self.counts), self.counts)
        return torch.from_numpy(shares).to(self.split.x.dtype)[:, None]

    def _outputs(self, parameters: Tensor) -> Tensor:
        weights = columns_of(self.model, parameters)
        return torch.from_numpy(self.forward @ weights.flatten(0, 1).numpy())

    def losses(self, parameters: Tensor) -> Tensor:
        if not len(parameters):
            return torch.zeros(0, dtype=torch.float64)
        samples = self.model.loss.samples(self._outputs(parameters), self.labels).double().numpy()
        starts = np.cumsum(self.counts) - self.counts
        filled = self.counts > 0
        means = np.zeros(len(self.counts))
        means[filled] = np.add.reduceat(samples, starts[filled]) / self.counts[filled]
        return torch.from_numpy(means) + self.regulariser.value(parameters).double()

    def gradients(self, parameters: Tensor) -> Tensor:
        if not len(parameters):
            return parameters.clone()
        back = self._back(self.shared_slopes(parameters), len(parameters))
        return back + self.regulariser.gradient(parameters)

    def shared_slopes(self, parameters: Tensor) -> Tensor:
        """Return the slopes of every sample's loss, times 1 / m_i, (samples, outputs)."""
        slopes = self.model.loss.slopes(self._outputs(parameters), self.labels)
        return slopes * self._share

    def hessian_products(self, parameters: Tensor, directions: Tensor) -> Tensor:
        if not len(parameters):
            return parameters.clone()
        with torch.enable_grad():
            outputs = self._outputs(parameters).requires_grad_()
            slopes = self.model.loss.slopes(outputs, self.labels)
            # The slopes' Jacobian is the loss's Hessian in the outputs, hence symmetric.
            (turned,) = torch.autograd.grad(slopes, outputs, self._outputs(directions))
        penalty = self.regulariser.hessian_diagonal(parameters) * directions
        return self._back(turned * self._share, len(parameters)) + penalty

    def _back(self, shared: Tensor, clients: int) -> Tensor:
        """A_i' times slopes that contain the factor 1 / m_i, as rows of parameters."""
        columns = torch.from_numpy(self.backward @ shared.numpy())
        return rows_of(self.model, columns.view(clients, -1, self.model.n_outputs))


def design(model: Linear, split: Split, row: int) -> np.ndarray:
    """Return A_i of one client, (m_i, columns): its inputs, and a column of ones for the bias."""
    x = split.x[split.rows_of(row)].flatten(1).cpu().numpy()
    return np.hstack([x, np.ones((len(x), 1), x.dtype)]) if model.bias else x


def columns_of(model: Linear, parameters: Tensor) -> Tensor:
    """Return W' of each row, the bias as its last row: (R, P) to (R, columns, outputs)."""
    size = model.n_outputs * model.n_inputs
    weight = parameters[:, :size].view(-1, model.n_outputs, model.n_inputs)
    if model.bias:
        weight = torch.cat([weight, parameters[:, size:].unsqueeze(-1)], -1)
    return weight.transpose(1, 2).contiguous()


def rows_of(model: Linear, columns: Tensor) -> Tensor:
    """Invert ``columns_of``: (R, columns, outputs) to (R, P)."""
    weight = columns[:, : model.n_inputs].transpose(1, 2).flatten(1)
    return torch.cat([weight, columns[:, -1]], 1) if model.bias else weight


def smoothness(model: Model, clients: Clients, regulariser: Regulariser) -> Tensor:
    """Return L_i, float64 (clients,): the Lipschitz constants of the gradients of f_i."""
    if not isinstance(model, Linear):
        raise InputError(
            "algorithm.step is empty, and the smoothness of this model is not known; give a number"
        )
    split, curvature = clients.shards.train, _curvature(model)
    constants = np.zeros(len(clients))
    for i, row in enumerate(clients.rows):
        count = int(split.counts[row])
        if count:
            constants[i] = curvature * _largest_eigenvalue(design(model, split, row)) / count
    return torch.from_numpy(constants + regulariser.smoothness)


def _curvature(model: Linear) -> float:
    """The largest second derivative of the loss in the outputs."""
    outputs = model.n_outputs
    if model.loss is CROSS_ENTROPY:
        return 0.25 if outputs == 1 else 0.5
    return {MULTI_LABEL.name: 0.25 / outputs, SQUARED.name: 2 / outputs, HALF_SQUARED.name: 1.0}[
        model.loss.name
    ]


def _largest_eigenvalue(a: np.ndarray) -> float:
    """lambda_max(A'A), rounded up by 1e-10 of itself."""
    from scipy.sparse.linalg import eigsh  # here, since few methods need it and all would load it

    rows = torch.from_numpy(a.astype(np.float64))
    gram = rows.T @ rows if len(rows) >= rows.shape[1] else rows @ rows.T
    if len(gram) <= EIGENVALUES_UP_TO:
        value = torch.linalg.eigvalsh(gram)[-1]
    else:
        start = np.ones(len(gram)) / np.sqrt(len(gram))
        value = eigsh(gram.numpy(), k=1, v0=start, return_eigenvectors=False)[0]
    return float(value) * (1 + 1e-10)


def hessian(
    model: Linear, split: Split, row: int, parameters: Tensor, regulariser: Regulariser
) -> Tensor:
    """Return the Hessian of f_i at ``parameters`` (P,), float64 (P, P), for one output."""
    a = torch.from_numpy(design(model, split, row).astype(np.float64))
    parameters = parameters.double().cpu()
    z = a @ columns_of(model, parameters[None])[0, :, 0]
    if model.loss is CROSS_ENTROPY or model.loss is MULTI_LABEL:
        p = sigmoid(z)
        second = p * (1 - p)
    else:
        second = torch.full_like(z, _curvature(model))
    matrix = a.T @ (a * (second / max(1, len(a)))[:, None])
    return matrix + torch.diag(regulariser.hessian_diagonal(parameters[None])[0])
