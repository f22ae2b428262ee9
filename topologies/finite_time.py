"""Periodic schedules of sparse rounds; most of them reach the exact mean after one period."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from functools import partial

import numpy as np
from numpy.typing import NDArray

from topologies.matrix import MixingMatrix
from topologies.sequences import Drawn, Periodic, identity

Nodes = NDArray[np.int64]
Rounds = defaultdict[int, list[tuple[int, int, float]]]


def one_peer_exponential(n: int) -> Periodic:
    """Return the schedule in which each node averages with one node before it.

    In round k it is the node 2^((k - 1) mod ceil(log2 n)) before. The matrices are directed and
    doubly stochastic, with one message per node and round. After a period the mean is exact if n is
    a power of two. Assran et al. 2019 (Stochastic gradient push for distributed deep learning);
    Ying et al. 2021 (Exponential graph is provably efficient for decentralized deep training).

    Parameters
    ----------
    n : int
        The number of nodes.

    Returns
    -------
    Periodic
        A schedule of period ceil(log2 n), at least 1.

    Examples
    --------
    >>> one_peer_exponential(8).period
    3
    """
    return Periodic(tuple(_circulant(n, [hop], 0.5) for hop in _hops(n)) or (identity(n),))


def static_exponential(n: int) -> Periodic:
    """Return the schedule in which node i averages itself and all nodes 2^k < n before it equally.

    The matrix is directed and doubly stochastic. Ying et al. 2021, section 3.

    Parameters
    ----------
    n : int
        The number of nodes.

    Returns
    -------
    Periodic
        A schedule of period 1.
    """
    hops = _hops(n)
    return Periodic((_circulant(n, hops, 1 / (len(hops) + 1)),))


def equitopo(n: int, seed: int, step: float = 0.5) -> Drawn:
    """Return the schedule in which every node averages with the node u before it, u random.

    u is drawn anew in each round from 1 .. n-1, and W = (1 - step) I + step (I / n + (n - 1) / n
    P^u) for the cyclic shift P. The matrices are directed and doubly stochastic; the mean
    contraction does not depend on n. This is the one-peer directed form of Song et al. 2022
    (Communication-efficient topologies for decentralized learning with O(1) consensus rate).

    Parameters
    ----------
    n : int
        The number of nodes.
    seed : int
        The seed of all draws.
    step : float, default 0.5
        The weight of the exchange, in (0, 1].

    Returns
    -------
    Drawn
        The random schedule.
    """
    weight = step * (n - 1) / n
    draw = partial(_draw_shift, n=n, weight=weight)
    square = partial(_mean_square_of_shifts, n, step)
    return Drawn(n, seed, draw, symmetric=n <= 2, mean_square=square)


def _mean_square_of_shifts(n: int, step: float) -> NDArray[np.float64]:
    """Return E[W'W]: on average over u, P^u is -1 / (n - 1) on what is orthogonal to 1."""
    spread = (1 - step) ** 2 + step**2 * ((n - 1) ** 2 - 1) / n**2 if n > 1 else 0.0
    return spread * np.eye(n) + (1 - spread) / n


def _draw_shift(random: np.random.Generator, n: int, weight: float) -> MixingMatrix:
    return _circulant(n, [int(random.integers(1, n)) if n > 1 else 0], weight)


def _hops(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())]


def _circulant(n: int, hops: list[int], weight: float) -> MixingMatrix:
    """Return W in which each node gives the weight to the node ``hop`` before it, for every hop."""
    if n <= 2:
        # There and back are the same edge, so that the matrix is symmetric.
        edges = np.array([(0, 1)] * (n - 1), dtype=np.int64)
        return MixingMatrix(n, edges, np.full(len(edges), weight))
    i = np.tile(np.arange(n), len(hops))
    edges = np.stack([i, (i - np.repeat(hops, n)) % n], axis=1)
    return MixingMatrix(n, edges, np.full(len(edges), weight), symmetric=False)


def base_k(n: int, peers: int = 1) -> Periodic:
    """Return rounds with at most ``peers`` neighbours per node, after which the mean is exact.

    The matrices are symmetric and doubly stochastic, for any n, and the period is at most
    2 log_(peers + 1) n + 2: the Base-(k+1) graph with k = ``peers`` of Takezawa et al. 2023 (Beyond
    exponential graph: communication-efficient topologies for decentralized learning via finite-time
    convergence).

    Parameters
    ----------
    n : int
        The number of nodes.
    peers : int, default 1
        The largest number of neighbours of a node in a round.

    Returns
    -------
    Periodic
        The schedule.

    Examples
    --------
    >>> rounds = base_k(6)
    >>> product = np.eye(6)
    >>> for k in range(1, rounds.period + 1):
    ...     product = rounds.matrix(k).to_dense() @ product
    >>> bool(np.allclose(product, 1 / 6))
    True
    """
    nodes, base = np.arange(n), peers + 1
    factors: list[int] = []
    for factor in range(base, 1, -1):
        while n // int(np.prod(factors)) % factor == 0:
            factors.append(factor)
    # Where n has small factors, averaging as many rows side by side and then across may be shorter.
    rows = nodes.reshape(*factors, -1)
    across: Rounds = defaultdict(list)
    for row in rows.reshape(-1, rows.shape[-1]):
        _add(across, 0, _mean_of(row, base))
    _add(across, len(across), _average(rows, range(len(factors))))
    shortest = min(across, _mean_of(nodes, base), key=len)
    matrices = []
    for k in range(len(shortest)):
        i, j, weights = zip(*shortest[k], strict=True)
        matrices.append(MixingMatrix(n, np.stack([i, j], axis=1), np.array(weights)))
    return Periodic(tuple(matrices) or (identity(n),))


def _mean_of(nodes: Nodes, base: int) -> Rounds:
    """Return rounds that average all ``nodes``, split by the digits of their number.

    A digit d at place p is a part of d blocks of base^p nodes. First each block averages itself.
    Then, part by part, every node of the later parts exchanges with one node of each block of the
    part, with weights that give the part and the later ones the same mean. The part then averages
    itself, while the later ones continue with the next part.
    """
    parts, rest, size = [], nodes, 1
    while size * base <= len(nodes):
        size *= base
    while len(rest):
        digit = len(rest) // size
        if digit:
            shape = [digit] + [base] * round(math.log(size, base))
            parts.append(rest[: digit * size].reshape(shape))
            rest = rest[digit * size :]
        size //= base

    rounds: Rounds = defaultdict(list)
    for part in parts:
        _add(rounds, 0, _average(part, range(1, part.ndim)))
    start = len(rounds)
    for turn, part in enumerate(parts[:-1]):
        blocks = part.reshape(len(part), -1)
        behind = np.concatenate([later.ravel() for later in parts[turn + 1 :]])
        weight = part.size / (part.size + len(behind)) / len(blocks)
        for block in blocks:
            pairs = zip(block.tolist(), behind.tolist(), strict=False)
            rounds[start + turn] += [(i, j, weight) for i, j in pairs]
        _add(rounds, start + turn + 1, _average(part, range(part.ndim)))
    _add(rounds, start + len(parts) - 1, _average(parts[-1], range(1)))
    return rounds


def _average(grid: Nodes, axes: range) -> Rounds:
    """Return rounds that average along the given axes in turn; an axis of length one needs none."""
    rounds: Rounds = defaultdict(list)
    for k, axis in enumerate(axis for axis in axes if grid.shape[axis] > 1):
        size = grid.shape[axis]
        for group in np.moveaxis(grid, axis, -1).reshape(-1, size).tolist():
            rounds[k] += [(i, j, 1 / size) for i, j in itertools.combinations(group, 2)]
    return rounds


def _add(rounds: Rounds, start: int, more: Rounds) -> None:
    for k, edges in more.items():
        rounds[start + k] += edges
