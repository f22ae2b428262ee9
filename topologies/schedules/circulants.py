"""Schedules of circulant matrices, and periodic ones that reach the exact mean.

Exponential graphs are those of Ying et al. 2021, Base-(k+1) graphs those of Takezawa et al. 2023,
and the four of EquiTopo those of Song et al. 2022, which are drawn.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.matrix import MixingMatrix
from topologies.node_counts import prime_factors
from topologies.schedules.sequences import Drawn, Periodic, identity, stream

Nodes = NDArray[np.int64]
Count = Annotated[int, Ge(1)]
Step = Annotated[float, Gt(0), Le(1)]
Rounds = defaultdict[int, list[tuple[int, int, float]]]


def base_k(n: int, *, peers: Count = 1) -> Periodic:
    """Few neighbours a round, the exact mean after a period (Base-(k+1) graph, Takezawa 2023).

    Parameters
    ----------
    peers
        Most neighbours of a node in a round.
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


def simple_base_k(n: int, *, peers: Count = 1) -> Periodic:
    """As base_k, without factors of n (Simple Base-(k+1) graph).

    The period is at most 2 log_(peers + 1) n + 2, and never below that of ``base_k`` (Takezawa et
    al. 2023, section 4.2).

    Parameters
    ----------
    peers
        Most neighbours of a node in a round.
    """
    return _periodic(n, _mean_of(np.arange(n), peers + 1))


def hyper_hypercube(n: int, *, peers: Count | None = None) -> Periodic:
    """A round for each factor of n, the exact mean after a period (k-peer hyper-hypercube).

    Nodes are the digits of their number in a mixed base of factors of at most peers + 1, and those
    that differ in one digit average with each other in its round (Takezawa et al. 2023, section
    4.1).

    Parameters
    ----------
    peers
        Most neighbours of a node in a round. None is the fewest that n allows.
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
    """Return rounds that average all ``nodes``, split by the digits of their number (Takezawa et
    al. 2023, Algorithm 2).
    """
    if max(prime_factors(len(nodes)), default=1) <= base:
        factors = _fewest_factors(len(nodes), base)
        return _average(nodes.reshape(factors or (1,)), range(len(factors)))
    parts, unsplit, size = [], nodes, 1
    while size * base <= len(nodes):
        size *= base
    while len(unsplit):
        digit = len(unsplit) // size
        if digit:
            shape = [digit] + [base] * round(math.log(size, base))
            parts.append(unsplit[: digit * size].reshape(shape))
            unsplit = unsplit[digit * size :]
        size //= base

    rounds: Rounds = defaultdict(list)
    for part in parts:
        _add(rounds, 0, _average(part, range(part.ndim)))
    start = len(rounds)
    for turn, part in enumerate(parts[:-1]):
        blocks = part.reshape(len(part), -1)
        behind = np.concatenate([later.ravel() for later in parts[turn + 1 :]])
        weight = part.size / (part.size + len(behind)) / len(blocks)
        for block in blocks:
            pairs = zip(block.tolist(), behind.tolist(), strict=False)
            rounds[start + turn] += [(i, j, weight) for i, j in pairs]
        # Every block of the part now has the mean of all.
        _add(rounds, start + turn + 1, _average(part, range(1, part.ndim)))
    return rounds


def _average(grid: Nodes, axes: range) -> Rounds:
    """Return rounds that average along the given axes in turn; an axis of length one needs none."""
    rounds: Rounds = defaultdict(list)
    for k, axis in enumerate(axis for axis in axes if grid.shape[axis] > 1):
        size = grid.shape[axis]
        for group in np.moveaxis(grid, axis, -1).reshape(-1, size).tolist():
            rounds[k] += [(i, j, 1 / size) for i, j in itertools.combinations(group, 2)]
    return rounds


def _add(rounds: Rounds, start: int, added: Rounds) -> None:
    for k, edges in added.items():
        rounds[start + k] += edges


def circulant(
    n: int, shifts: Iterable[int], weight: float, *, symmetric: bool = False
) -> MixingMatrix:
    """Return W in which each node gives a weight to the node ``shift`` before it, for
    every shift.
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
    """Return 1, base, base^2, ... below n."""
    numbers = [1] if n > 1 else []
    while numbers and numbers[-1] * base < n:
        numbers.append(numbers[-1] * base)
    return numbers


def one_peer_exponential(n: int) -> Periodic:
    """Averages with the node 1, 2, 4, ... before; directed (Assran 2019, Ying 2021)."""
    return k_peer_exponential(n, peers=1)


def k_peer_exponential(n: int, *, peers: Count = 1) -> Periodic:
    """Averages with nodes j (peers + 1)^t before, j = 1 .. peers; directed.

    Parameters
    ----------
    peers
        Most neighbours of a node in a round.
    """
    rounds = [
        circulant(n, [j * hop for j in range(1, peers + 1)], 1 / (peers + 1))
        for hop in powers(n, peers + 1)
    ]
    return Periodic(tuple(rounds) or (identity(n),))


def static_exponential(n: int) -> Periodic:
    """Averages with all nodes 1, 2, 4, ... before; directed (Ying et al. 2021, section 3)."""
    hops = powers(n)
    return Periodic((circulant(n, hops, 1 / (len(hops) + 1)),))


def null_cascade(n: int) -> Periodic:
    """Commuting rounds of two peers, the exact mean after a period (after the null-cascade)."""
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


def d_equistatic(n: int, seed: int, *, shifts: Count | None = None) -> Periodic:
    """The mean of random shifts in every round; directed (EquiTopo, Song et al. 2022).

    With M shifts drawn with replacement from 1 .. n-1, the factor on the distance from consensus is
    at most rho with probability 1 - p if M >= 8 ln(2 n / p) / (3 rho^2) (Theorem 1).

    Parameters
    ----------
    shifts
        Shifts that are drawn. None is ceil(log2 n).
    """
    return _equistatic(n, seed, shifts, directed=True)


def u_equistatic(n: int, seed: int, *, shifts: Count | None = None) -> Periodic:
    """The mean of random shifts and their opposites in every round (EquiTopo, Theorem 2).

    Parameters
    ----------
    shifts
        Shifts that are drawn. None is ceil(log2 n).
    """
    return _equistatic(n, seed, shifts, directed=False)


def _equistatic(n: int, seed: int, shifts: int | None, *, directed: bool) -> Periodic:
    if n == 1:
        return Periodic((identity(1),))
    drawn = basis(n, seed, shifts)
    weight = (n - 1) / n / len(drawn)
    if directed:
        return Periodic((circulant(n, drawn.tolist(), weight),))
    both = [*drawn.tolist(), *(-drawn).tolist()]
    return Periodic((circulant(n, both, weight / 2, symmetric=True),))


def basis(n: int, seed: int, shifts: int | None) -> NDArray[np.int64]:
    """Return ``shifts`` draws from 1 .. n-1 with replacement, n > 1; None is ceil(log2 n)."""
    count = (n - 1).bit_length() if shifts is None else shifts
    return stream(seed, "basis", 1).integers(1, n, size=count)


def equitopo(n: int, seed: int, *, step: Step = 0.5) -> Drawn:
    """Averages with the node a random number before; directed (OD-EquiDyn of all shifts).

    Parameters
    ----------
    step
        Weight of the exchange.
    """
    weight = step * (n - 1) / n

    def draw(random: np.random.Generator) -> MixingMatrix:
        return circulant(n, [int(random.integers(1, n)) if n > 1 else 0], weight)

    def square() -> NDArray[np.float64]:
        # On average over u, P^u is -1 / (n - 1) on what is orthogonal to 1.
        spread = (1 - step) ** 2 + step**2 * ((n - 1) ** 2 - 1) / n**2 if n > 1 else 0.0
        return spread * np.eye(n) + (1 - spread) / n

    return Drawn(n, seed, draw, symmetric=n <= 2, mean_square=square)


def od_equidyn(n: int, seed: int, *, step: Step = 0.5, shifts: Count | None = None) -> Drawn:
    """One of the shifts of a d_equistatic in each round; directed (EquiTopo).

    Parameters
    ----------
    step
        Weight of the exchange.
    shifts
        Shifts that are drawn. None is ceil(log2 n).
    """
    if n == 1:
        return equitopo(n, seed, step=step)
    drawn, weight = basis(n, seed, shifts), step * (n - 1) / n

    def draw(random: np.random.Generator) -> MixingMatrix:
        return circulant(n, [int(random.choice(drawn))], weight)

    def square() -> NDArray[np.float64]:
        total = np.zeros((n, n))
        for shift in drawn.tolist():
            dense = circulant(n, [shift], weight).to_dense()
            total += dense.T @ dense
        return np.asarray(total / len(drawn))

    return Drawn(n, seed, draw, symmetric=n <= 2, mean_square=square)


def ou_equidyn(n: int, seed: int, *, step: Step = 0.5, shifts: Count | None = None) -> Drawn:
    """Pairs of nodes a random number apart; symmetric (EquiTopo).

    From a random node on, each node that is free is paired with the node u behind it, if that is
    free too; pairs exchange with weight step (n - 1) / n (Algorithm 2).

    Parameters
    ----------
    step
        Weight of the exchange.
    shifts
        Shifts that are drawn from. None is all.
    """
    drawn = np.arange(1, max(n, 2)) if shifts is None or n == 1 else basis(n, seed, shifts)
    weight = step * (n - 1) / n

    def draw(random: np.random.Generator) -> MixingMatrix:
        shift, first = int(random.choice(drawn)) % n, int(random.integers(n))
        pairs = _pairs(n, shift, first) if shift else np.zeros((0, 2), dtype=np.int64)
        return MixingMatrix(n, pairs, np.full(len(pairs), weight))

    return Drawn(n, seed, draw)


def _pairs(n: int, shift: int, first: int) -> NDArray[np.int64]:
    """Return the pairs of Algorithm 2, int64 (pairs, 2)."""
    free = [True] * n
    pairs = []
    for i in [*range(first, n), *range(first)]:
        j = (i + shift) % n
        if free[i] and free[j]:
            free[i] = free[j] = False
            pairs.append((min(i, j), max(i, j)))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
