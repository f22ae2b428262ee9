"""What makes a client's arithmetic the same in any block, and a check of this computer's kernels.

mpifed asks MKL for reproducible kernels before torch starts (``mpifed/__init__.py``). If torch had
computed something before mpifed was imported, or uses another library, that may be without effect;
``blocks_agree`` finds out in a millisecond, on the kernels most often at fault.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LANES = 32
"""Samples are padded to multiples of this, so that no vector loop ends in a scalar tail."""


def never_alone(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """``function(*rows)``, row by row, of at least one row.

    A batch of one reaches another kernel, which rounds otherwise, so a single row goes in twice.
    """
    if len(rows[0]) > 1:
        return function(*rows)
    return function(*(t.expand(2, *t.shape[1:]).contiguous() for t in rows))[:1]


def blocks_agree(dtype: torch.dtype) -> bool:
    """True if batched products with one output do not depend on the batch or on alignment."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 37, 33, generator=generator, dtype=dtype)
    w = torch.randn(5, 33, 1, generator=generator, dtype=dtype)
    whole = torch.bmm(x, w)
    for part in (slice(0, 1), slice(1, 3), slice(2, 5)):
        if not torch.equal(torch.bmm(x[part], w[part]), whole[part]):
            return False
    aligned = torch.mm(w[0].T, x[0].T)
    for shift in (1, 3, 5):
        moved = torch.empty(37 * 33 + shift, dtype=dtype)[shift:].view(37, 33).copy_(x[0])
        if not torch.equal(torch.mm(w[0].T, moved.T), aligned):
            return False
    return True
