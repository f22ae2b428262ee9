"""The median and the trimmed mean of every coordinate (Yin, Chen, Ramchandran, Bartlett 2018)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Gt, Lt

from mpifed.exchange.aggregation.base import ByCoordinates, count_of


class Median(ByCoordinates):
    """The median of each coordinate, of an even number the mean of the two in the middle."""

    def combine(self, columns: np.ndarray) -> np.ndarray:
        n = len(columns)
        columns.sort(axis=0)  # faster than a partition
        return (columns[(n - 1) // 2] + columns[n // 2]) / 2


class TrimmedMean(ByCoordinates):
    """The mean of each coordinate without its largest and its smallest values.

    Parameters
    ----------
    trim : float
        Share of the participants that is left out at each end, rounded down to whole clients.
    """

    def __init__(self, *, trim: Annotated[float, Gt(0), Lt(0.5)] = 0.2) -> None:
        self.trim = trim

    def least(self, n: int) -> int:
        return n if count_of(self.trim, n) else n + 1

    def combine(self, columns: np.ndarray) -> np.ndarray:
        columns.sort(axis=0)
        cut = count_of(self.trim, len(columns))
        kept = columns[cut : len(columns) - cut]
        # Added row by row: numpy adds a single column in another order than several.
        total = np.zeros(columns.shape[1])
        for row in kept:
            total += row
        return total / len(kept)
