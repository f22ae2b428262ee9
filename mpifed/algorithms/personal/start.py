"""What methods have in common whose server averages one model beside the clients' own.

Their papers (Deng et al. 2020, T Dinh et al. 2020) weigh clients alike; FedAvg, and the tables of
Marfoq et al. 2021, weigh them by their samples. ``client_weights`` says which.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from mpifed.algorithms.base import Algorithm, initial_models
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model

Positive = Annotated[float, Gt(0)]
Weights = Literal["uniform", "samples"]


class Personal(Algorithm[Channel]):
    """A method with one shared model and one of each client.

    Parameters
    ----------
    client_weights : {'uniform', 'samples'}
        Weights of the server's average, 1 / n or n_t / n. Clients count alike under gossip.
    """

    steps_locally = True

    def __init__(
        self, model: Model, local: LocalSolver, *, client_weights: Weights = "uniform"
    ) -> None:
        self.model, self.local = model, local
        self.averages_by = "samples" if client_weights == "samples" else "clients"

    def first_models(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return the first shared model, and a copy of it for every client, (clients, 1, P)."""
        model = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        return model, self.copies(model, len(clients)).clone()

    def copies(self, model: Tensor, n_clients: int) -> Tensor:
        """Return a shared model, (1, P), or rows of it as they are, as (n_clients, 1, P)."""
        return model.expand(n_clients, 1, self.model.n_parameters)

    def combined(self, rows: Tensor, clients: Clients, channel: Channel, before: Tensor) -> Tensor:
        """Return the new shared model from the participants' (participants, 1, P). Collective."""
        by_samples = self.averages_by == "samples"
        weights = clients.weights if by_samples else clients.equal_weights
        return channel.average(rows, weights, before=before)
