"""MOCHA: federated multi-task learning of related linear models (Smith et al. 2017, Algorithm 1).

    min over W, Omega of sum_t (1 / m_t) sum_j l(<w_t, x_tj>, y_tj) + (lambda / 2) tr(W Omega W')

with Omega = Sigma^-1, Sigma positive semidefinite, tr Sigma = 1. With dual variables alpha_tj and
b_t = (1 / m_t) sum_j alpha_tj x_tj, W = B Sigma / lambda (eq. 3). For fixed Sigma a round is

     7    client t improves alpha_t on its part of the dual (eq. 4), for which it needs w_t and
          rho Sigma_tt, with rho = max_t sum_t' |Sigma_tt'| / Sigma_tt
     9    it sends the change of b_t
    10    w_t <- (1 / lambda) sum_t' Sigma_tt' b_t'
    11    between phases of such rounds Sigma <- (W'W)^(1/2) / tr (W'W)^(1/2)

Clients improve alpha_t by stochastic dual coordinate ascent (SDCA; Shalev-Shwartz and Zhang 2013).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from mpifed import state
from mpifed.dataset import check_memory, shuffles
from mpifed.message import SparseRows
from mpifed.method import (
    Algorithm,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Predictor,
    Requirement,
    ServerChannel,
    heartbeat,
)
from mpifed.model import Linear, columns_of, rows_of

# Smaller eigenvalues of W'W count as this, so that Sigma has an inverse.
LEAST_EIGENVALUE = 1e-7


def relations(models: Tensor) -> Tensor:
    """Return the Sigma that is best for some models (Zhang and Yeung 2010)."""
    values, vectors = torch.linalg.eigh(models @ models.T)
    roots = values.clamp(min=LEAST_EIGENVALUE).sqrt()
    return (vectors * (roots / roots.sum())) @ vectors.T


def separability(sigma: Tensor) -> float:
    """Return rho = max_t sum_t' |Sigma_tt'| / Sigma_tt. With it the clients' parts of the dual add
    up to a lower bound of the whole (Lemma 9).
    """
    return float((sigma.abs().sum(1) / sigma.diagonal()).max())


def penalties(models: Tensor, b: Tensor, sigma: Tensor, strength: float) -> tuple[float, float]:
    """Return the quadratic terms of the primal and of the dual objective."""
    of_models = (models * torch.linalg.solve(sigma, models)).sum() * strength / 2
    of_duals = (b * (sigma @ b)).sum() / (2 * strength)
    return float(of_models), float(of_duals)


class DualLoss(ABC):
    """A loss of outputs z, with what SDCA needs of its conjugate l*; all elementwise."""

    @abstractmethod
    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """Return l(z)."""

    @abstractmethod
    def gain(self, a: Tensor, y: Tensor) -> Tensor:
        """Return -l*(-a)."""

    @abstractmethod
    def best(self, a: Tensor, z: Tensor, y: Tensor, curvature: Tensor) -> Tensor:
        """Return the dual variable that is best for one sample."""


class Hinge(DualLoss):
    """max(0, 1 - y z) with y = -1 or 1; y a lies in [0, 1]."""

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        return (1 - y * z).clamp(min=0)

    def gain(self, a: Tensor, y: Tensor) -> Tensor:
        return a * y

    def best(self, a: Tensor, z: Tensor, y: Tensor, curvature: Tensor) -> Tensor:
        return y * ((1 - y * z) / curvature + y * a).clamp(0, 1)


class HalfSquared(DualLoss):
    """(z - y)^2 / 2."""

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        return (z - y).square() / 2

    def gain(self, a: Tensor, y: Tensor) -> Tensor:
        return a * y - a.square() / 2

    def best(self, a: Tensor, z: Tensor, y: Tensor, curvature: Tensor) -> Tensor:
        return a + (y - z - a) / (1 + curvature)


def dual_loss_of(model: Linear) -> DualLoss:
    """Return the loss that SDCA minimises for a model: hinge, or half the square of regressions."""
    return HalfSquared() if model.loss.measure is None else Hinge()


def targets_of(model: Linear, y: Tensor) -> Tensor:
    """Return the targets of each output, float64 (samples, outputs)."""
    if model.loss.measure is None:
        return y.double()
    if y.dim() == 1:
        outputs = model.n_outputs
        y = y[:, None] if outputs == 1 else torch.nn.functional.one_hot(y, outputs)
    return 2 * y.double() - 1


def with_ones(model: Linear, x: Tensor) -> Tensor:
    """Return inputs as rows of a design matrix, float64 (samples, columns)."""
    flat = x.flatten(1).double()
    return torch.cat([flat, flat.new_ones(len(flat), 1)], 1) if model.bias else flat


def risks_and_gains(
    model: Linear, loss: DualLoss, duals: Tensor, parameters: Tensor, clients: Clients
) -> Tensor:
    """Return each client's mean of the loss and of its dual gain."""
    split, means = clients.shards.train, torch.zeros(len(clients), 2, dtype=torch.float64)
    for i, row in enumerate(clients.rows):
        heartbeat.step()
        part = split.rows_of(row)
        y = targets_of(model, split.y[part])
        z = with_ones(model, split.x[part]) @ columns_of(model, parameters[i : i + 1])[0]
        means[i, 0] = loss.value(z, y).sum() / len(y)
        means[i, 1] = loss.gain(duals[i, :, : len(y)].T, y).sum() / len(y)
    return means


def ascend(
    model: Linear,
    loss: DualLoss,
    duals: Tensor,
    parameters: Tensor,
    coupling: Tensor,
    fraction: float,
    clients: Clients,
    draws: Draws,
) -> tuple[Tensor, Tensor]:
    """Make SDCA steps on a share of each client's samples, drawn without replacement."""
    if not len(clients):
        return duals, parameters
    split, m = clients.shards.train, clients.n_train
    effort = np.ones(len(clients)) if clients.effort is None else clients.effort
    steps = np.ceil(effort * fraction * m).astype(np.int64).clip(min=1)
    visits = shuffles(draws.client_keys("coordinates", clients.ids), m)
    order = np.argsort(-steps, kind="stable")  # those that still step are the first ones
    first, begin = (np.cumsum(m) - m)[order], clients.starts[order]
    at = torch.from_numpy(order)
    a, v = duals[at], columns_of(model, parameters)[at].transpose(1, 2).contiguous()
    db, counts = torch.zeros_like(v), torch.from_numpy(m).double()[at, None]
    c, targets, rows = coupling[at, None], targets_of(model, split.y), torch.arange(len(at))
    for step in range(int(steps.max())):
        heartbeat.step()
        k = int((steps > step).sum())
        j, row = torch.from_numpy(visits[first[:k] + step]), rows[:k]
        sample = torch.from_numpy(begin[:k]) + j
        x, y = with_ones(model, split.x[sample]), targets[sample]
        z = (v[:k] * x[:, None]).sum(-1)
        curvature = c[:k] * x.square().sum(1, keepdim=True) / counts[:k]
        before = a[row, :, j]
        after = loss.best(before, z, y, curvature)
        a[row, :, j] = after
        change = ((after - before) / counts[:k])[..., None] * x[:, None]
        db[:k] += change
        v[:k] += c[:k, None] * change
    back = torch.from_numpy(np.argsort(order))
    return a[back], rows_of(model, db.transpose(1, 2))[back]


@dataclass(frozen=True)
class MochaState:
    """Dual variables and the models that they give, all float64; T training clients."""

    duals: Tensor = state.client()  # alpha, (clients, outputs, longest shard)
    b: Tensor = state.server()  # b_t, (T, P)
    sigma: Tensor = state.server()  # Sigma, (T, T)
    models: Tensor = state.server()  # w_t, (T, P)


class Mocha(Algorithm[ServerChannel]):
    """MOCHA: a linear model for each client, and how the clients are related.

    Parameters
    ----------
    mocha_lambda : float
        lambda, which multiplies tr(W Omega W') / 2.
    sdca_fraction : float
        Share of its samples whose dual variables a client improves in a round.
    sigma_every : int, optional
        Rounds between two updates of Sigma; None keeps I / T.
    mocha_variant : {'paper', 'published'}
        Whether a new Sigma moves the models, so that W = B Sigma / lambda, or leaves them where
        they are, as in the published code.
    """

    requires = (Requirement({"device": ("auto", "cpu")}, "which computes on the CPU"),)
    aggregates = "sums"
    compressors = "none"
    local_options = ()
    tasks = ("classification", "multi_label", "regression")
    columns = ("primal", "dual", "gap")
    step_option = "scale of the data"

    def __init__(
        self,
        model: Linear,
        local: LocalSolver,
        *,
        mocha_lambda: Annotated[float, Gt(0)] = 0.01,
        sdca_fraction: Annotated[float, Gt(0), Le(1)] = 0.5,
        sigma_every: Annotated[int, Ge(1)] | None = 100,
        mocha_variant: Literal["paper", "published"] = "paper",
    ) -> None:
        self.model, self.strength = model, mocha_lambda
        self.fraction, self.sigma_every = sdca_fraction, sigma_every
        self.keeps_models = mocha_variant == "published"
        self.loss = dual_loss_of(model)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> MochaState:
        federation, p = clients.federation, self.model.n_parameters
        t = len(federation.training)
        check_memory(8.0 * t * (2 * t + 3 * p), f"mocha relates {t} clients, which")
        size = self.model.n_outputs, int(federation.n_train.max())
        duals = torch.zeros(len(clients), *size, dtype=torch.float64)
        b, sigma = duals.new_zeros(t, p), torch.eye(t, dtype=torch.float64) / t
        return MochaState(duals, b, sigma, b)

    def round(
        self, state: MochaState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> MochaState:
        if self.sigma_every and draws.round > 1 and (draws.round - 1) % self.sigma_every == 0:
            (sigma,) = channel.at_server(lambda: [relations(state.models)])  # line 11
            state = self.mixed(replace(state, sigma=sigma), torch.zeros_like(state.b), channel)
        positions, p = clients.positions, self.model.n_parameters
        channel.broadcast(state.b.new_empty(p + 1))  # each client gets its own w_t, rho Sigma_tt
        coupling = separability(state.sigma) * state.sigma.diagonal()[positions] / self.strength
        tasks = state.duals, state.models[positions], coupling, self.fraction
        duals, change = ascend(self.model, self.loss, *tasks, clients, draws)  # Alg. 1, line 7
        columns = positions[:, None] * p + np.arange(p)
        sent = SparseRows(columns, channel.send(change), state.b.numel())  # line 9
        moved = channel.sum(sent, torch.ones(len(clients), dtype=torch.float64)).view_as(state.b)
        return self.mixed(replace(state, duals=duals, b=state.b + moved), moved, channel)

    def mixed(self, state: MochaState, moved: Tensor, channel: ServerChannel) -> MochaState:
        """Return the state with the models of its b, of which ``moved`` is new: line 10."""
        before, b = (state.models, moved) if self.keeps_models else (0.0, state.b)
        models = channel.at_server(lambda: [before + state.sigma @ b / self.strength])
        return replace(state, models=models[0])

    def deploy(self, state: MochaState, clients: Clients, draws: Draws) -> Predictor:
        """Client t predicts with w_t."""
        return Predictor(state.models[clients.positions][:, None].to(clients.shards.train.x))

    def learnt(self, state: MochaState, exchange: Exchange) -> dict[str, Tensor]:
        """``sigma``, how clients are related, (T, T)."""
        return {"sigma": state.sigma}

    def measure(
        self, state: MochaState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """The primal and the dual objective, and their difference."""
        models = state.models[clients.positions]
        means = risks_and_gains(self.model, self.loss, state.duals, models, clients)
        risk, gain = clients.total(means).tolist()
        terms = state.models, state.b, state.sigma, self.strength
        of_models, of_duals = clients.computed_once(lambda: penalties(*terms))
        primal, dual = risk + of_models, gain - of_duals
        return {"primal": primal, "dual": dual, "gap": primal - dual}
