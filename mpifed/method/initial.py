"""First models of a method."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.base import Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.models.base import Model


def initial_models(
    model: Model,
    count: int,
    clients: Clients,
    exchange: Exchange,
    draws: Draws,
    dtype: torch.dtype,
    per_client: bool,
) -> Tensor:
    """Return ``count`` initial models as shared state; drawn once for all, or by every client."""
    if not per_client:
        return exchange.spread(_draw(model, count, draws, -1, dtype).to(clients.device))
    rows = [_draw(model, count, draws, int(client), dtype) for client in clients.ids]
    if not rows:
        return torch.empty(0, count, model.n_parameters, dtype=dtype, device=clients.device)
    return torch.stack(rows).to(clients.device)


def _draw(model: Model, count: int, draws: Draws, client: int, dtype: torch.dtype) -> Tensor:
    models = [model.init(draws.stream(f"model {m}", client)) for m in range(count)]
    return torch.from_numpy(np.stack(models)).to(dtype)
