"""What ranks compute together outside of the simulated federation: measured, and not booked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.reduction import weighted_sum
from mpifed.federation.clients import Clients
from mpifed.mpi.agreement import agree
from mpifed.state import on_host

T = TypeVar("T")


def total(clients: Clients, rows: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return sum_t weights[t] rows[t] over the given clients of all ranks. Collective.

    Parameters
    ----------
    clients : Clients
        The clients hosted here over whom the sum goes.
    rows : Tensor
        Their numbers, (clients, ...).
    weights : Tensor, optional
        Their weights, (clients,); ones by default.

    Returns
    -------
    Tensor
        float64, of the shape of a row: () where each client has one number.
    """
    w = torch.ones(len(clients), dtype=torch.float64) if weights is None else weights
    flat = rows.double().reshape(len(clients), rows.shape[1:].numel())
    summed = weighted_sum(clients.federation, flat, on_host(w.double()), clients.ids, "measure")
    return summed.reshape(rows.shape[1:])


def largest(clients: Clients, values: Tensor) -> float:
    """Return the largest of ``values`` over the given clients of all ranks, 0 if there are
    none.
    """
    hosted = float(values.max()) if len(values) else 0.0
    return float(clients.federation.communicator.max(np.array([hosted]))[0])


def agreed(clients: Clients, action: Callable[[], T]) -> T:
    """Return ``action()`` once it has ended on every rank. Collective."""
    return agree(clients.federation.communicator, action)


def computed_once(clients: Clients, make: Callable[[], T]) -> T:
    """Return ``make()`` of rank 0 on every rank, so that all have the same bits. Collective."""
    communicator = clients.federation.communicator
    return communicator.broadcast_object(make() if communicator.rank == 0 else None)


def where_recorded(clients: Clients, make: Callable[[], dict[str, T]]) -> dict[str, T]:
    """Return ``make()`` on the rank that writes metrics.csv; {} elsewhere. Not collective."""
    return make() if clients.federation.communicator.rank == 0 else {}
