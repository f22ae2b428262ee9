"""Means of n - f of n updates, as many as are honest. They differ in which ones:

    monna     those nearest to a trusted client's (Farhadkhani et al. 2023, where each client
              trusts itself)
    meamed    in each coordinate, the values nearest to its median
              (Xie, Koyejo and Gupta 2018, mean around median)

With f = 0 they are the plain mean.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge

from mpifed.message import (
    ByCoordinates,
    ByProducts,
    Byzantine,
    count_of,
    squared_distances,
)


class OfHonest:
    """A rule that takes the mean of n - f updates, or of as many values."""

    def __init__(self, *, byzantine: Byzantine = 0.2) -> None:
        self.byzantine = byzantine

    def least(self, n: int) -> int:
        """Return how many of ``n`` participants it needs at least, to leave one out."""
        return n if self.bears(n) else n + 1

    def bears(self, n: int) -> int:
        """Return f."""
        return count_of(self.byzantine, n)

    def n_honest(self, n: int) -> int:
        """Return n - f."""
        return n - self.bears(n)

    def equal(self, order: np.ndarray, n: int) -> np.ndarray:
        """Return equal shares of the first n - f of ``n`` updates in an ``order``."""
        shares = np.zeros(n)
        shares[order[: self.n_honest(n)]] = 1 / self.n_honest(n)
        return shares


class AroundMedian(OfHonest, ByCoordinates):
    """Meamed: the mean of the n - f values nearest to each coordinate's median (Xie et al. 2018).

    Parameters
    ----------
    byzantine : float
        Share of the participants that may be attackers; f is that of n, rounded down.
    """

    def combine(self, columns: np.ndarray) -> np.ndarray:
        n = len(columns)
        columns.sort(axis=0)
        median = (columns[(n - 1) // 2] + columns[n // 2]) / 2
        # Of two at one distance the lower one first.
        order = np.argsort(np.abs(columns - median), axis=0, kind="stable")[: self.n_honest(n)]
        total = np.zeros(columns.shape[1])
        for row in np.take_along_axis(columns, order, axis=0):  # added as in TrimmedMean
            total += row
        return total / len(order)


class NearestToTrusted(OfHonest, ByProducts):
    """MoNNA: the mean of the n - f updates nearest to a trusted one (Farhadkhani et al. 2023).

    Parameters
    ----------
    trusted : int
        Which participant of a round is trusted, in the order of clients' numbers, from 0.
    byzantine : float
        Share of the participants that may be attackers; f is that of n, rounded down.
    """

    needs_fixed_number = True

    def __init__(self, *, trusted: Annotated[int, Ge(0)] = 0, byzantine: Byzantine = 0.2) -> None:
        super().__init__(byzantine=byzantine)
        self.trusted = trusted

    def least(self, n: int) -> int:
        return max(super().least(n), self.trusted + 1)

    def shares(self, products: np.ndarray) -> np.ndarray:
        away = squared_distances(products)[self.trusted]
        return self.equal(np.argsort(away, kind="stable"), len(away))
