"""Schedules: a mixing matrix for every round k >= 1, as a pure function of the round.

Random schedules draw round k from a counter-based generator keyed by (seed, purpose, k), so that
any round is computed without those before it, on every rank alike.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, cast, runtime_checkable

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.matrix import MixingMatrix
from topologies.names import Entry
from topologies.parameters import Parameter, options_of

Arrays = Mapping[str, NDArray[Any]]
Probability = Annotated[float, Ge(0), Le(1)]


@runtime_checkable
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


@dataclass(frozen=True)
class ScheduleEntry(Entry):
    """A named schedule: ``prepare`` and ``build`` take what they name of the graph, the weight
    rule, n, the seed, the arrays and the options, which are those of ``prepare`` where there is
    one. ``in_rounds``: whether weights are computed in the rounds themselves; ``has_few``: whether
    few of the nodes have a value in a round.
    """

    prepare: Callable[..., Arrays] | None = None
    in_rounds: bool = False
    has_few: bool = False

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {} if self.custom else options_of(self.prepare or self.build)

    @property
    def uses(self) -> str:
        """What it takes of a topology: "weights" (a graph and a rule), "graph", or "nodes"."""
        taken = inspect.signature(self.prepare).parameters if self.prepare else {}
        return "weights" if "rule" in taken else "graph" if "graph" in taken else "nodes"


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


class Static(Periodic):
    """The same matrix in every round.

    Attributes
    ----------
    matrices : tuple[MixingMatrix, ...]
        The matrix alone.
    """

    def __init__(self, mixing: MixingMatrix) -> None:
        super().__init__((mixing,))


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


def as_schedule(source: MixingMatrix | Schedule | NDArray[Any]) -> Schedule:
    """Return a matrix as the schedule that uses it in every round; a schedule as it is."""
    if hasattr(source, "period"):
        return cast(Schedule, source)
    return Static(as_matrix(source))


def as_matrix(source: MixingMatrix | NDArray[Any]) -> MixingMatrix:
    """Return an array, dense or sparse, as a mixing matrix; a mixing matrix as it is."""
    return source if isinstance(source, MixingMatrix) else MixingMatrix.from_sparse(source)


# Maps a round, which may be below 1, and which of the chains, to numbers in [0, 1).
Uniform = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]


def states(rate: float, recovery: float, count: int, uniform: Uniform, k: int) -> NDArray[np.bool_]:
    """Return which of ``count`` stationary chains are there in round k."""
    there = np.zeros(count, bool)
    undecided = np.arange(count)
    turned = np.zeros(count, bool)
    while len(undecided):
        u = uniform(k, undecided)
        leaves, returns = u < rate, u >= 1.0 - recovery
        # Both at once is a change of state whichever it was; neither is none.
        decided = leaves != returns
        there[undecided[decided]] = returns[decided] ^ turned[undecided[decided]]
        turned[undecided[leaves & returns]] ^= True
        undecided = undecided[~decided]
        k -= 1
    return there


def uniforms(seed: int, purpose: str, k: int, items: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each item, a function of its arguments alone."""
    words = [seed, zlib.crc32(purpose.encode()), abs(k), int(k < 0)]
    base = np.random.SeedSequence(words).generate_state(1, np.uint64)
    z = base + (items.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    # The output function of SplitMix64 (Steele et al. 2014).
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)) * 2.0**-53)


@dataclass(frozen=True)
class Around:
    """Base class of schedules that change the matrices of ``inner``, and nothing else."""

    inner: Schedule

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.inner.n

    @property
    def period(self) -> int | None:
        """That of ``inner``."""
        return self.inner.period

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
        """Whether every matrix is doubly stochastic."""
        return self.inner.doubly_stochastic


@dataclass(frozen=True)
class Partial(Around):
    """Base class of ``inner`` with some edges removed in each round."""

    period = None

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
class LocalRounds(Around):
    """``inner`` with local rounds: only every ``every``-th round communicates.

    Attributes
    ----------
    inner : Schedule
        The schedule of the rounds that communicate.
    every : int
        The number of rounds from one to the next.
    """

    every: int

    @property
    def period(self) -> int | None:
        """``every`` times that of ``inner``, if it has one."""
        return None if self.inner.period is None else self.every * self.inner.period

    @property
    def tau(self) -> int:
        """``every`` times that of ``inner``."""
        return self.every * self.inner.tau

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1: the identity in local rounds."""
        turn, local = divmod(check_round(k), self.every)
        return identity(self.n) if local else self.inner.matrix(turn)


def thinned(
    schedule: Schedule,
    seed: int,
    *,
    drop_nodes: Probability = 0.0,
    drop_edges: Probability = 0.0,
    local_rounds: Annotated[int, Ge(1)] = 1,
    edge_failure: Annotated[float, Ge(0), Le(0.999)] = 0.0,
    edge_recovery: Annotated[float, Ge(0.001), Le(1)] = 0.5,
) -> Schedule:
    """Return a schedule without the nodes, edges and rounds that are lost; any takes these options.

    Parameters
    ----------
    drop_nodes
        Probability that a node is absent in a round.
    drop_edges
        Probability that an edge is lost in a round.
    local_rounds
        Only every so many rounds communicate.
    edge_failure
        Probability that a working edge fails before a round, and stays so until it recovers.
    edge_recovery
        Probability that an edge that has failed works again.
    """
    if drop_nodes:
        schedule = DropNodes(schedule, drop_nodes, seed)
    if drop_edges:
        schedule = DropEdges(schedule, drop_edges, seed)
    if edge_failure:
        schedule = BurstyEdges(schedule, edge_failure, edge_recovery, seed)
    return LocalRounds(schedule, local_rounds) if local_rounds > 1 else schedule
