"""FedAdam (Reddi et al. 2021, Algorithm 2): clients' updates as a gradient for Adam at the server.

It is FedAvg with ``server_optimizer=adam``. On the transport benchmark it is the baseline of
Dieuleveut et al. 2025, section 7.2: a client makes one gradient step on potential and conjugate
together; the server applies Adam to the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from mpifed import state
from mpifed.algorithms.base import GlobalModel, Predictor, averaged_buffers, initial_models
from mpifed.algorithms.fedmm.fedmm_ot import batches_of, first_potential, map_scores
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.exchange.server_optimizers import Adam, Decay, Moments, Rate
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver, OptimizerState
from mpifed.models.base import Model
from mpifed.models.icnn import DenseICNN
from mpifed.optimal_transport.benchmarks import check_targets
from mpifed.optimal_transport.losses import Cycle, Objective, joint_gradient


@dataclass(frozen=True)
class FedAdamState:
    """The global model with the state of the server's Adam."""

    model: Tensor = state.server()
    moments: Moments = state.inline()
    optimizer: OptimizerState = state.client()


class FedAdam(GlobalModel[ServerChannel]):
    """FedAdam: local SGD from a global model, Adam at the server.

    Parameters
    ----------
    server_lr : float
        Step size of the server's Adam.
    beta1 : float
        Decay of the first moment m.
    beta2 : float
        Decay of the second moment v.
    tau : float
        What is added to sqrt(v), the degree of adaptivity.
    bias_correction : bool
        Whether moments are corrected as in torch, from v = 0. Without it v begins at tau^2, as in
        the paper.
    client_weights : {'samples', 'uniform'}
        Weights of the mean update: n_t / n, as in FedAvg, or 1 / |S|, as in the paper.
    lambda_cycle : float
        Weight of the cycle terms ||grad f_omega(grad f_theta(y)) - y||^2.
    cycle : {'fwd', 'both'}
        Whether the cycle from P and back counts too.
    pretraining : int
        Most iterations that bring both networks near the identity map before round 1.
    """

    learns = "one model"
    sends = "its move"
    exchanges = ("server",)
    compressors = "unbiased"
    steps_locally = True
    model_type = (Model, DenseICNN)

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        server_lr: Rate = 0.1,
        beta1: Decay = 0.9,
        beta2: Decay = 0.99,
        tau: Rate = 1e-3,
        bias_correction: bool = False,
        client_weights: Literal["samples", "uniform"] = "samples",
        lambda_cycle: Annotated[float, Ge(0)] = 1.0,
        cycle: Cycle = "fwd",
        pretraining: Annotated[int, Ge(0)] = 5000,
    ) -> None:
        super().__init__(model, local)
        self.adam = Adam(
            lr=server_lr, beta1=beta1, beta2=beta2, tau=tau, bias_correction=bias_correction
        )
        self.averages_by = "samples" if client_weights == "samples" else "clients"
        self.transport = None
        if isinstance(model, DenseICNN):
            check_targets(local.options.batch_size, model.dimension)
            self.transport = Potentials(Objective(model, "w2gn", lambda_cycle, cycle), pretraining)
            self.columns = ("l2_uvp", "cosine")
            self.tasks = ("unlabelled",)
            self.step_option, self.averages_by = "algorithm.server_lr", "clients"

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedAdamState:
        if self.transport is None:
            model = initial_models(self.model, 1, clients, exchange, draws, dtype, False)
        else:
            model = torch.zeros(1, self.payload(), dtype=dtype, device=clients.device)
        optimizer = self.local.init(len(clients), 1, dtype)
        return FedAdamState(model, self.adam.init(model), optimizer)

    def prepare(
        self, state: FedAdamState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FedAdamState:
        """Bring both networks of the transport benchmark near the identity map; collective."""
        if self.transport is None:
            return state
        first = self.transport.first(clients, draws, state.model.dtype)
        return replace(state, model=first)

    def round(
        self, state: FedAdamState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedAdamState:
        start, optimizer, whole = channel.broadcast(state.model), state.optimizer, 1
        if self.transport is None:
            trained, optimizer = self.local(start, optimizer, clients, draws)
            by_samples = self.averages_by == "samples"
            weights = clients.weights if by_samples else clients.equal_weights
            updates = trained - start
        else:
            size = self.local.options.batch_size
            updates = self.transport.updates(state.model, clients, draws, size)
            weights = torch.ones(len(clients), dtype=torch.float64)
            whole = len(clients.federation.training)
        delta = channel.mean(channel.send(updates), weights, whole).to(state.model)
        step, moments = self.adam.step(delta, state.moments)
        model = state.model + step
        if self.transport is None:
            model = averaged_buffers(model, state.model + delta, self.model.n_buffers)
        else:
            model = self.transport.convexified(model)
        return FedAdamState(model, moments, optimizer)

    def deploy(self, state: FedAdamState, clients: Clients, draws: Draws) -> Predictor:
        return Predictor(state.model if self.transport is None else None)

    def adapt(
        self, state: FedAdamState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        return self.deploy(state, clients, draws)

    def learnt(self, state: FedAdamState, exchange: Exchange) -> dict[str, Tensor]:
        """On the transport benchmark ``potential`` and ``conjugate``, (P,) each; else nothing."""
        if self.transport is None:
            return {}
        omega, theta = state.model.view(2, -1)
        return {"potential": omega, "conjugate": theta}

    def measure(
        self, state: FedAdamState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        if self.transport is None:
            return {}
        icnn, omega = self.transport.objective.model, state.model.view(2, -1)[0]
        return map_scores(icnn, icnn.problem, omega, clients, draws)

    def payload(self) -> int:
        return self.model.n_parameters * (1 if self.transport is None else 2)


@dataclass(frozen=True)
class Potentials:
    """Both networks of the transport benchmark as one model, [omega, theta], (1, 2 P)."""

    objective: Objective
    pretraining: int

    def first(self, clients: Clients, draws: Draws, dtype: torch.dtype) -> Tensor:
        """Return both near the identity map. Collective."""
        icnn = self.objective.model
        omega = first_potential(icnn, clients, draws, dtype, self.pretraining)
        return torch.cat([omega, omega])[None]

    def updates(self, model: Tensor, clients: Clients, draws: Draws, size: int) -> Tensor:
        """Return a negative gradient of each client, on a batch of samples."""
        omega, theta = model.view(2, -1)
        benchmark = self.objective.model.problem
        y = benchmark.sample_target(draws.stream("target 0"), size, omega.dtype).to(omega.device)
        rows = [
            torch.cat(joint_gradient(self.objective, omega, theta, x, y))
            for x in batches_of(clients, draws, "samples 0", size)
        ]
        return -torch.stack(rows)[:, None] if rows else model.new_zeros(0, *model.shape)

    def convexified(self, model: Tensor) -> Tensor:
        """Return the nearest networks that are convex."""
        return torch.cat([self.objective.model.convexify(row) for row in model.view(2, -1)])[None]
