"""Periodic schedules of symmetric sparse rounds that reach the exact mean after one period."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from topologies.matrix import MixingMatrix
from topologies.parameters import TopologyError
from topologies.sequences import Periodic, identity

Nodes = NDArray[np.int64]
Rounds = defaultdict[int, list[tuple[int, int, float]]]


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
    return _periodic(n, min(across, _mean_of(nodes, base), key=len))


def simple_base_k(n: int, peers: int = 1) -> Periodic:
    """Return the Simple Base-(k+1) graph, k = ``peers``: ``base_k`` without its factors of n.

    The period is at most 2 log_(peers + 1) n + 2, and never below that of ``base_k`` (Takezawa et
    al. 2023, section 4.2).

    Parameters
    ----------
    n : int
        The number of nodes.
    peers : int, default 1
        The largest number of neighbours of a node in a round.

    Returns
    -------
    Periodic
        The schedule; symmetric, exact after a period for any n.
    """
    return _periodic(n, _mean_of(np.arange(n), peers + 1))


def hyper_hypercube(n: int, peers: int | None = None) -> Periodic:
    """Return the k-peer hyper-hypercube, k = ``peers``: one round for each factor of n.

    Nodes are the digits of their number in a mixed base of factors of at most peers + 1, and those
    that differ in one digit average with each other in its round (Takezawa et al. 2023, section
    4.1). The hypercube with one peer a round is that of n = 2^d.

    Parameters
    ----------
    n : int
        The number of nodes.
    peers : int, optional
        The largest number of neighbours of a node in a round. None is the least that n allows, its
        largest prime factor less one.

    Returns
    -------
    Periodic
        The schedule with the fewest rounds; symmetric, exact after a period.

    Raises
    ------
    TopologyError
        If n has a prime factor above peers + 1.

    Examples
    --------
    >>> hyper_hypercube(12).period, hyper_hypercube(12, 3).period
    (3, 2)
    """
    largest = max(prime_factors(n), default=1)
    most = max(1, largest - 1) if peers is None else peers
    if largest > most + 1:
        raise TopologyError(
            f"hyper_hypercube: peers is {most}, but n is {n}, whose prime factor {largest} needs "
            f"peers of at least {largest - 1}; base_k takes any n"
        )
    factors = _fewest_factors(n, most + 1)
    return _periodic(n, _average(np.arange(n).reshape(factors or (1,)), range(len(factors))))


def prime_factors(n: int) -> list[int]:
    """Return the prime factors of n in ascending order, with repetition.

    Parameters
    ----------
    n : int
        A number of at least 1.

    Returns
    -------
    list of int
        The factors; none for 1.

    Examples
    --------
    >>> prime_factors(60)
    [2, 2, 3, 5]
    """
    factors, factor = [], 2
    while factor * factor <= n:
        while n % factor == 0:
            factors.append(factor)
            n //= factor
        factor += 1
    return factors + [n] * (n > 1)


def _fewest_factors(n: int, most: int) -> tuple[int, ...]:
    """Return the fewest factors of at most ``most`` whose product is n, the largest first."""
    best: dict[int, tuple[int, ...]] = {1: ()}
    for m in (m for m in range(2, n + 1) if n % m == 0):
        parts = [(f, *best[m // f]) for f in range(2, min(m, most) + 1) if m % f == 0]
        best[m] = min(parts, key=lambda part: (len(part), part))
    return tuple(sorted(best[n], reverse=True))


def _periodic(n: int, rounds: Rounds) -> Periodic:
    matrices = []
    for k in range(len(rounds)):
        i, j, weights = zip(*rounds[k], strict=True)
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
