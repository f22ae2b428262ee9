"""Arithmetic of a client that is the same in any block, and functions that test whether it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Samples are padded to multiples of this, so that no vector loop ends in a scalar tail.
LANES = 32

# Columns of a float64 product that are samples of several clients are padded to multiples of this.
COLUMNS = 96

# Bytes of the widest vector; torch's allocations begin at multiples of this.
ALIGNMENT = 64


def never_alone(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Return ``function(*rows)``, computed row by row, with at least two rows in the call."""
    if len(rows[0]) > 1:
        return function(*rows)
    return function(*(t.expand(2, *t.shape[1:]).contiguous() for t in rows))[:1]


def addresses_agree(function: Callable[..., Tensor], *operands: Tensor) -> bool:
    """Return whether ``function(*operands)`` is the same wherever in memory ``operands`` begin."""
    aligned = function(*(_shifted(operand, 0) for operand in operands))
    shifts = ((1, 0), (0, 1), (3, 5), (5, 2))
    return all(
        _same(
            function(*(_shifted(t, shift[k % 2]) for k, t in enumerate(operands))),
            aligned,
        )
        for shift in shifts
    )


def products_agree(dtype: torch.dtype) -> bool:
    """Return whether products of ``dtype`` are the same wherever in memory their operands
    begin.
    """
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*shape, generator=generator, dtype=dtype) for shape in ((37, 33), (33, 29)))
    column = b[:, :1].contiguous()
    return addresses_agree(torch.mm, a, b) and addresses_agree(torch.mm, a, column)


def _shifted(operand: Tensor, by: int) -> Tensor:
    """A copy that begins ``by`` numbers behind a multiple of ``ALIGNMENT`` bytes."""
    memory = operand.new_empty(operand.numel() + ALIGNMENT + by)
    first = -(memory.data_ptr() // operand.itemsize) % (ALIGNMENT // operand.itemsize) + by
    return memory[first : first + operand.numel()].view(operand.shape).copy_(operand)


def _same(found: Tensor, expected: Tensor) -> bool:
    """Whether both tensors are equal entry by entry, NaN included."""
    return torch.allclose(found, expected, rtol=0, atol=0, equal_nan=True)
