"""Arithmetic of a client that is the same in any block, and functions that test whether it is.

mpifed asks MKL for reproducible kernels before torch starts (``mpifed/__init__.py``): a product
then does not depend on where in memory its operands begin. It still depends on its shape. Therefore
rows are never computed alone (``never_alone``) and columns come in multiples of ``COLUMNS``.
``training.kernels`` tests the calls of a run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LANES = 32
"""Samples are padded to multiples of this, so that no vector loop ends in a scalar tail."""

COLUMNS = 96
"""Columns of a float64 product that are samples of several clients are padded to multiples of this.

A kernel computes a tile of columns at a time, 12 with AVX2 and 8, 16, 24 or 48 with AVX-512. The
remaining columns are computed by another kernel, which rounds differently.
"""

ALIGNMENT = 64
"""Bytes of the widest vector; torch's allocations begin at multiples of this."""


def never_alone(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Return ``function(*rows)``, computed row by row, with at least two rows in the call.

    A batch of one reaches another kernel, which rounds differently; a single row is passed twice.

    Parameters
    ----------
    function : callable
        Computes (R, ...) from tensors whose first axis is R.
    *rows : Tensor
        (R, ...) each, R at least 1.

    Returns
    -------
    Tensor
        (R, ...).

    Examples
    --------
    >>> never_alone(lambda rows: rows.sum(1), torch.tensor([[1.0, 2.0]]))
    tensor([3.])
    """
    if len(rows[0]) > 1:
        return function(*rows)
    return function(*(t.expand(2, *t.shape[1:]).contiguous() for t in rows))[:1]


def blocks_agree(function: Callable[[slice], Tensor], rows: int) -> bool:
    """Return whether ``function`` computes rows alike in every block.

    Parameters
    ----------
    function : callable
        The result of a block of rows, given as a slice of 0 .. ``rows``: (rows of the block, ...).
    rows : int
        Number of rows, at least 1.

    Returns
    -------
    bool
        True if rows computed in smaller blocks are those of the largest, bit for bit.

    Examples
    --------
    >>> blocks_agree(lambda block: torch.arange(8.0)[block], 8)
    True
    """
    whole = function(slice(0, rows))
    edges = {(0, 1), (rows - 1, rows), (0, 2), (1, min(4, rows)), (rows // 2, rows)}
    parts = (slice(first, last) for first, last in sorted(edges) if first < last <= rows)
    return all(_same(function(part), whole[part]) for part in parts)


def addresses_agree(function: Callable[..., Tensor], *operands: Tensor) -> bool:
    """Return whether ``function(*operands)`` is the same wherever in memory ``operands`` begin.

    Parameters
    ----------
    function : callable
        Takes tensors with the shapes of ``operands``.
    *operands : Tensor
        Its arguments; copies are shifted by some numbers from an aligned address.

    Returns
    -------
    bool
        True if all results have the same bits.
    """
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
    """Return whether products of ``dtype`` are the same wherever in memory their operands begin.

    They are with MKL's reproducible kernels, and with few others.
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
