"""Rows of which a few coordinates are sent: what is done with them touches no others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SparseRows:
    """Rows of ``size`` numbers, zero but for ``values`` at ``columns``.

    Both are (clients, k); ``columns`` are int64 and those of one row differ.
    """

    columns: np.ndarray
    values: Tensor
    size: int

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @cached_property
    def places(self) -> np.ndarray:
        """Where the values stand in the flattened rows, int64 (clients, k)."""
        return places(self.columns, self.size)

    def times(self, scale: float) -> SparseRows:
        return SparseRows(self.columns, self.values * scale, self.size)


def places(columns: np.ndarray, size: int) -> np.ndarray:
    """Positions in flattened rows of ``size`` numbers, of those in each row; both (clients, k)."""
    return columns + np.arange(0, len(columns) * size, size)[:, None]


def taken(rows: Tensor, columns: np.ndarray) -> Tensor:
    """The numbers of each of ``rows``, (clients, size), at its ``columns``: (clients, k)."""
    flat = rows.contiguous().view(-1).numpy()
    return torch.from_numpy(flat[places(columns, rows.shape[1])])


def added(rows: Tensor, more: Tensor | SparseRows, scale: float) -> Tensor:
    """rows + scale more, a new tensor of the shape of ``rows``, (clients, size)."""
    if not isinstance(more, SparseRows):
        return more.mul(scale).add_(rows)
    whole = rows.clone()
    whole.view(-1).numpy()[more.places] += (more.values * scale).numpy()
    return whole
