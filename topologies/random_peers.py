"""Schedules in which nodes choose their peers at random in every round."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from topologies.matrix import MixingMatrix
from topologies.parameters import TopologyError
from topologies.sequences import Drawn


def random_out(n: int, seed: int, peers: int = 1) -> Drawn:
    """Return the schedule in which every node sends to ``peers`` others, drawn anew each round.

    A node averages its own value and those that it receives equally, so rows sum to one, but
    columns do not: the mean moves. It is the s-out sampling of epidemic learning, EL-Local with
    s = ``peers`` (de Vos, Farhadkhani, Guerraoui, Kermarrec, Pires and Sharma 2023, Epidemic
    learning: boosting decentralized learning with randomized communication).

    Parameters
    ----------
    n : int
        The number of nodes.
    seed : int
        The seed of all draws.
    peers : int, default 1
        The number s of messages that a node sends in a round, below n where n > 1.

    Returns
    -------
    Drawn
        The random schedule; directed, not doubly stochastic.

    Raises
    ------
    TopologyError
        If there are not so many other nodes.

    Examples
    --------
    >>> matrix = random_out(6, 0, peers=2).matrix(1)
    >>> len(matrix.edges), bool(np.allclose(matrix.to_dense().sum(axis=1), 1))
    (12, True)
    """
    if n > 1 and peers >= n:
        raise TopologyError(f"random_out: peers is {peers}, but n is {n}; it must be below n")
    draw = partial(_draw_out, n=n, peers=peers if n > 1 else 0)
    return Drawn(n, seed, draw, symmetric=False, doubly_stochastic=n == 1)


def _draw_out(random: np.random.Generator, n: int, peers: int) -> MixingMatrix:
    receivers = (distinct(random, n, peers) + np.arange(n)[:, None] + 1) % max(n, 1)
    senders = np.repeat(np.arange(n), peers)
    heard = np.bincount(receivers.ravel(), minlength=n)
    edges = np.stack([receivers.ravel(), senders], axis=1)
    return MixingMatrix(n, edges, 1 / (1.0 + heard[edges[:, 0]]), symmetric=False)


def distinct(random: np.random.Generator, n: int, count: int) -> NDArray[np.int64]:
    """Return ``count`` distinct numbers of 0 .. n-2 for each of n nodes, int64 (n, count).

    Floyd's algorithm (Bentley and Floyd 1987), for all nodes at once.
    """
    chosen = np.empty((n, count), dtype=np.int64)
    for k in range(count):
        top = n - 1 - count + k
        drawn = random.integers(0, top + 1, size=n)
        taken = (chosen[:, :k] == drawn[:, None]).any(axis=1)
        chosen[:, k] = np.where(taken, top, drawn)
    return chosen
