"""Epidemic learning (De Vos et al. 2023): in each round a node sends to a few random others."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.matrix import MixingMatrix
from topologies.schedules.sequences import Drawn

Nodes = NDArray[np.int64]


def epidemic(
    n: int, seed: int, *, sends: Annotated[int, Ge(1)] = 1, regular: bool = False
) -> Drawn:
    """Every node sends to a few random others; directed (Epidemic Learning).

    Parameters
    ----------
    sends
        Receivers of a node in a round.
    regular
        Whether each also receives so many, so that rounds keep the mean.
    """
    if sends > max(1, n - 1):
        raise TopologyError(
            f"epidemic: sends is {sends}, but each of {n} nodes has {n - 1} others; "
            f"it must be an integer in [1, {max(1, n - 1)}]"
        )
    draw = partial(_draw, n=n, pick=partial(_regular if regular else _out, n=n, sends=sends))
    square = partial(_mean_square, n, sends) if regular else None
    return Drawn(n, seed, draw, symmetric=False, doubly_stochastic=regular, mean_square=square)


def _draw(random: np.random.Generator, n: int, pick: partial[Nodes]) -> MixingMatrix:
    """Return W from the receivers of each node, (nodes, sends)."""
    if n == 1:
        return MixingMatrix(n, np.zeros((0, 2), dtype=np.int64), np.zeros(0), symmetric=False)
    receivers = pick(random)
    senders = np.broadcast_to(np.arange(n)[:, None], receivers.shape)
    edges = np.stack([receivers.ravel(), senders.ravel()], axis=1)
    arrived = np.bincount(edges[:, 0], minlength=n)
    return MixingMatrix(n, edges, 1 / (1 + arrived[edges[:, 0]]), symmetric=False)


def _out(random: np.random.Generator, n: int, sends: int) -> Nodes:
    """Draw ``sends`` distinct others for each node, uniformly (Floyd's algorithm, 1987)."""
    chosen = np.full((n, sends), -1, dtype=np.int64)
    for column, last in enumerate(range(n - 1 - sends, n - 1)):
        drawn = random.integers(0, last + 1, size=n)
        taken = (chosen == drawn[:, None]).any(axis=1)
        chosen[:, column] = np.where(taken, last, drawn)
    # 0 .. n-2 are the others of a node, which are numbered past it.
    return chosen + (chosen >= np.arange(n)[:, None])


def _regular(random: np.random.Generator, n: int, sends: int) -> Nodes:
    """Draw distinct distances on a ring of the nodes in random order."""
    order = random.permutation(n)
    hops = random.permutation(n - 1)[:sends] + 1
    receivers = np.empty((n, sends), dtype=np.int64)
    receivers[order] = order[(np.arange(n)[:, None] + hops) % n]
    return receivers


def _mean_square(n: int, sends: int) -> NDArray[np.float64]:
    """Return E[W'W]: nodes are alike, columns have s + 1 weights 1 / (s + 1), rows sum to one."""
    diagonal = 1 / (sends + 1) if n > 1 else 1.0
    off_diagonal = (1 - diagonal) / max(1, n - 1)
    return off_diagonal * np.ones((n, n)) + (diagonal - off_diagonal) * np.eye(n)
