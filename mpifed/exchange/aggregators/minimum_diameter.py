"""Minimum-diameter averaging (El Mhamdi et al. 2020), by a search that need not try all sets.

The updates kept are the n - f whose largest distance from each other, the diameter, is least. That
n - f of them have a diameter of at most D says that f nodes touch all arcs of the graph that joins
updates farther than D from each other. The search halves the distances that D may be, and finds
such nodes, or that there are none, in time of 1.62^f at worst, where trying all sets takes about
n^f.
"""

from __future__ import annotations

import numpy as np

from mpifed.exchange.aggregators.honest_means import OfHonest
from mpifed.message import ByProducts, squared_distances


class MinimumDiameter(OfHonest, ByProducts):
    """Minimum-diameter averaging, MDA: the mean of the n - f closest updates (El Mhamdi 2020).

    Of several sets with the least diameter it is one of them.

    Parameters
    ----------
    byzantine : float
        Share of the participants that may be attackers; f is that of n, rounded down. Time grows
        exponentially with f.
    """

    def shares(self, products: np.ndarray) -> np.ndarray:
        squares, n = squared_distances(products), len(products)
        diameters = np.unique(squares)
        low, high = -1, len(diameters) - 1
        out = np.zeros(n, bool)
        while high - low > 1:  # the least diameter is above one and at most the other
            middle = (low + high) // 2
            cover = without_arcs(squares > diameters[middle], self.bears(n))
            if cover is None:
                low = middle
            else:
                high, out = middle, cover
        return self.equal(np.flatnonzero(~out), n)


def without_arcs(arcs: np.ndarray, most: int) -> np.ndarray | None:
    """Return nodes, ``most`` or fewer, that touch all ``arcs``, symmetric bool (n, n).

    bool (n,); None where there are none so few.
    """
    degrees = arcs.sum(axis=1)
    worst = int(degrees.argmax())
    if degrees[worst] == 0:
        return np.zeros(len(arcs), bool)
    if degrees.sum() > 2 * most * degrees[worst]:
        return None
    itself = np.arange(len(arcs)) == worst
    # Either this node is one of them, or all of its neighbours are.
    for nodes in (itself, arcs[worst])[: 1 if degrees[worst] == 1 else 2]:
        if nodes.sum() <= most:
            others = without_arcs(arcs & ~nodes & ~nodes[:, None], most - int(nodes.sum()))
            if others is not None:
                return others | nodes
    return None
