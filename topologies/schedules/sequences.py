"""Schedules: a mixing matrix for every round, as a pure function of the round.

Nothing here counts rounds. ``schedule.matrix(k)`` may be asked for any k >= 1, in any order, by any
process, and always returns the same matrix. Random schedules draw round k from a counter-based
generator keyed by (seed, purpose, k).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from topologies.matrix import MixingMatrix
from topologies.parameters import TopologyError

Arrays = Mapping[str, NDArray[Any]]


class Schedule(Protocol):
    """Mixing matrices W^1, W^2, ...

    Attributes
    ----------
    n : int
        The number of nodes.
    period : int | None
        W^(k + period) = W^k for all k; None if the matrices do not repeat.
    tau : int
        The number of rounds after which the law of the matrices repeats: the period, or 1 for
        independent draws of one law.
    symmetric : bool
        Whether every matrix is symmetric.
    doubly_stochastic : bool
        Whether every matrix is doubly stochastic, so that gossip preserves the mean.
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


def stream(seed: int, purpose: str, k: int) -> np.random.Generator:
    """Return the generator of round k for one purpose; equal arguments give equal draws."""
    words = [seed, zlib.crc32(purpose.encode()), check_round(k)]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def identity(n: int) -> MixingMatrix:
    """Return the matrix of a round without communication."""
    return MixingMatrix(n, np.zeros((0, 2), dtype=np.int64), np.zeros(0))


def check_round(k: int) -> int:
    """Return the round k."""
    if k < 1:
        raise TopologyError(f"the round is {k}, but rounds are counted from 1")
    return k


@dataclass(frozen=True)
class Static:
    """The same matrix in every round.

    Attributes
    ----------
    mixing : MixingMatrix
        The matrix.
    """

    mixing: MixingMatrix
    period = 1
    tau = 1

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.mixing.n

    @property
    def symmetric(self) -> bool:
        """Whether the matrix is symmetric."""
        return self.mixing.symmetric

    @property
    def doubly_stochastic(self) -> bool:
        """Whether the matrix is doubly stochastic."""
        return self.mixing.doubly_stochastic

    def matrix(self, k: int) -> MixingMatrix:
        """Return the matrix, for any round k >= 1."""
        check_round(k)
        return self.mixing


@dataclass(frozen=True)
class Periodic:
    """The given matrices in turn, repeated.

    Attributes
    ----------
    matrices : tuple[MixingMatrix, ...]
        The matrices of the rounds 1 .. period, all of one size.

    Raises
    ------
    TopologyError
        If the matrices differ in size.
    """

    matrices: tuple[MixingMatrix, ...]

    def __post_init__(self) -> None:
        sizes = {matrix.n for matrix in self.matrices}
        if len(sizes) != 1:
            raise TopologyError(
                f"a periodic schedule needs matrices of one size, but these have {sorted(sizes)}"
            )

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.matrices[0].n

    @property
    def period(self) -> int:
        """The number of matrices."""
        return len(self.matrices)

    @property
    def tau(self) -> int:
        """The period."""
        return len(self.matrices)

    @property
    def symmetric(self) -> bool:
        """Whether every matrix is symmetric."""
        return all(matrix.symmetric for matrix in self.matrices)

    @property
    def doubly_stochastic(self) -> bool:
        """Whether every matrix is doubly stochastic."""
        return all(matrix.doubly_stochastic for matrix in self.matrices)

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1."""
        return self.matrices[(check_round(k) - 1) % len(self.matrices)]


@dataclass(frozen=True)
class Drawn:
    """An independent draw of one law in every round.

    Attributes
    ----------
    n : int
        The number of nodes.
    seed : int
        The seed of all draws.
    draw : Callable[[numpy.random.Generator], MixingMatrix]
        Returns a matrix from a generator.
    symmetric : bool
        Whether every draw is symmetric.
    doubly_stochastic : bool
        Whether every draw is doubly stochastic.
    mean_square : Callable[[], ndarray of float64] | None
        Returns E[W'W], float64 (n, n), where it is known in closed form.
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
        """Return W^k for the round k >= 1."""
        return self.draw(stream(self.seed, "draw", k))


def as_schedule(source: MixingMatrix | Schedule) -> Schedule:
    """Return a matrix as the schedule that uses it in every round; a schedule as it is."""
    return Static(source) if isinstance(source, MixingMatrix) else source
