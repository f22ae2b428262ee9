"""MoNNA: each client takes the mean of the values nearest to its own (Farhadkhani et al. 2023).

Of the values z = x + u of a client and its d neighbours, n = d + 1 in all, it keeps the n - f
nearest to its own, which is one of them, and takes their mean in place of one with weights. In the
paper all clients are neighbours, and step along momentum: ``local.momentum``.
"""

from __future__ import annotations

import numpy as np

from mpifed.exchange.corrections.clipped_gossip import ByDistances
from mpifed.message import Byzantine, Nearby, count_of


class Monna(ByDistances):
    """Nearest-neighbour averaging: the mean of the values nearest to the own (Farhadkhani 2023).

    Parameters
    ----------
    byzantine : float
        Share of a client and its neighbours that may be attackers; f is that of n, rounded down.
    """

    def __init__(self, *, byzantine: Byzantine = 0.2) -> None:
        self.byzantine = byzantine

    def shares(self, arcs: Nearby, away: np.ndarray) -> np.ndarray:
        shares = np.zeros(len(away))
        for receiver in np.unique(arcs.receivers):
            incoming = np.flatnonzero(arcs.receivers == receiver)
            n = len(incoming) + 1
            count = n - count_of(self.byzantine, n)
            # Of equal distances the first client's.
            nearest = incoming[np.argsort(away[incoming], kind="stable")[: count - 1]]
            shares[nearest] = 1 / count
        return shares
