"""Sums of integers over all ranks, and how the ranks of a node divide what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

COLUMNS = 1 << 18
"""Columns that are added in one call, at most."""


class Sums(Protocol):
    """Sums over all ranks of which each rank finishes a share; all methods but ``share`` are
    collective.

    Attributes
    ----------
    columns : int
        Columns that ``add`` takes at a time, at most; the same on every rank.
    """

    columns: int

    def share(self, size: int) -> slice:
        """Return which of ``size`` numbers this rank finishes for its node."""

    def add(self, values: np.ndarray) -> np.ndarray:
        """Add integers over all ranks.

        Parameters
        ----------
        values : ndarray of int64, shape (limbs, columns)
            The integers of this rank, in the same shape on every rank.

        Returns
        -------
        ndarray of int64
            The sums in this rank's share of the columns; valid until the next call.
        """

    def array(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return an array for the ranks of the node to fill, each its share of the flat array."""

    def filled(self) -> None:
        """Wait until the ranks of the node have filled their shares."""


class FlatSums(Sums):
    """Every rank adds and finishes everything for itself.

    Parameters
    ----------
    total : callable
        ``Communicator.sum``.
    """

    def __init__(self, total: Any) -> None:
        self._total, self.columns = total, COLUMNS

    def share(self, size: int) -> slice:
        return slice(0, size)

    def add(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(self._total(values))

    def array(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        return np.empty(tuple(shape), dtype)

    def filled(self) -> None:
        pass
