"""FedAdam (Reddi et al. 2021, Algorithm 2): clients' updates as a gradient for Adam at the server.

On the transport benchmark it is the baseline of Dieuleveut et al. 2025, section 7.2: a client makes
one gradient step on potential and conjugate together; the server applies Adam to the mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.base import (
    Algorithm,
    Predictor,
    averaged_buffers,
    initial_models,
)
from mpifed.algorithms.fedmm.fedmm_ot import (
    batches_of,
    first_potential,
    map_scores,
)
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver, OptimizerState
from mpifed.models.base import Model
from mpifed.models.icnn import DenseICNN
from mpifed.optimal_transport.benchmarks import Benchmark, check_targets
from mpifed.optimal_transport.losses import Cycle, Objective, joint_gradient

Beta = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True)
class FedAdamState:
    """The global model with the state of the server's Adam."""

    model: Tensor = state.server()
    first: Tensor = state.server()
    second: Tensor = state.server()
    step: Tensor = state.server()
    optimizer: OptimizerState = state.client()


class FedAdam(Algorithm[ServerChannel]):
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
        server_lr: Annotated[float, Gt(0)] = 0.1,
        beta1: Beta = 0.9,
        beta2: Beta = 0.99,
        tau: Annotated[float, Gt(0)] = 1e-3,
        bias_correction: bool = False,
        client_weights: Literal["samples", "uniform"] = "samples",
        lambda_cycle: Annotated[float, Ge(0)] = 1.0,
        cycle: Cycle = "fwd",
        pretraining: Annotated[int, Ge(0)] = 5000,
    ) -> None:
        self.model, self.local = model, local
        self.server_lr, self.betas, self.tau = server_lr, (beta1, beta2), tau
        self.bias_correction = bias_correction
        self.pretraining = pretraining
        self.averages_by = "samples" if client_weights == "samples" else "clients"
        self.objective = None
        if isinstance(model, DenseICNN):
            check_targets(local.options.batch_size, model.dimension)
            self.objective = Objective(model, "w2gn", lambda_cycle, cycle)
            self.benchmark: Benchmark = model.problem
            self.columns = ("l2_uvp", "cosine")
            self.tasks = ("unlabelled",)
            self.step_option, self.averages_by = "algorithm.server_lr", "clients"

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedAdamState:
        if self.objective is None:
            model = initial_models(self.model, 1, clients, exchange, draws, dtype, False)
        else:
            size = 2 * self.model.n_parameters
            model = torch.zeros(1, size, dtype=dtype, device=clients.device)
        second = torch.full_like(model, 0.0 if self.bias_correction else self.tau**2)
        count = torch.zeros(1, dtype=torch.int64)
        optimizer = self.local.init(len(clients), 1, dtype)
        return FedAdamState(model, torch.zeros_like(model), second, count, optimizer)

    def prepare(
        self, state: FedAdamState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FedAdamState:
        """Bring both networks of the transport benchmark near the identity map; collective."""
        if self.objective is None:
            return state
        potential, dtype = self.objective.model, state.model.dtype
        omega = first_potential(potential, clients, draws, dtype, self.pretraining)
        both = torch.cat([omega, omega])[None]
        return FedAdamState(both, state.first, state.second, state.step, state.optimizer)

    def round(
        self, state: FedAdamState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedAdamState:
        start = channel.broadcast(state.model)
        if self.objective is None:
            trained, optimizer = self.local(start, state.optimizer, clients, draws)
            by_samples = self.averages_by == "samples"
            weights = clients.weights if by_samples else clients.equal_weights
            updates, whole = trained - start, 1
        else:
            updates, optimizer = self.transport_updates(state, clients, draws), state.optimizer
            weights = torch.ones(len(clients), dtype=torch.float64)
            whole = len(clients.federation.training)
        arrived = channel.send(updates)
        delta = channel.mean(arrived, weights, whole).to(state.model)
        return self.server_step(state, delta, optimizer)

    def server_step(
        self, state: FedAdamState, delta: Tensor, optimizer: OptimizerState
    ) -> FedAdamState:
        """Apply one step of Adam: x + eta m / (sqrt(v) + tau)."""
        beta1, beta2 = self.betas
        first = beta1 * state.first + (1 - beta1) * delta
        second = beta2 * state.second + (1 - beta2) * delta.square()
        step, m, v = state.step + 1, first, second
        if self.bias_correction:
            m = first / (1 - math.pow(beta1, int(step)))
            v = second / (1 - math.pow(beta2, int(step)))
        model = state.model + self.server_lr * m / (v.sqrt() + self.tau)
        model = averaged_buffers(model, state.model + delta, self.model.n_buffers)
        if self.objective is not None:
            potentials = model.view(2, -1)
            model = torch.cat([self.objective.model.convexify(row) for row in potentials])[None]
        return FedAdamState(model, first, second, step, optimizer)

    def transport_updates(self, state: FedAdamState, clients: Clients, draws: Draws) -> Tensor:
        """Return the clients' updates on the transport benchmark."""
        assert self.objective is not None
        omega, theta = state.model.view(2, -1)
        size = self.local.options.batch_size
        y = self.benchmark.sample_target(draws.stream("target 0"), size, omega.dtype)
        y = y.to(omega.device)
        rows = [
            torch.cat(joint_gradient(self.objective, omega, theta, x, y))
            for x in batches_of(clients, draws, "samples 0", size)
        ]
        if not rows:
            return state.model.new_zeros(0, *state.model.shape)
        return -torch.stack(rows)[:, None]

    def deploy(self, state: FedAdamState, clients: Clients, draws: Draws) -> Predictor:
        return Predictor(state.model if self.objective is None else None)

    def adapt(
        self, state: FedAdamState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients deploy the global model."""
        return self.deploy(state, clients, draws)

    def learnt(self, state: FedAdamState, exchange: Exchange) -> dict[str, Tensor]:
        """On the transport benchmark ``potential`` and ``conjugate``, (P,) each; else nothing."""
        if self.objective is None:
            return {}
        omega, theta = state.model.view(2, -1)
        return {"potential": omega, "conjugate": theta}

    def measure(
        self, state: FedAdamState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        if self.objective is None:
            return {}
        omega = state.model.view(2, -1)[0]
        return map_scores(self.objective.model, self.benchmark, omega, clients, draws)

    def payload(self) -> int:
        return self.model.n_parameters * (1 if self.objective is None else 2)
