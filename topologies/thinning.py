"""Schedules derived from another one: with lost edges or nodes, or with local rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.chains import states, uniforms
from topologies.matrix import MixingMatrix
from topologies.sequences import Schedule, check_round, identity, stream


@dataclass(frozen=True)
class Partial:
    """Base class of ``inner`` with some edges removed in each round.

    The weights of removed edges are added to the self-weights of both ends. Matrices that are not
    symmetric then lose their column sums, and gossip its mean.

    Attributes
    ----------
    inner : Schedule
        The complete schedule.
    """

    inner: Schedule
    period = None

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.inner.n

    @property
    def tau(self) -> int:
        """That of ``inner``."""
        return self.inner.tau

    @property
    def symmetric(self) -> bool:
        """Whether every matrix is symmetric."""
        return self.inner.symmetric

    @property
    def doubly_stochastic(self) -> bool:
        """Whether every matrix is doubly stochastic: only if symmetric."""
        return self.inner.symmetric


@dataclass(frozen=True)
class DropNodes(Partial):
    """``inner`` with each node absent with the given probability, independently in every round.

    Attributes
    ----------
    probability : float
        The probability of absence, in [0, 1].
    seed : int
        The seed of all draws.
    """

    probability: float
    seed: int

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1."""
        present = stream(self.seed, "drop_nodes", k).random(self.n) >= self.probability
        return self.inner.matrix(k).restricted_to(present)


@dataclass(frozen=True)
class DropEdges(Partial):
    """``inner`` with each edge lost with the given probability, independently in every round.

    Attributes
    ----------
    probability : float
        The probability of loss, in [0, 1].
    seed : int
        The seed of all draws.
    """

    probability: float
    seed: int

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1."""
        matrix = self.inner.matrix(k)
        draws = stream(self.seed, "drop_edges", k).random(len(matrix.edges))
        return matrix.with_edges(draws >= self.probability)


@dataclass(frozen=True)
class BurstyEdges(Partial):
    """``inner`` with edges that fail and recover, each a two-state Markov chain.

    The channel of Gilbert (1960) and Elliott (1963), which loses everything in its bad state. A
    loss lasts 1 / recovery rounds in the mean, and rate / (rate + recovery) of all edges are lost
    in a round. Both directions of an edge fail together.

    Attributes
    ----------
    rate : float
        The probability with which an edge that works fails before a round, in [0, 1).
    recovery : float
        The probability with which one that has failed works again, in (0, 1].
    seed : int
        The seed of all draws.
    """

    rate: float
    recovery: float
    seed: int

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1."""
        matrix = self.inner.matrix(k)
        names = matrix.edges.min(axis=1) * matrix.n + matrix.edges.max(axis=1)

        def uniform(round: int, which: NDArray[np.int64]) -> NDArray[np.float64]:
            return uniforms(self.seed, "bursty_edges", round, names[which])

        return matrix.with_edges(states(self.rate, self.recovery, len(names), uniform, k))


@dataclass(frozen=True)
class LocalRounds:
    """``inner`` with local rounds: only every ``every``-th round communicates.

    Attributes
    ----------
    inner : Schedule
        The schedule of the rounds that communicate.
    every : int
        The number of rounds from one to the next.
    """

    inner: Schedule
    every: int

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.inner.n

    @property
    def period(self) -> int | None:
        """``every`` times that of ``inner``, if it has one."""
        return None if self.inner.period is None else self.every * self.inner.period

    @property
    def tau(self) -> int:
        """``every`` times that of ``inner``."""
        return self.every * self.inner.tau

    @property
    def symmetric(self) -> bool:
        """Whether every matrix is symmetric."""
        return self.inner.symmetric

    @property
    def doubly_stochastic(self) -> bool:
        """Whether every matrix is doubly stochastic."""
        return self.inner.doubly_stochastic

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1: the identity in local rounds."""
        turn, rest = divmod(check_round(k), self.every)
        return identity(self.n) if rest else self.inner.matrix(turn)
