"""The shared model beside the clients' own.

The papers (Deng et al. 2020, T Dinh et al. 2020) weigh clients alike; FedAvg, and the tables of
Marfoq et al. 2021, weigh them by their samples.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from mpifed.method import Channel, Clients, Requirement

Weights = Literal["uniform", "samples"]
"""Weights of the server's average, 1 / n or n_t / n. Clients count alike under gossip."""

ALIKE = Requirement(
    {"algorithm.client_weights": "uniform"},
    "where the mixing matrix has the weights",
    {"exchange": "gossip"},
)


def copies(model: Tensor, n_clients: int) -> Tensor:
    """Return a shared model, (1, P), or rows of it as they are, as (n_clients, 1, P)."""
    return model.expand(n_clients, 1, model.shape[-1])


def combined(
    rows: Tensor, clients: Clients, channel: Channel, before: Tensor, weights: Weights
) -> Tensor:
    """Return the new shared model from the participants' (participants, 1, P). Collective."""
    return channel.average(rows, clients.average_weights(weights == "samples"), before=before)
