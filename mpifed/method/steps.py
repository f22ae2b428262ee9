"""What the exchange asks of local steps, and what a server's step leaves to its average."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.base import Channel
from mpifed.exchange.compression import Compressor
from mpifed.federation.clients import Clients, Federation

StepScale = Literal["paper", "normalised", "none"]


def step_scale(clients: Clients, channel: Channel, rule: StepScale) -> np.ndarray | None:
    """Return factors of the learning rate under gossip, float64 (clients,); None for ones.

    ``paper``: n_t / n (Marfoq et al. 2021, Alg. 4, line 19), so that gossip follows the server's
    weighted objective; ``normalised``: T n_t / n, the same with mean one; ``none``: 1, as in the
    published code. Under a server the average carries the weights.
    """
    if rule == "none" or not channel.shared_is_rows:
        return None
    weights = clients.weights.numpy()
    return weights if rule == "paper" else weights * len(clients.federation.training)


def message_variance(compressor: Compressor | None, federation: Federation, size: int) -> float:
    """Return omega of a client's message, participation included: (1 + omega) / p - 1."""
    omega = compressor.omega(size) if compressor is not None else 0.0
    return (1 + omega) / federation.inclusion - 1


def averaged_buffers(model: Tensor, average: Tensor, n_buffers: int) -> Tensor:
    """Return a server's new model, with running statistics that are averaged."""
    if not n_buffers:
        return model
    return torch.cat([model[..., :-n_buffers], average[..., -n_buffers:]], -1)
