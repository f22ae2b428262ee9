"""Ditto (Li et al. 2021, Algorithm 1): a global model, and personal ones that are pulled to it.

Client k's personal model v_k minimises, with w the global model,

    h_k(v; w) = F_k(v) + (lambda / 2) ||v - w||^2

In a round w is trained as by FedAvg, and beside it

    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))       s times

with w^t as it was sent, not as the client has trained it. Both see the same minibatches. With
lambda = 0 it is ``local`` beside ``fedavg``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from mpifed import state
from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.method import (
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    Proximal,
)
from mpifed.model import Model


@dataclass(frozen=True)
class DittoState(FedAvgState):
    """The global model as FedAvg has it, and the clients' own."""

    personal: Tensor = state.client()
    of_personal: OptimizerState = state.client()


class Ditto(FedAvg):
    """Ditto: FedAvg, and a personal model of each client that is pulled to the global one.

    Parameters
    ----------
    ditto_lambda : float
        Strength lambda of the pull; 0 trains personal models alone.
    personal_epochs : int, optional
        Epochs of the personal model in a round. None is as many steps as of the global one.
    **options
        Those of ``FedAvg``.
    """

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        ditto_lambda: Annotated[float, Ge(0)] = 1.0,
        personal_epochs: Annotated[int, Ge(1)] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, local, **options)
        self.ditto_lambda, self.personal = ditto_lambda, local
        if personal_epochs is not None:
            where = "algorithm.personal_epochs"
            self.personal = local.variant(local.purpose, where, epochs=personal_epochs, steps=None)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> DittoState:
        begun = super().init(clients, exchange, draws, dtype)
        personal = begun.model.expand(len(clients), 1, self.model.n_parameters).clone()
        of_personal = self.personal.init(len(clients), 1, dtype)
        return DittoState(begun.model, begun.optimizer, personal, of_personal)

    def round(
        self, state: FedAvgState, clients: Clients, channel: Channel, draws: Draws
    ) -> DittoState:
        assert isinstance(state, DittoState)
        pulls = [Proximal(_rows(state.model), self.ditto_lambda)]  # to w^t
        personal, of_personal = self.personal(
            state.personal, state.of_personal, clients, draws, adjustments=pulls
        )  # Alg. 1, the s local iterations of v_k
        after = super().round(state, clients, channel, draws)  # UPDATE_GLOBAL, AGGREGATE
        return DittoState(after.model, after.optimizer, personal, of_personal)

    def deploy(self, state: FedAvgState, clients: Clients, draws: Draws) -> Predictor:
        """Client k deploys v_k."""
        assert isinstance(state, DittoState)
        return Predictor(state.personal)

    def adapt(
        self, state: FedAvgState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients train a personal model for a round, from the global one."""
        model = _rows(exchange.mean(state.model))
        start = model.expand(len(clients), 1, self.model.n_parameters)
        fresh = self.personal.init(len(clients), 1, model.dtype)
        pulls = [Proximal(model, self.ditto_lambda)]
        return Predictor(self.personal(start, fresh, clients, draws, adjustments=pulls)[0])


def _rows(shared: Tensor) -> Tensor:
    """A shared model, (1, P), or rows of it, (clients, 1, P), as rows with one for all."""
    return shared[None] if shared.dim() == 2 else shared
