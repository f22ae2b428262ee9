"""Schedules of circulant matrices: node i hears the nodes i - s for the same shifts s."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from topologies.finite_time import prime_factors
from topologies.matrix import MixingMatrix
from topologies.sequences import Periodic, identity


def circulant(
    n: int, shifts: Iterable[int], weight: float, *, symmetric: bool = False
) -> MixingMatrix:
    """Return W in which each node gives a weight to the node ``shift`` before it, for every shift.

    Equal shifts modulo n add their weights, and a shift of 0 modulo n is the node itself.

    Parameters
    ----------
    n : int
        The number of nodes.
    shifts : iterable of int
        The shifts.
    weight : float
        The weight of each shift.
    symmetric : bool, default False
        Whether the shifts come with their opposites, and each pair of nodes is one edge. There and
        back are always the same edge for n <= 2.

    Returns
    -------
    MixingMatrix
        The doubly stochastic matrix.

    Examples
    --------
    >>> circulant(4, [1], 0.5).neighbours(0)[0].tolist()
    [3]
    """
    symmetric = symmetric or n <= 2
    total: dict[int, float] = {}
    for shift in shifts:
        if shift % n and not (symmetric and 2 * (shift % n) > n):
            total[shift % n] = total.get(shift % n, 0.0) + weight
    nodes = np.arange(n)
    parts, values = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
    for step, share in total.items():
        # A shift by half of n pairs the nodes: each edge would come twice.
        ends = nodes[: n // 2] if symmetric and 2 * step == n else nodes
        pairs = np.stack([ends, (ends - step) % n], axis=1)
        parts.append(np.sort(pairs, axis=1) if symmetric else pairs)
        values.append(np.full(len(ends), share))
    return MixingMatrix(n, np.concatenate(parts), np.concatenate(values), symmetric=symmetric)


def powers(n: int, base: int = 2) -> list[int]:
    """Return 1, base, base^2, ... below n.

    Parameters
    ----------
    n : int
        The number of nodes.
    base : int, default 2
        The base.

    Returns
    -------
    list of int
        The powers; none for n = 1.

    Examples
    --------
    >>> powers(9), powers(9, 3)
    ([1, 2, 4, 8], [1, 3])
    """
    found = [1] if n > 1 else []
    while found and found[-1] * base < n:
        found.append(found[-1] * base)
    return found


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
    return k_peer_exponential(n, 1)


def k_peer_exponential(n: int, peers: int = 1) -> Periodic:
    """Return the schedule in which each node averages with ``peers`` nodes before it.

    In round t they are j (peers + 1)^((t - 1) mod period) before, j = 1 .. peers, all with weight
    1 / (peers + 1). The mean is exact after a period if n is a power of peers + 1.

    Parameters
    ----------
    n : int
        The number of nodes.
    peers : int, default 1
        The number of nodes that each node hears in a round, at most.

    Returns
    -------
    Periodic
        A schedule of period ceil(log_(peers + 1) n), at least 1. Matrices are directed and doubly
        stochastic.

    Examples
    --------
    >>> rounds = k_peer_exponential(9, 2)
    >>> product = rounds.matrix(2).to_dense() @ rounds.matrix(1).to_dense()
    >>> bool(np.allclose(product, 1 / 9))
    True
    """
    rounds = [
        circulant(n, [j * hop for j in range(1, peers + 1)], 1 / (peers + 1))
        for hop in powers(n, peers + 1)
    ]
    return Periodic(tuple(rounds) or (identity(n),))


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
    hops = powers(n)
    return Periodic((circulant(n, hops, 1 / (len(hops) + 1)),))


def null_cascade(n: int) -> Periodic:
    """Return commuting symmetric rounds of at most two peers, after which the mean is exact.

    A circulant matrix multiplies the Fourier mode m by its eigenvalue. That of the round
    (1 - 2 w) I + w (P^s + P^-s) is 1 - 2 w (1 - cos(2 pi m s / n)), which w = 1 / (2 - 2 cos)
    makes zero for m and for all modes with the same cosine. For a prime factor p of n, p // 2
    rounds with shifts that are multiples of n / p null all modes but the multiples of p; those are
    the modes of n / p nodes, where the next factor takes its turn. The multiples are chosen so that
    each cosine is near -1, and w near 1/4. As the matrices commute, a period may begin at any
    round. Commuting matrices that null one mode after the other for every n are the idea of the
    null-cascade graph; these shifts and weights may differ from its own.

    Parameters
    ----------
    n : int
        The number of nodes.

    Returns
    -------
    Periodic
        As many rounds as the sum of p // 2 over the prime factors p of n, with repetition.

    Examples
    --------
    >>> null_cascade(15).period, null_cascade(64).period
    (3, 6)
    """
    rounds, left = [], n
    for p in prime_factors(n):
        left //= p
        half = p // 2
        weight = 1 / (2 - 2 * math.cos(2 * math.pi * half / p))
        for mode in range(1, half + 1):
            # The shift that turns this mode by the angle next to pi.
            shift = half * pow(mode, -1, p) % p * left
            rounds.append(circulant(n, [shift, -shift], weight, symmetric=True))
    return Periodic(tuple(rounds) or (identity(n),))
