"""What a schedule is: a mixing matrix for every round, as a pure function of the round.

Nothing here counts rounds: ``schedule.matrix(k)`` may be asked for any k >= 1, in any order, by any
process, and is the same. Random schedules draw round k from a counter-based generator keyed by
(seed, purpose, k).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from topologies.catalogue import TopologyError
from topologies.matrix import MixingMatrix

Arrays = Mapping[str, NDArray[Any]]


class Schedule(Protocol):
    """Mixing matrices W^1, W^2, ...

    Attributes:
        n: number of nodes.
        period: W^(k + period) = W^k for all k, or None if the matrices do not repeat.
        tau: rounds after which the law of the matrices repeats: the period, or 1 if they are
            independent draws of one law.
        symmetric: whether every matrix is symmetric.
        doubly_stochastic: whether every matrix is, so that gossip preserves the mean.
    """

    @property
    def n(self) -> int: ...

    @property
    def period(self) -> int | None: ...

    @property
    def tau(self) -> int: ...

    @property
    def symmetric(self) -> bool: ...

    @property
    def doubly_stochastic(self) -> bool: ...

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1."""
        ...


REQUIRED = ("n", "period", "tau", "symmetric", "doubly_stochastic", "matrix")
"""What a schedule must have; nothing of it has a default, so that none is misspelt unnoticed."""


def required(found: object, name: str, n: int) -> Schedule:
    """Return ``found`` as a schedule of ``n`` nodes.

    Args:
        found: what the user's own object ``name`` has returned.
        name: of the form ``package.module:object``.
        n: number of nodes asked for.

    Raises:
        TopologyError: if it lacks an attribute of a schedule, or has another number of nodes.
    """
    missing = [attribute for attribute in REQUIRED if not hasattr(found, attribute)]
    if missing:
        raise TopologyError(
            f"{name} returned {type(found).__name__}, which is not a schedule: it lacks "
            f"{', '.join(missing)}"
        )
    schedule = cast(Schedule, found)
    if schedule.n != n:
        raise TopologyError(f"{name} returned a schedule of {schedule.n} nodes, not of {n}")
    return schedule


def stream(seed: int, purpose: str, k: int) -> np.random.Generator:
    """Return the generator of round k for one purpose; equal arguments give equal draws."""
    words = [seed, zlib.crc32(purpose.encode()), _round(k)]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def identity(n: int) -> MixingMatrix:
    """Return the matrix of a round without communication."""
    return MixingMatrix(n, np.zeros((0, 2), dtype=np.int64), np.zeros(0))


def _round(k: int) -> int:
    if k < 1:
        raise TopologyError(f"the round is {k}, but rounds are counted from 1")
    return k


@dataclass(frozen=True)
class Static:
    """The same matrix in every round."""

    mixing: MixingMatrix
    period = 1
    tau = 1

    @property
    def n(self) -> int:
        return self.mixing.n

    @property
    def symmetric(self) -> bool:
        return self.mixing.symmetric

    @property
    def doubly_stochastic(self) -> bool:
        return self.mixing.doubly_stochastic

    def matrix(self, k: int) -> MixingMatrix:
        _round(k)
        return self.mixing


@dataclass(frozen=True)
class Periodic:
    """The given matrices in turn, for ever."""

    matrices: tuple[MixingMatrix, ...]

    def __post_init__(self) -> None:
        sizes = {matrix.n for matrix in self.matrices}
        if len(sizes) != 1:
            raise TopologyError(
                f"a periodic schedule needs matrices of one size, but these have {sorted(sizes)}"
            )

    @property
    def n(self) -> int:
        return self.matrices[0].n

    @property
    def period(self) -> int:
        return len(self.matrices)

    @property
    def tau(self) -> int:
        return len(self.matrices)

    @property
    def symmetric(self) -> bool:
        return all(matrix.symmetric for matrix in self.matrices)

    @property
    def doubly_stochastic(self) -> bool:
        return all(matrix.doubly_stochastic for matrix in self.matrices)

    def matrix(self, k: int) -> MixingMatrix:
        return self.matrices[(_round(k) - 1) % len(self.matrices)]


@dataclass(frozen=True)
class Drawn:
    """Every round an independent draw of one law.

    Attributes:
        n: number of nodes.
        seed: of all draws.
        draw: returns a matrix from a generator.
        symmetric: whether every draw is symmetric.
        doubly_stochastic: whether every draw is.
        mean_square: returns E[W'W], float64 [n, n], where it is known in closed form.
    """

    n: int
    seed: int
    draw: Callable[[np.random.Generator], MixingMatrix]
    symmetric: bool = True
    doubly_stochastic: bool = True
    mean_square: Callable[[], NDArray[np.float64]] | None = None
    period = None
    tau = 1

    def matrix(self, k: int) -> MixingMatrix:
        return self.draw(stream(self.seed, "draw", k))


@dataclass(frozen=True)
class Partial:
    """``inner`` with fewer edges, which change from round to round; ``matrix`` is the subclass's.

    The weights of edges that are missing return to both ends. Matrices that are not symmetric lose
    the column sums, and so the mean.
    """

    inner: Schedule
    period = None

    @property
    def n(self) -> int:
        return self.inner.n

    @property
    def tau(self) -> int:
        return self.inner.tau

    @property
    def symmetric(self) -> bool:
        return self.inner.symmetric

    @property
    def doubly_stochastic(self) -> bool:
        return self.inner.symmetric


@dataclass(frozen=True)
class DropNodes(Partial):
    """In every round each node of ``inner`` is absent with the given probability."""

    probability: float
    seed: int

    def matrix(self, k: int) -> MixingMatrix:
        present = stream(self.seed, "drop_nodes", k).random(self.n) >= self.probability
        return self.inner.matrix(k).restricted_to(present)


@dataclass(frozen=True)
class DropEdges(Partial):
    """In every round each edge of ``inner`` is lost with the given probability."""

    probability: float
    seed: int

    def matrix(self, k: int) -> MixingMatrix:
        matrix = self.inner.matrix(k)
        draws = stream(self.seed, "drop_edges", k).random(len(matrix.edges))
        return matrix.with_edges(draws >= self.probability)


@dataclass(frozen=True)
class LocalRounds:
    """``inner`` thinned: only every ``every``-th round communicates, the others change nothing."""

    inner: Schedule
    every: int

    @property
    def n(self) -> int:
        return self.inner.n

    @property
    def period(self) -> int | None:
        return None if self.inner.period is None else self.every * self.inner.period

    @property
    def tau(self) -> int:
        return self.every * self.inner.tau

    @property
    def symmetric(self) -> bool:
        return self.inner.symmetric

    @property
    def doubly_stochastic(self) -> bool:
        return self.inner.doubly_stochastic

    def matrix(self, k: int) -> MixingMatrix:
        turn, rest = divmod(_round(k), self.every)
        return identity(self.n) if rest else self.inner.matrix(turn)


def as_schedule(source: MixingMatrix | Schedule) -> Schedule:
    """Return a matrix as the schedule that uses it in every round."""
    return Static(source) if isinstance(source, MixingMatrix) else source
