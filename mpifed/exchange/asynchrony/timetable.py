"""Who takes part in a round of asynchronous gossip, and which values each client mixes.

The events are those of ``topologies.events``: they follow from the seconds of the clients'
computations and from the links, not from this computer. Two ways to mix:

**wait_free** (SWIFT, Bornstein et al. 2022, Alg. 1). When client j ends its computation, it sends
x_j + u_j to all that hear it, and mixes what has arrived:

    x_j <- W[j, j] (x_j + u_j) + sum_i W[j, i] (x_i + u_i) as of the latest version that is here

The weight of a neighbour from which nothing has come yet is j's own. If columns of W sum to one, a
client's values count in proportion to the seconds of its computation, and its updates in proportion
to seconds times frequency, so all alike: the limit is that of synchronous gossip to first order in
the step, whatever the speeds. SWIFT draws weights by activity to the same end.

**pairwise** (AD-PSGD, Lian et al. 2018, Alg. 1). When client i ends its computation, it averages
its value with that of one neighbour j, drawn with probability W[i, j] / (1 - W[i, i]), which
computes on without noticing, and adds its update:

    x_i, x_j <- (x_i + x_j) / 2;   x_i <- x_i + u_i

Its next computation begins when the answer is there. The mean over clients moves by u_i / n: fast
clients count more often, in proportion to their frequency.

Condition on the step in both papers: of the order of that of plain gossip, divided by the largest
staleness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import scipy.sparse

from mpifed.errors import RunError
from mpifed.exchange.asynchrony.plans import Arcs, Plan, arcs_of, mixed_in_pairs, mixed_wait_free
from mpifed.mpi.communicator import Communicator
from mpifed.random import client_keys
from topologies.events import Computations, Finished, Seconds, Versions
from topologies.parameters import TopologyError
from topologies.timing import Links

Mixes = Literal["wait_free", "pairwise"]


@dataclass
class Timetable:
    """The events of a run, from round to round; the same on every rank.

    Attributes
    ----------
    mixes : {'wait_free', 'pairwise'}
        How clients mix.
    links : Links
        The links among the training clients.
    bits : float
        The size of a client's message.
    seed : int
        The seed of the run, for whom pairs are drawn.
    computations : Computations
        When computations end.
    versions : Versions
        Which values are kept, and since when.
    round : int
        The last round that has begun.
    finished : Finished
        Whose computations end in it.
    present : ndarray of bool, shape (n_training,)
        Who is there.
    seconds : float
        When the last of them ends.
    staleness : ndarray of int64, shape (3,)
        Over all values that have been mixed: the sum of ``Plan.staleness``, their number, and the
        largest.
    changed : ndarray of int64, shape (n_training,)
        Averages by others since each client began to compute; none without pairs.
    """

    mixes: Mixes
    links: Links
    bits: float
    seed: int
    computations: Computations
    versions: Versions
    round: int = 0
    finished: Finished = field(default_factory=lambda: Finished(np.zeros(0, np.int64), np.zeros(0)))
    present: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    seconds: float = 0.0
    staleness: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))
    changed: np.ndarray = field(init=False)
    _arcs: tuple[scipy.sparse.csr_array, Arcs] | None = None
    """The matrix of the last round, and its arcs."""

    def __post_init__(self) -> None:
        pairs = self.mixes == "pairwise"
        self.changed = np.zeros(len(self.computations.ends) if pairs else 0, np.int64)

    def begin(self, round: int, present: np.ndarray) -> Finished:
        """Return whose computations end in a round, the last one or the one after it. Collective.

        Parameters
        ----------
        round : int
            The round, from 1.
        present : ndarray of bool, shape (n_training,)
            Who is there in the round. The computations of others are lost.

        Raises
        ------
        RunError
            If a computation takes no time.
        """
        if round == self.round + 1:
            try:
                self.finished = self.computations.round()
            except TopologyError as error:
                raise RunError(f"compute: {error}") from None
            self.round = round
            self.seconds = float(self.finished.times.max(initial=self.seconds))
        assert round == self.round
        self.present = present
        return self.finished

    def plan(self, weights_of_round: Callable[[], scipy.sparse.csr_array]) -> Plan:
        """Return what the participants of the round mix, and book what they keep. Collective.

        Parameters
        ----------
        weights_of_round : callable
            Returns W^k over all training clients.
        """
        made = self._made(weights_of_round())
        stale = made.staleness
        total, number, largest = self.staleness
        most = int(stale.max(initial=largest))
        self.staleness = np.array([total + stale.sum(), number + len(stale), most], np.int64)
        return made

    def _made(self, weights: scipy.sparse.csr_array) -> Plan:
        present, counts = self.present, self.computations.counts
        taking_part = present[self.finished.nodes]
        nodes, times = self.finished.nodes[taking_part], self.finished.times[taking_part]
        if self.mixes == "pairwise":
            partners = partners_of(weights, nodes, counts[nodes], self.seed)
            partners = np.where(present[partners], partners, nodes)
            return mixed_in_pairs(nodes, partners, self.changed)
        order = np.argsort(nodes)
        nodes, times = nodes[order], times[order]
        last = np.full(len(counts), -np.inf)
        last[self.finished.nodes] = self.finished.times
        if self._arcs is None or self._arcs[0] is not weights:
            self._arcs = weights, arcs_of(weights, self.links, self.bits)
        return mixed_wait_free(self._arcs[1], nodes, times, counts, last, self.versions)

    def stored(self) -> np.ndarray:
        """Return all that changes from round to round, as numbers of at least 0."""
        here = np.zeros((2, len(self.computations.ends)))
        here[0, self.finished.nodes], here[1, self.finished.nodes] = 1, self.finished.times
        going, kept = self.computations, self.versions
        parts = (going.ends, going.after, going.counts, here, kept.sent, kept.number, self.changed)
        first = [self.round, self.seconds, *self.staleness]
        return np.concatenate([first, *(part.ravel() for part in parts)])

    def restore(self, stored: np.ndarray) -> None:
        """Continue from what ``stored`` returned.

        Raises
        ------
        RunError
            If it is of other clients.
        """
        if stored.shape != self.stored().shape:
            raise RunError(
                f"the checkpoint has {len(stored)} numbers of its events, where "
                f"{len(self.stored())} are needed"
            )
        n, slots = self.versions.sent.shape
        (self.round, self.seconds), rest = (int(stored[0]), float(stored[1])), stored[5:]
        self.staleness = stored[2:5].astype(np.int64)
        clocks, rest = rest[: 5 * n].reshape(5, n), rest[5 * n :]
        kept = rest[: 2 * n * slots].reshape(2, n, slots)
        self.changed = rest[2 * n * slots :].astype(np.int64)
        going = self.computations
        going.ends, going.after = clocks[0].copy(), clocks[1].copy()
        going.counts = clocks[2].astype(np.int64)
        nodes = np.flatnonzero(clocks[3])
        order = np.lexsort((nodes, clocks[4, nodes]))
        self.finished = Finished(nodes[order], clocks[4, nodes[order]])
        self.versions = Versions(kept[0].copy(), kept[1].astype(np.int64))


def from_rank_0(communicator: Communicator, seconds: Seconds) -> Seconds:
    """Return the same function, computed by rank 0 alone: logarithms differ between processors."""
    if communicator.size == 1:
        return seconds

    def broadcast(numbers: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        made = seconds(numbers, nodes) if communicator.rank == 0 else None
        return communicator.broadcast(made)

    return broadcast


def partners_of(
    weights: scipy.sparse.csr_array, nodes: np.ndarray, numbers: np.ndarray, seed: int
) -> np.ndarray:
    """Return with whom each of some nodes averages after a computation.

    Parameters
    ----------
    weights : scipy.sparse.csr_array
        W over all nodes; j is drawn with probability W[i, j] / (1 - W[i, i]).
    nodes : ndarray of int64, shape (m,)
        The nodes i.
    numbers : ndarray of int64, shape (m,)
        The computation, from 1.
    seed : int
        The seed of the run.

    Returns
    -------
    ndarray of int64, shape (m,)
        The partners; a node itself where it has no neighbour.
    """
    partners = nodes.copy()
    keys = np.zeros(len(nodes), np.uint64)
    for number in np.unique(numbers):
        some = numbers == number
        keys[some] = client_keys(seed, "partner", int(number), nodes[some])
    draws = (keys >> np.uint64(11)) * 2.0**-53
    for k, (i, draw) in enumerate(zip(nodes, draws, strict=True)):
        row = slice(weights.indptr[i], weights.indptr[i + 1])
        others, share = weights.indices[row], np.abs(weights.data[row])
        share = np.cumsum(np.where(others == i, 0.0, share))
        if len(share) and share[-1] > 0:
            # A product that is rounded up to the sum would be beyond the last.
            level = min(draw * share[-1], np.nextafter(share[-1], 0))
            partners[k] = others[np.searchsorted(share, level, side="right")]
    return partners
