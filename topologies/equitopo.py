"""The four topologies of EquiTopo, whose consensus rate does not depend on n.

Song, Li, Jin, Shi, Yan, Yin and Yuan 2022 (Communication-efficient topologies for decentralized
learning with O(1) consensus rate). All are made of the basis A(u) = I / n + (n - 1) / n P^u for the
cyclic shift P: the mean of A(u) over u = 1 .. n-1 is 11'/n.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from topologies.circulants import circulant
from topologies.matrix import MixingMatrix
from topologies.sequences import Drawn, Periodic, identity, stream


def equistatic(n: int, seed: int, shifts: int | None = None, *, directed: bool = True) -> Periodic:
    """Return the mean of A(u), or of its symmetric part, over random shifts u: EquiStatic.

    With M shifts drawn with replacement from 1 .. n-1, the factor on the distance from consensus
    is at most rho with probability 1 - p if M >= 8 ln(2 n / p) / (3 rho^2) (Theorem 1).

    Parameters
    ----------
    n : int
        The number of nodes.
    seed : int
        The seed of the shifts.
    shifts : int, optional
        M. None is ceil(log2 n), the degree of the static exponential graph.
    directed : bool, default True
        Whether to return D-EquiStatic, otherwise U-EquiStatic.

    Returns
    -------
    Periodic
        A schedule of period 1, doubly stochastic.
    """
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


def equitopo(n: int, seed: int, step: float = 0.5) -> Drawn:
    """Return the schedule in which every node averages with the node u before it, u random.

    u is drawn anew in each round from 1 .. n-1, and W = (1 - step) I + step A(u). The matrices are
    directed and doubly stochastic; the mean contraction does not depend on n. This is OD-EquiDyn
    with all shifts.

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
    return circulant(n, [int(random.integers(1, n)) if n > 1 else 0], weight)


def od_equidyn(n: int, seed: int, step: float = 0.5, shifts: int | None = None) -> Drawn:
    """Return OD-EquiDyn: ``equitopo`` with the shifts of one D-EquiStatic only.

    E ||W x - mean||^2 <= (1 - 2 step (1 - step) (1 - rho)) ||x - mean||^2, where rho is the factor
    of that D-EquiStatic.

    Parameters
    ----------
    n : int
        The number of nodes.
    seed : int
        The seed of the shifts and of all draws.
    step : float, default 0.5
        The weight of the exchange, in (0, 1].
    shifts : int, optional
        The number M of shifts; None is ceil(log2 n).

    Returns
    -------
    Drawn
        The random schedule; directed, doubly stochastic.
    """
    if n == 1:
        return equitopo(n, seed, step)
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


def ou_equidyn(n: int, seed: int, step: float = 0.5, shifts: int | None = None) -> Drawn:
    """Return OU-EquiDyn: nodes are paired with those u behind, u random; symmetric.

    From a random node on, each node that is free is paired with the node u behind it, if that is
    free too; pairs exchange with weight step (n - 1) / n (Algorithm 2). E ||W x - mean||^2 <=
    (1 - 4/3 step (1 - step) (1 - rho)) ||x - mean||^2.

    Parameters
    ----------
    n : int
        The number of nodes.
    seed : int
        The seed of the shifts and of all draws.
    step : float, default 0.5
        The weight of the exchange, in (0, 1].
    shifts : int, optional
        The number M of shifts to draw from; None takes all of 1 .. n-1, and rho is then 0.

    Returns
    -------
    Drawn
        The random schedule; symmetric.
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
