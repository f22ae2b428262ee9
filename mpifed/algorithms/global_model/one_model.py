"""What methods have in common that learn one model by a step of their own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from mpifed.method import (
    Algorithm,
    AnyChannel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Predictor,
    initial_models,
)
from mpifed.model import Model


class GlobalModel(Algorithm[AnyChannel]):
    """Base class of methods that learn one model.

    The first field of its state is ``model``, the last one ``optimizer``.
    """

    state_class: ClassVar[type[Any]]

    def __init__(self, model: Model, local: LocalSolver) -> None:
        self.model, self.local = model, local

    def init(self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype) -> Any:
        """Return a ``state_class`` of one model for all, ``variables`` and no momentum."""
        model = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        optimizer = self.local.init(len(clients), 1, dtype)
        return self.state_class(model, *self.variables(model, len(clients)), optimizer)

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        """Return the first values of the fields between ``model`` and ``optimizer``."""
        return ()

    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Predictor:
        """Return the model, with running statistics of the clients' own where these stay."""
        return Predictor(self.local.with_statistics(state.model, state.optimizer))

    def adapt(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Predictor:
        """Return the model, under gossip the mean of all."""
        return Predictor(exchange.mean(state.model))
