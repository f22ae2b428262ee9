"""FedAvg (McMahan et al. 2017): one global model; under gossip, decentralised FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mpifed import state
from mpifed.method import (
    Adjustment,
    Algorithm,
    Averages,
    Channel,
    Clients,
    Coupling,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    StepScale,
    initial_models,
    step_scale,
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

    server_steps = True
    steps_locally = True
    takes_duals = True  # and a subclass, unless it has a round of its own
    averages_models: ClassVar[Averages | None] = "one"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "takes_duals" not in vars(cls):
            cls.takes_duals = cls.round is FedAvg.round

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        model_init: Literal["shared", "per_client"] = "shared",
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        self.model, self.local = model, local
        self.model_init = model_init
        self.gossip_step_scale: StepScale = gossip_step_scale

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
        state, coupling = self.coupled(state, start, clients)
        scale = step_scale(clients, channel, self.gossip_step_scale)
        trained, optimizer = self.local(
            start,
            state.optimizer,
            clients,
            draws,
            step_scale=scale,
            adjustments=self.terms(start),
            coupling=coupling,
            duals=channel.duals(start),
        )
        return self.averaged(replace(state, optimizer=optimizer), trained, clients, channel)

    def terms(self, start: Tensor) -> Sequence[Adjustment]:
        """Return what is added to gradients of local steps from ``start``."""
        return ()

    def coupled(
        self, state: FedAvgState, start: Tensor, clients: Clients
    ) -> tuple[FedAvgState, Coupling | None]:
        """Return the state and how minibatches move models; None by their gradients alone."""
        return state, None

    def averaged(
        self, state: FedAvgState, trained: Tensor, clients: Clients, channel: Channel
    ) -> FedAvgState:
        """Return the state with the average of the models that clients have ``trained``."""
        model = channel.average(trained, clients.weights, before=state.model)
        return replace(state, model=model)

    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Predictor:
        """Return the model, with running statistics of the clients' own where these stay."""
        models = self.local.with_statistics(state.model, state.optimizer)
        return self.predictor(models, clients, draws)

    def adapt(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Predictor:
        """Return the model, under gossip the mean of all."""
        return self.predictor(exchange.mean(state.model), clients, draws)

    def predictor(self, models: Tensor, clients: Clients, draws: Draws) -> Predictor:
        """Return what clients make of the model, (1, P) or (clients, 1, P), to predict with."""
        return Predictor(models)
