"""Local training only, the baseline Local of Marfoq et al. 2021: every client its own model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mpifed import state
from mpifed.method import (
    Algorithm,
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    initial_models,
)
from mpifed.model import Model


@dataclass(frozen=True)
class LocalState:
    """Models and optimizers of the clients."""

    models: Tensor = state.client()
    optimizer: OptimizerState = state.client()


class Local(Algorithm[Channel]):
    """Local: each client trains alone on its own shard.

    Parameters
    ----------
    model_init : {'shared', 'per_client'}
        Whether all clients start from one model, or each from a draw of its own.
    """

    exchanges = ()
    compressors = "none"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        model_init: Literal["shared", "per_client"] = "shared",
    ) -> None:
        self.model, self.local = model, local
        self.model_init = model_init

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> LocalState:
        per_client = self.model_init == "per_client"
        models = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client)
        models = models.expand(len(clients), 1, self.model.n_parameters).clone()
        return LocalState(models, self.local.init(len(clients), 1, dtype))

    def round(
        self, state: LocalState, clients: Clients, channel: Channel, draws: Draws
    ) -> LocalState:
        return LocalState(*self.local(state.models, state.optimizer, clients, draws))

    def deploy(self, state: LocalState, clients: Clients, draws: Draws) -> Predictor:
        return Predictor(state.models)
