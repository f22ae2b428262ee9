"""FedAdam (Reddi et al. 2021, Algorithm 2): FedAvg whose server takes steps of Adam.

It is FedAvg with ``server_optimizer=adam`` under a name of its own, which keeps the moments in its
state. On the transport benchmark the name stands for the baseline of Dieuleveut et al. 2025,
section 7.2 (``mpifed.algorithms.fedmm.fedmm_ot``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge

from mpifed import state
from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.message import Adam, Decay, Moments, Rate, averaged_buffers
from mpifed.method import (
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Only,
    Requirement,
    to_server,
)
from mpifed.model import Model


@dataclass(frozen=True)
class FedAdamState(FedAvgState):
    """FedAvg's state with that of the server's Adam."""

    moments: Moments = state.inline()


class FedAdam(FedAvg):
    """FedAdam: local SGD from a global model, Adam at the server.

    Parameters
    ----------
    server_lr : float
        Rate of the server's Adam.
    beta1, beta2, tau, bias_correction
        As of ``server_optimizer=adam``, see ``--list adam``.
    client_weights : {'samples', 'uniform'}
        Weights of the mean update: n_t / n, as in FedAvg, or 1 / |S|, as in the paper.
    theta_objective : {'w2gn', 'printed'}
        What the conjugate minimises on transport: the cycle term alone, or all of the printed
        objective, which then has no lower bound.
    lambda_cycle : float
        Weight of the cycle terms ||grad f_omega(grad f_theta(y)) - y||^2 on transport.
    cycle : {'fwd', 'both'}
        Whether the cycle from P and back counts too.
    pretraining : int
        Most iterations that bring both networks near the identity map before round 1.
    """

    requires = (
        Requirement({"data": "transport"}, "a transport map", {"model": "icnn"}),
        Requirement(
            {"server_optimizer": "sgd", "server_optimizer.lr": 1.0},
            "whose server takes steps of its own Adam",
        ),
        Requirement(
            {
                "model": "icnn",
                "local": Only("batch_size"),
                "participation.late": "miss",
            },
            "where clients take one gradient step on batch_size samples",
            {"data": "transport"},
        ),
    )
    exchanges = ("server",)
    compressors = "unbiased"

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
        theta_objective: Literal["w2gn", "printed"] = "w2gn",
        lambda_cycle: Annotated[float, Ge(0)] = 1.0,
        cycle: Literal["fwd", "both"] = "fwd",
        pretraining: Annotated[int, Ge(0)] = 5000,
    ) -> None:
        super().__init__(model, local)
        self.adam = Adam(
            lr=server_lr, beta1=beta1, beta2=beta2, tau=tau, bias_correction=bias_correction
        )
        self.by_samples = client_weights == "samples"
        self.theta_objective, self.lambda_cycle = theta_objective, lambda_cycle
        self.cycle, self.pretraining = cycle, pretraining

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedAdamState:
        first = super().init(clients, exchange, draws, dtype)
        return FedAdamState(first.model, first.optimizer, self.adam.init(first.model))

    def round(  # type: ignore[override]
        self, state: FedAdamState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedAdamState:
        start = channel.broadcast(state.model)
        trained, optimizer = self.local(start, state.optimizer, clients, draws, channel)
        weights = clients.average_weights(self.by_samples)
        server = to_server(channel)
        delta = server.mean(server.send(trained - state.model), weights).to(state.model)
        step, moments = self.adam.step(delta, state.moments)
        moved, average = state.model + step, state.model + delta
        model = averaged_buffers(moved, average, self.model.n_buffers)
        return FedAdamState(model, optimizer, moments)
