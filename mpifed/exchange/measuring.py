"""Sums over clients for what is measured, not sent: outside the simulated federation, unbooked."""

from __future__ import annotations

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
