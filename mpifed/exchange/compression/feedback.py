"""What a biased compressor has kept back, which is sent later (Seide et al. 2014)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mpifed.state import client


@dataclass(frozen=True)
class ErrorFeedback:
    """What a biased compressor has kept back of each client's messages.

    Attributes
    ----------
    residual : Tensor
        (clients, numbers), one row per client.
    """

    residual: Tensor = client()
