"""When nodes finish their computations and read each other's values, where nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError

Array = NDArray[np.float64]
Nodes = NDArray[np.int64]

# Seconds of the computations p >= 1, int64 (m,), of some nodes, int64 (m,): float64 (m,).
Seconds = Callable[[Nodes, Nodes], Array]


@dataclass(frozen=True)
class Finished:
    """The computations that end in a round."""

    nodes: Nodes
    times: Array


@dataclass
class Computations:
    """The computations of all nodes, from round to round."""

    seconds: Seconds
    ends: Array
    after: Array
    counts: Nodes

    @classmethod
    def start(cls, n: int, seconds: Seconds) -> Computations:
        """Return the computations of ``n`` nodes that all begin at 0."""
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
    """Which versions of the nodes' values are kept, and since when they are on their way."""

    sent: Array
    number: Nodes

    @classmethod
    def empty(cls, n: int, slots: int) -> Versions:
        """Return ``slots`` empty slots for each of ``n`` nodes."""
        return cls(np.zeros((n, slots)), np.zeros((n, slots), np.int64))

    def latest(self, senders: Nodes, travel: Array, at: Array) -> Nodes:
        """Return the slot of the latest version that has arrived, for each arc; -1 for none."""
        arrived = (self.number[senders] > 0) & (self.sent[senders] + travel[:, None] <= at[:, None])
        number = np.where(arrived, self.number[senders], 0)
        return np.where(arrived.any(axis=1), number.argmax(axis=1), -1)

    def room(self, nodes: Nodes, reach: Array, at: Array) -> Nodes:
        """Return the slot into which each of some nodes can send, -1 where it has none."""
        number = self.number[nodes]
        under_way = (number > 0) & (self.sent[nodes] + reach[:, None] > at[:, None])
        # With two that have arrived everywhere, the older is not read any more.
        return np.where(under_way.sum(axis=1) < number.shape[1] - 1, number.argmin(axis=1), -1)

    def send(self, nodes: Nodes, slots: Nodes, at: Array, numbers: Nodes) -> None:
        """Keep new versions of some nodes."""
        self.sent[nodes, slots] = at
        self.number[nodes, slots] = numbers


def averaged_in_turn(nodes: Nodes, partners: Nodes, touched: Nodes) -> tuple[Array, Array]:
    """Return the matrices of pairwise averages that are made one after the other. x_i, x_j <- (x_i
    + x_j) / 2, then x_i <- x_i + u_i (Lian et al. 2018, Alg. 1).
    """
    t, m = len(touched), len(nodes)
    values, after = np.eye(t, t + m), np.empty((m, t + m))
    row, partner_row = np.searchsorted(touched, nodes), np.searchsorted(touched, partners)
    for k, (i, j) in enumerate(zip(row, partner_row, strict=True)):
        mean = (values[i] + values[j]) / 2
        values[j] = values[i] = mean
        values[i, i] -= 1
        values[i, t + k] += 1
        after[k] = values[i]
    return values, after
