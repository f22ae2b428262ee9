"""What ranks find together outside of the simulated federation: measured, not sent, and not booked.

Algorithms think in clients and ask for no rank; these verbs do it for them. All are collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.reduction import weighted_sum
from mpifed.federation.clients import Clients
from mpifed.mpi.agreement import agree

T = TypeVar("T")


def total(clients: Clients, rows: Tensor, weights: Tensor | None = None) -> Tensor:
    """sum_t weights[t] rows[t] over the given clients of all ranks, float64 of ``rows.shape[1:]``.

    ``weights`` is float64 (clients,), ones if None. Exact whatever the ranks; collective.
    """
    federation = clients.federation
    w = torch.ones(len(clients), dtype=torch.float64) if weights is None else weights
    summed = weighted_sum(
        federation.communicator,
        rows.double(),
        w.double().cpu().numpy(),
        clients.ids,
        federation.n_clients,
        "measure",
    )
    return torch.from_numpy(summed)


def largest(clients: Clients, values: Tensor) -> float:
    """Return the largest of ``values`` over the given clients of all ranks, 0 if there are none.

    Parameters
    ----------
    clients : Clients
        The clients hosted here.
    values : Tensor
        One number of each client, at least 0; shape (clients,).
    """
    here = float(values.max()) if len(values) else 0.0
    return float(clients.federation.communicator.max(np.array([here]))[0])


def agreed(clients: Clients, action: Callable[[], T]) -> T:
    """Return ``action()`` once it has ended on every rank.

    For work of the clients that may be refused, or stopped on request, on some ranks only: then all
    raise the same ``InputError`` or ``AgreedStop``, and none waits for the others in vain.
    """
    return agree(clients.federation.communicator, action)


def computed_once(clients: Clients, make: Callable[[], T]) -> T:
    """Return ``make()`` of one rank on every rank, so that all have the same bits.

    For numbers that another kind of CPU may round differently (a factorisation).
    """
    communicator = clients.federation.communicator
    return communicator.broadcast_object(make() if communicator.rank == 0 else None)


def where_recorded(clients: Clients, make: Callable[[], dict[str, T]]) -> dict[str, T]:
    """Return ``make()`` on the rank that writes metrics.csv; {} elsewhere.

    For measures that need no client's data and would be the same on every rank. ``make`` must not
    be collective.
    """
    return make() if clients.federation.communicator.rank == 0 else {}
