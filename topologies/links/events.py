"""When nodes finish their computations and read each other's values, where nobody waits.

A node computes, publishes what it has, mixes it with what has arrived of others, and computes again
at once. The time of node i after its p-th computation is T_i(p) = c_i(1) + ... + c_i(p): it depends
on no other node. What arrives when follows from these times and the links.

**Rounds.** Computations are taken in order of time. A round has all that end before the earliest
second end of any node since the round began, so each node has at most one in a round, and the
node that is the first to end twice begins the next round. A node that is ten times slower
than the fastest takes part in about every tenth round. With equal times a round is everybody's.

**Versions.** A node publishes before it mixes, so what it publishes in a round does not depend on
the others' computations of the round, and a round can be computed at once: node j at T_j reads of
node i the latest version that was sent at a time s with s + travel_ij <= T_j, of this round or an
earlier one. Only a few versions of each node are kept: while all but one of the slots are under
way, the node sends nothing new, so that what is overwritten is not read any more.

Everything is a function of the arguments: sums and comparisons of float64, alike on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.parameters import TopologyError

Array = NDArray[np.float64]
Nodes = NDArray[np.int64]

Seconds = Callable[[Nodes, Nodes], Array]
"""Seconds of the computations p >= 1, int64 (m,), of some nodes, int64 (m,): float64 (m,)."""


@dataclass(frozen=True)
class Finished:
    """The computations that end in a round.

    Attributes
    ----------
    nodes : ndarray of int64, shape (m,)
        The nodes, in order of time; those of equal times by number.
    times : ndarray of float64, shape (m,)
        When their computations end, in seconds from the start.
    """

    nodes: Nodes
    times: Array


@dataclass
class Computations:
    """The computations of all nodes, from round to round.

    Attributes
    ----------
    seconds : callable
        Seconds of a computation, above 0; see ``Seconds``.
    ends : ndarray of float64, shape (n,)
        When each node ends its present computation.
    after : ndarray of float64, shape (n,)
        The seconds of the one after it.
    counts : ndarray of int64, shape (n,)
        How many each node has finished.
    """

    seconds: Seconds
    ends: Array
    after: Array
    counts: Nodes

    @classmethod
    def start(cls, n: int, seconds: Seconds) -> Computations:
        """Return the computations of ``n`` nodes that all begin at 0.

        Raises
        ------
        TopologyError
            If a computation takes no time, here as in ``round``.

        Examples
        --------
        >>> slow_first = lambda p, nodes: np.where(nodes == 0, 2.5, 1.0)
        >>> going = Computations.start(2, slow_first)
        >>> [going.round().nodes.tolist() for _ in range(4)]
        [[1], [1, 0], [1], [1]]
        """
        nodes, first = np.arange(n), np.ones(n, np.int64)
        ends = _checked(seconds(first, nodes), nodes)
        after = _checked(seconds(first + 1, nodes), nodes)
        return cls(seconds, ends, after, np.zeros(n, np.int64))

    def round(self) -> Finished:
        """Return the computations of the next round, and begin those that follow them."""
        done = np.flatnonzero(self.ends < (self.ends + self.after).min(initial=np.inf))
        times = self.ends[done]
        self.counts[done] += 1
        self.ends[done] += self.after[done]
        self.after[done] = _checked(self.seconds(self.counts[done] + 2, done), done)
        order = np.lexsort((done, times))
        return Finished(done[order], times[order])


def _checked(seconds: Array, nodes: Nodes) -> Array:
    wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if len(wrong):
        raise TopologyError(
            f"a computation of node {nodes[wrong[0]]} takes {seconds[wrong[0]]:g} seconds; where "
            "nobody waits every computation must take time"
        )
    return seconds


@dataclass
class Versions:
    """Which versions of the nodes' values are kept, and since when they are on their way.

    Attributes
    ----------
    sent : ndarray of float64, shape (n, slots)
        When the version in each slot was sent.
    number : ndarray of int64, shape (n, slots)
        The computation that it is of, from 1; 0 where a slot is empty.
    """

    sent: Array
    number: Nodes

    @classmethod
    def empty(cls, n: int, slots: int) -> Versions:
        """Return ``slots`` empty slots for each of ``n`` nodes."""
        return cls(np.zeros((n, slots)), np.zeros((n, slots), np.int64))

    def latest(self, senders: Nodes, travel: Array, at: Array) -> Nodes:
        """Return the slot of the latest version that has arrived, for each arc; -1 for none.

        Parameters
        ----------
        senders : ndarray of int64, shape (arcs,)
            Whose versions are read.
        travel : ndarray of float64, shape (arcs,)
            The seconds from sending to arrival.
        at : ndarray of float64, shape (arcs,)
            When they are read.

        Examples
        --------
        >>> kept = Versions(np.array([[3.0, 4.0]]), np.array([[3, 4]]))
        >>> kept.latest(np.zeros(3, int), np.full(3, 0.5), np.array([3.0, 4.0, 4.5])).tolist()
        [-1, 0, 1]
        """
        arrived = (self.number[senders] > 0) & (self.sent[senders] + travel[:, None] <= at[:, None])
        number = np.where(arrived, self.number[senders], 0)
        return np.where(arrived.any(axis=1), number.argmax(axis=1), -1)

    def room(self, nodes: Nodes, reach: Array, at: Array) -> Nodes:
        """Return the slot into which each of some nodes can send, -1 where it has none.

        Parameters
        ----------
        nodes : ndarray of int64, shape (m,)
            The nodes.
        reach : ndarray of float64, shape (m,)
            The seconds until a version of each has arrived everywhere.
        at : ndarray of float64, shape (m,)
            When they want to send.
        """
        number = self.number[nodes]
        under_way = (number > 0) & (self.sent[nodes] + reach[:, None] > at[:, None])
        # With two that have arrived everywhere, the older is not read any more.
        return np.where(under_way.sum(axis=1) < number.shape[1] - 1, number.argmin(axis=1), -1)

    def send(self, nodes: Nodes, slots: Nodes, at: Array, numbers: Nodes) -> None:
        """Keep new versions of some nodes.

        Parameters
        ----------
        nodes, slots : ndarray of int64, shape (m,)
            The nodes, and what ``room`` has found for them.
        at : ndarray of float64, shape (m,)
            When they are sent.
        numbers : ndarray of int64, shape (m,)
            The computations that they are of.
        """
        self.sent[nodes, slots] = at
        self.number[nodes, slots] = numbers


def averaged_in_turn(nodes: Nodes, partners: Nodes, touched: Nodes) -> tuple[Array, Array]:
    """Return the matrices of pairwise averages that are made one after the other.

    When node i ends its computation it averages its value with its partner's, and adds what it has
    computed: x_i, x_j <- (x_i + x_j) / 2, then x_i <- x_i + u_i (Lian et al. 2018, Alg. 1).

    Parameters
    ----------
    nodes : ndarray of int64, shape (m,)
        Who ends its computation, in order of time, each at most once.
    partners : ndarray of int64, shape (m,)
        With whom each averages; itself for nobody.
    touched : ndarray of int64, shape (t,)
        All nodes in ``nodes`` and ``partners``, ascending.

    Returns
    -------
    values : ndarray of float64, shape (t, t + m)
        The values of ``touched`` at the end, in terms of (the values of ``touched`` before, the
        values before plus what was computed, of ``nodes``). Rows sum to one.
    own : ndarray of float64, shape (m, t + m)
        The same for the value of each of ``nodes`` right after its own computation.

    Examples
    --------
    >>> averaged_in_turn(np.array([1]), np.array([0]), np.array([0, 1]))[0].tolist()
    [[0.5, 0.5, 0.0], [0.5, -0.5, 1.0]]
    """
    t, m = len(touched), len(nodes)
    values, own = np.eye(t, t + m), np.empty((m, t + m))
    place, other = np.searchsorted(touched, nodes), np.searchsorted(touched, partners)
    for k, (i, j) in enumerate(zip(place, other, strict=True)):
        mean = (values[i] + values[j]) / 2
        values[j] = values[i] = mean
        values[i, i] -= 1
        values[i, t + k] += 1
        own[k] = values[i]
    return values, own
