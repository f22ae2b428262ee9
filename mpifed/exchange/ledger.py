"""The ledger of what the simulated federation would have sent; what MPI moved is not in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass
class Ledger:
    """Totals over all clients since the start of the run.

    Attributes
    ----------
    up_bits, down_bits : int
        Bits on the uplinks and on the downlinks.
    up_floats : int
        Floating-point numbers on the uplinks, whatever their width and without indices and gates,
        as in the plots of Gasanov et al. 2021.
    """

    up_bits: int = 0
    down_bits: int = 0
    up_floats: int = 0


def bits_of(shape: torch.Size, dtype: torch.dtype) -> int:
    """Return the bits of one uncompressed tensor.

    Examples
    --------
    >>> bits_of(torch.Size([10, 2]), torch.float32)
    640
    """
    return math.prod(shape) * dtype.itemsize * 8
