"""Rows of which a few coordinates are nonzero; operations on them touch no others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SparseRows:
    """Rows of ``size`` numbers, zero except for ``values`` at ``columns``."""

    columns: np.ndarray
    values: Tensor
    size: int

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    @cached_property
    def places(self) -> np.ndarray:
        """Positions of the values in the flattened rows, int64 (clients, k)."""
        return places(self.columns, self.size)

    def scaled(self, scale: float) -> SparseRows:
        """Return the rows multiplied by ``scale``."""
        return SparseRows(self.columns, self.values * scale, self.size)


def places(columns: np.ndarray, size: int) -> np.ndarray:
    """Return positions in flattened rows."""
    return columns + np.arange(0, len(columns) * size, size)[:, None]


def gathered(rows: Tensor, columns: np.ndarray) -> Tensor:
    """Return the numbers of each of ``rows``, (clients, size), at its ``columns``, (clients, k)."""
    at = places(columns, rows.shape[1])
    flat = rows.contiguous().view(-1)
    if rows.device.type != "cpu":
        return flat[torch.from_numpy(at).to(rows.device)]
    return torch.from_numpy(flat.numpy()[at])


def add_scaled(rows: Tensor, more: Tensor | SparseRows, scale: float) -> Tensor:
    """Return rows + scale * more."""
    if not isinstance(more, SparseRows):
        return more.mul(scale).add_(rows)
    whole = rows.clone()
    if rows.device.type != "cpu":
        places_ = torch.from_numpy(more.places).to(rows.device)
        whole.view(-1)[places_] += more.values * scale
        return whole
    whole.view(-1).numpy()[more.places] += (more.values * scale).numpy()
    return whole
