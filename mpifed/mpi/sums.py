"""Sums of integers over all ranks, and how the ranks of a node divide what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

# Columns that are added in one call, at most.
COLUMNS = 1 << 20

# Columns of a sum that travels while the next are made: few enough to stay in a core's cache.
BLOCK = 1 << 17


class Sums(Protocol):
    """Sums over all ranks of which each rank finishes a share; all methods but ``share`` are
    collective.
    """

    columns: int
    under_way: int
    shared: bool

    def share(self, size: int) -> slice:
        """Return which of ``size`` numbers this rank finishes for its node."""

    def begin(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        """Begin to add integers over all ranks."""

    def array(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return an array for the ranks of the node to fill, each its share of the flat array."""

    def filled(self) -> None:
        """Wait until the ranks of the node have filled their shares."""


class FlatSums(Sums):
    """Every rank adds and finishes everything for itself."""

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
