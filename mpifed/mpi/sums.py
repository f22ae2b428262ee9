"""Sums of integers over all ranks, and how the ranks of a node divide what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

COLUMNS = 1 << 20
"""Columns that are added in one call, at most."""

BLOCK = 1 << 17
"""Columns of a sum that travels while the next are made: few enough to stay in a core's cache."""


class Sums(Protocol):
    """Sums over all ranks of which each rank finishes a share; all methods but ``share`` are
    collective.

    Attributes
    ----------
    columns : int
        Columns that ``begin`` takes at a time, at most; the same on every rank.
    under_way : int
        Sums that may have begun and not ended while the next is made.
    shared : bool
        Whether arrays are those of all ranks of a node.
    """

    columns: int
    under_way: int
    shared: bool

    def share(self, size: int) -> slice:
        """Return which of ``size`` numbers this rank finishes for its node."""

    def begin(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        """Begin to add integers over all ranks.

        Parameters
        ----------
        values : ndarray of int64, shape (limbs, columns)
            The integers of this rank, in the same shape on every rank; overwritten, and not to be
            touched before the end.

        Returns
        -------
        callable
            Waits for the sums and returns them, ndarray of int64, in this rank's share of the
            columns; they are valid until the next sum begins.
        """

    def array(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return an array for the ranks of the node to fill, each its share of the flat array."""

    def filled(self) -> None:
        """Wait until the ranks of the node have filled their shares."""


class FlatSums(Sums):
    """Every rank adds and finishes everything for itself.

    Parameters
    ----------
    begin : callable
        ``Communicator.begin_total``.
    """

    columns, under_way, shared = BLOCK, 1, False

    def __init__(self, begin: Callable[[np.ndarray], Callable[[], np.ndarray]]) -> None:
        self._begin = begin

    def share(self, size: int) -> slice:
        return slice(0, size)

    def begin(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        return self._begin(values)

    def array(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        return np.empty(tuple(shape), dtype)

    def filled(self) -> None:
        pass
