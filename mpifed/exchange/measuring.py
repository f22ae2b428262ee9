"""Sums over clients for what is measured, not sent: outside the simulated federation, unbooked."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.reduction import weighted_sum
from mpifed.federation.clients import Clients


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
    """The largest of the non-negative ``values``, (clients,), over all ranks; collective.

    0 where there are no clients.
    """
    here = np.array([float(values.max()) if len(values) else 0.0])
    return float(clients.federation.communicator.max(here)[0])
