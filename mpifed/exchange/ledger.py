"""What the simulated federation would have sent, apart from what MPI moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass
class Ledger:
    """Bits over all clients' uplinks and downlinks since the start of the run.

    ``up_floats`` counts the floating-point numbers on the uplinks, whatever their width and without
    the indices and gates around them, as the plots of Gasanov et al. 2021 do.
    """

    up_bits: int = 0
    down_bits: int = 0
    up_floats: int = 0


def bits_of(shape: torch.Size, dtype: torch.dtype) -> int:
    """Bits of one uncompressed tensor."""
    return math.prod(shape) * dtype.itemsize * 8
