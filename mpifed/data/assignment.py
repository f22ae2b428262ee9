"""The cheapest assignment of points to clusters of given sizes: a transportation problem.

It is solved exactly by successive shortest paths over the clusters. Points begin in the cluster
that is cheapest for them. One at a time, they are moved along the cheapest chain from clusters with
too many points to clusters with too few.
"""

from __future__ import annotations

import itertools

import numpy as np

MOST_SWEEPS = 20
"""Passes over the clusters that bring prices close to those of an assignment, at most."""


def assign(
    costs: np.ndarray, sizes: np.ndarray, prices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cheapest assignment of points to clusters of given ``sizes``, and its prices.

    ``costs`` is float64 (points, clusters); ``sizes``, int64 (clusters,), sums to the number of
    points. ``prices``, (clusters,), is a first guess, or zeros. It decides how long this takes and
    which of several cheapest assignments is found, nothing else. The result is the cluster of each
    point, int64 (points,), and dual prices, float64 (clusters,), from the interior of the set of
    all dual prices: points lie off the borders of cells wherever they can.
    """
    owner = (costs - _nearly_right(costs, sizes, prices)).argmin(axis=1)
    counts = np.bincount(owner, minlength=len(sizes))
    moves = _Moves(costs, owner)
    while (counts > sizes).any():
        chain = moves.cheapest_chain(counts > sizes, counts < sizes)
        moves.hand_on(chain)
        counts[chain[0]] -= 1
        counts[chain[-1]] += 1
    return owner, moves.dual_prices()


def _nearly_right(costs: np.ndarray, sizes: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """Prices that leave few points to move, by coordinate ascent: cheaper than ``hand_on``."""
    prices, ranking = prices.copy(), None
    for _ in range(MOST_SWEEPS):
        if ranking is None:
            counts = np.bincount((costs - prices).argmin(axis=1), minlength=len(sizes))
        else:
            counts = np.bincount(ranking.first, minlength=len(sizes))
        if np.abs(counts - sizes).sum() <= len(sizes):
            break
        ranking = ranking or _Ranking(costs - prices)
        for cluster in np.argsort(-np.abs(counts - sizes)):
            size = int(sizes[cluster])
            if not 0 < size < len(costs):
                continue
            margin = costs[:, cluster] - ranking.least_of_others(cluster)
            prices[cluster] = np.partition(margin, (size - 1, size))[size - 1 : size + 1].mean()
            ranking.replace(cluster, costs[:, cluster] - prices[cluster])
    return prices


class _Ranking:
    """The two clusters of least ``values`` (points, clusters) for each point, as columns change."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.first, self.second = np.empty((2, len(values)), np.int64)
        self.least, self.next = np.empty((2, len(values)))
        self._rank(np.arange(len(values)))

    def _rank(self, points: np.ndarray) -> None:
        rows, every = self.values[points], np.arange(len(points))
        self.first[points] = first = rows.argmin(axis=1)
        self.least[points] = rows[every, first]
        rows[every, first] = np.inf
        self.second[points] = second = rows.argmin(axis=1)
        self.next[points] = rows[every, second]

    def least_of_others(self, cluster: int) -> np.ndarray:
        """The least value of each point without that of ``cluster``, (points,)."""
        return np.where(self.first == cluster, self.next, self.least)

    def replace(self, cluster: int, column: np.ndarray) -> None:
        """``column`` (points,) becomes that of ``cluster``."""
        self.values[:, cluster] = column
        ranked = (self.first == cluster) | (self.second == cluster)
        better = (column < self.next) | ((column == self.next) & (cluster < self.second))
        self._rank(np.flatnonzero(ranked | better))


class _Moves:
    """Least cost ``price`` of moving a point between two clusters (square), and which ``point``."""

    def __init__(self, costs: np.ndarray, owner: np.ndarray) -> None:
        self.costs, self.owner = costs, owner
        n_clusters = costs.shape[1]
        self.price = np.full((n_clusters, n_clusters), np.inf)
        self.point = np.full((n_clusters, n_clusters), -1)
        # Differences smaller than this are rounding, and must not make a path go round in circles.
        self.tolerance = 1e-12 * float(np.abs(costs).max(initial=0))
        for cluster in range(n_clusters):
            self._renew(cluster)

    def _renew(self, cluster: int) -> None:
        members = np.flatnonzero(self.owner == cluster)
        if len(members) == 0:
            self.price[cluster], self.point[cluster] = np.inf, -1
            return
        differences = self.costs[members] - self.costs[members, cluster, None]
        best = differences.argmin(axis=0)
        self.price[cluster] = differences[best, np.arange(len(best))]
        self.point[cluster] = members[best]

    def distances(self, sources: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bellman-Ford from ``sources`` (bool): cost to each cluster and the one before, or -1."""
        every = np.arange(len(sources))
        distance = np.where(sources, 0.0, np.inf)
        before = np.full(len(sources), -1)
        for _ in range(len(sources)):
            through = distance[:, None] + self.price
            best = through.argmin(axis=0)
            found = through[best, every]
            better = found < distance - self.tolerance
            if not better.any():
                break
            distance[better], before[better] = found[better], best[better]
        return distance, before

    def dual_prices(self) -> np.ndarray:
        """Prices by which no point gains by moving: the mean over clusters, to keep off borders."""
        ways = self.price.copy()
        np.fill_diagonal(ways, 0)
        for via in range(len(ways)):
            ways = np.minimum(ways, ways[:, via, None] + ways[via])
        occupied = np.bincount(self.owner, minlength=len(ways)) > 0
        return ways[occupied].mean(axis=0)

    def cheapest_chain(self, sources: np.ndarray, targets: np.ndarray) -> list[int]:
        """The clusters on the cheapest way from one of ``sources`` to one of ``targets``."""
        distance, before = self.distances(sources)
        chain = [int(np.where(targets, distance, np.inf).argmin())]
        while before[chain[-1]] >= 0:
            chain.append(int(before[chain[-1]]))
        return chain[::-1]

    def hand_on(self, chain: list[int]) -> None:
        """Each cluster of ``chain`` hands its cheapest point to the next one."""
        steps = list(itertools.pairwise(chain))
        for point, target in [(self.point[a, b], b) for a, b in steps]:
            self.owner[point] = target
        for cluster in chain:
            self._renew(cluster)
