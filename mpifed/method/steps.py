"""What compression adds to messages, and what a server's step leaves to its average."""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.exchange.compression import Compressor
from mpifed.federation.clients import Federation


def message_variance(compressor: Compressor | None, federation: Federation, size: int) -> float:
    """Return omega of a client's message, participation included: (1 + omega) / p - 1."""
    omega = compressor.omega(size) if compressor is not None else 0.0
    return (1 + omega) / federation.inclusion - 1


def averaged_buffers(model: Tensor, average: Tensor, n_buffers: int) -> Tensor:
    """Return a server's new model, with running statistics that are averaged."""
    if not n_buffers:
        return model
    return torch.cat([model[..., :-n_buffers], average[..., -n_buffers:]], -1)
