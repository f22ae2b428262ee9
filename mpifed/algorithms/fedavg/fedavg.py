"""FedAvg (McMahan et al. 2017): one global model; under gossip, decentralised FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from mpifed import state
from mpifed.method import (
    Adjustment,
    Algorithm,
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    StepScale,
    initial_models,
)
from mpifed.model import Model


@dataclass(frozen=True)
class FedAvgState:
    """The model and the clients' optimizers."""

    model: Tensor = state.shared()
    optimizer: OptimizerState = state.client()


class FedAvg(Algorithm[Channel]):
    """FedAvg: local SGD from a global model, averaged with weights n_t / n.

    Parameters
    ----------
    model_init : {'shared', 'per_client'}
        Whether all clients start from one model, or each from a draw of its own. The latter needs
        gossip, since under a server there is one model.
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip: n_t / n,
        the same with mean one, or 1.
        The papers do not say which for FedAvg.
    """

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        model_init: Literal["shared", "per_client"] = "shared",
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        self.model, self.local = model, local.scaled(gossip_step_scale)
        self.model_init = model_init

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedAvgState:
        per_client = self.model_init == "per_client"
        model = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client)
        return FedAvgState(model, self.local.init(len(clients), 1, dtype))

    def round(
        self, state: FedAvgState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedAvgState:
        start = channel.broadcast(state.model)
        terms = self.terms(start)
        trained, optimizer = self.local(
            start, state.optimizer, clients, draws, channel, adjustments=terms
        )
        model = channel.average(trained, clients.weights, before=state.model)
        return replace(state, model=model, optimizer=optimizer)

    def terms(self, start: Tensor) -> Sequence[Adjustment]:
        """Return what is added to gradients of local steps from ``start``."""
        return ()

    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Predictor:
        """Return the model, with running statistics of the clients' own where these stay."""
        return Predictor(self.local.with_statistics(state.model, state.optimizer))

    def adapt(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Predictor:
        """Return the model, under gossip the mean of all."""
        return Predictor(exchange.mean(state.model))
