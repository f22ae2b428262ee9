"""Pre-aggregation: means of groups of updates, which an aggregator gets in place of the updates.

Where clients' data differ, so do honest updates, and an aggregator takes some of them for attacks.
Means of several are alike. With updates u_1, ..., u_n of the participants of a round:

    nnm         y_i is the mean of the n - f updates nearest to u_i, itself among them, i = 1 to n
                (Allouah et al. 2023, Algorithm 2)
    bucketing   a random order of the updates, drawn anew in each round, is cut into buckets of s;
                y_i is the mean of a bucket, i = 1 to n / s rounded up
                (Karimireddy, He and Jaggi 2022, Algorithm 1)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge
from torch import Tensor

from mpifed.exchange.aggregation import Byzantine, count_of, inner_products, squared_distances
from mpifed.exchange.base import Round


class PreAggregator(ABC):
    """Base class of pre-aggregators; its keyword-only parameters are its options.

    Attributes
    ----------
    compares : bool
        Whether rank 0 gets all updates, to compare them.
    """

    compares: ClassVar[bool] = False

    def count(self, n: int) -> int:
        """Return how many means it makes of ``n`` updates."""
        return n

    @abstractmethod
    def members(self, updates: Tensor, round: Round) -> np.ndarray:
        """Return which updates each mean is of, bool (means, participants). Collective."""


class NoPreAggregator(PreAggregator):
    """No pre-aggregation: the aggregator gets the updates themselves."""

    def members(self, updates: Tensor, round: Round) -> np.ndarray:
        return np.eye(round.count, dtype=bool)


class NearestNeighbourMixing(PreAggregator):
    """Nearest-neighbour mixing, NNM: means of each update's n - f nearest (Allouah et al. 2023).

    Parameters
    ----------
    byzantine : float
        Share of the participants that may be attackers; f is that of n, rounded down.
    """

    compares = True

    def __init__(self, *, byzantine: Byzantine = 0.2) -> None:
        self.byzantine = byzantine

    def members(self, updates: Tensor, round: Round) -> np.ndarray:
        squares = squared_distances(inner_products(updates, round))
        n = len(squares)
        # Of equal distances the first client's.
        nearest = np.argsort(squares, axis=1, kind="stable")[:, : n - count_of(self.byzantine, n)]
        members = np.zeros((n, n), bool)
        np.put_along_axis(members, nearest, True, axis=1)
        return members


class Bucketing(PreAggregator):
    """Bucketing: means of random buckets of s updates (Karimireddy, He and Jaggi 2022).

    With a share delta of attackers up to s delta of the buckets are spoilt: this is the share that
    the aggregator must bear.

    Parameters
    ----------
    size : int
        s, the updates in a bucket; the last bucket has what remains.
    """

    def __init__(self, *, size: Annotated[int, Ge(2)] = 2) -> None:
        self.size = size

    def count(self, n: int) -> int:
        return -(-n // self.size)

    def members(self, updates: Tensor, round: Round) -> np.ndarray:
        position = np.argsort(round.draws.stream("bucketing").permutation(round.count))
        return position // self.size == np.arange(self.count(round.count))[:, None]
