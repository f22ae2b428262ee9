"""Rows of which a few coordinates are nonzero; operations on them touch no others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SparseRows:
    """Rows of ``size`` numbers, zero except for ``values`` at ``columns``.

    Attributes
    ----------
    columns : ndarray of int64, shape (clients, k)
        Positions of the values; those of one row differ.
    values : Tensor, shape (clients, k)
        The values.
    size : int
        Numbers in each row.
    """

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
    """Return positions in flattened rows.

    Parameters
    ----------
    columns : ndarray of int64, shape (clients, k)
        Positions in each row.
    size : int
        Numbers in each row.

    Returns
    -------
    ndarray of int64, shape (clients, k)
        Positions in the rows when concatenated.

    Examples
    --------
    >>> places(np.array([[0, 2], [1, 2]]), 3)
    array([[0, 2],
           [4, 5]])
    """
    return columns + np.arange(0, len(columns) * size, size)[:, None]


def gathered(rows: Tensor, columns: np.ndarray) -> Tensor:
    """Return the numbers of each of ``rows``, (clients, size), at its ``columns``, (clients, k)."""
    at = places(columns, rows.shape[1])
    flat = rows.contiguous().view(-1)
    if rows.device.type != "cpu":
        return flat[torch.from_numpy(at).to(rows.device)]
    return torch.from_numpy(flat.numpy()[at])


def add_scaled(rows: Tensor, more: Tensor | SparseRows, scale: float) -> Tensor:
    """Return rows + scale * more.

    Parameters
    ----------
    rows : Tensor, shape (clients, size)
        Dense rows; not changed.
    more : Tensor, shape (clients, size), or SparseRows
        What is added.
    scale : float
        Its factor.

    Returns
    -------
    Tensor, shape (clients, size)
        A new tensor.

    Examples
    --------
    >>> more = SparseRows(np.array([[1]]), torch.tensor([[2.0]]), size=3)
    >>> add_scaled(torch.ones(1, 3), more, 0.5)
    tensor([[1., 2., 1.]])
    """
    if not isinstance(more, SparseRows):
        return more.mul(scale).add_(rows)
    whole = rows.clone()
    if rows.device.type != "cpu":
        places_ = torch.from_numpy(more.places).to(rows.device)
        whole.view(-1)[places_] += more.values * scale
        return whole
    whole.view(-1).numpy()[more.places] += (more.values * scale).numpy()
    return whole
