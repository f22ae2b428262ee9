"""Clusters of equal size: k-means with constrained cluster sizes (Bradley et al. 2000)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from mpifed.errors import InputError

# Passes over the clusters that bring prices close to those of an assignment, at most.
MOST_SWEEPS = 20

# Times that k-means begins anew; the best result is kept.
STARTS = 4

# Steps of one k-means, if it has not settled before.
MOST_STEPS = 100

# Points times squared clusters above which clusters are parted recursively.
LARGE = 2.1e9

# Into how many parts at a time.
BRANCHES = 4

# Steps of k-means for each parting, if it has not settled before.
STEPS = 10


def assign(
    costs: np.ndarray, sizes: np.ndarray, prices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cheapest assignment of points to clusters of given ``sizes``, and its prices."""
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
            shortest = through[best, every]
            better = shortest < distance - self.tolerance
            if not better.any():
                break
            distance[better], before[better] = shortest[better], best[better]
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


@dataclass(frozen=True)
class Clusters:
    """Points in clusters whose sizes differ by at most one."""

    owner: np.ndarray
    centres: np.ndarray
    prices: np.ndarray
    inertia: float

    def cell(self, points: np.ndarray) -> np.ndarray:
        """Return the cluster in whose cell each of ``points`` (n, dimension) lies: int64 (n,)."""
        return (_costs(points, self.centres) - self.prices).argmin(axis=1)


def equal_clusters(points: np.ndarray, n_clusters: int, rng: np.random.Generator) -> Clusters:
    """Return the k-means of ``points``, float64 (n, dimension), into clusters of equal size."""
    if len(points) < n_clusters:
        raise InputError(
            f"clients is {n_clusters}, but {len(points)} samples are enough for at most "
            f"{len(points)} clusters"
        )
    candidates = [kmeans(points, n_clusters, rng) for _ in range(STARTS)]
    return min(candidates, key=lambda clusters: clusters.inertia)


def kmeans(
    points: np.ndarray,
    n_clusters: int,
    rng: np.random.Generator,
    sizes: np.ndarray | None = None,
    steps: int = MOST_STEPS,
) -> Clusters:
    """Return the k-means from one start, into clusters of ``sizes`` or else of equal ones."""
    costs = _costs(points, _seeds(points, n_clusters, rng))
    if sizes is None:
        sizes = equal_sizes(np.bincount(costs.argmin(axis=1), minlength=n_clusters))
    owner, prices = assign(costs, sizes, np.zeros(n_clusters))
    for _ in range(steps):
        centres = _means(points, owner, n_clusters)
        moved, prices = assign(_costs(points, centres), sizes, prices)
        settled, owner = np.array_equal(moved, owner), moved
        if settled:
            break
    return Clusters(owner, centres, prices, _inertia(points, centres, owner))


def _inertia(points: np.ndarray, centres: np.ndarray, owner: np.ndarray) -> float:
    return float(((points - centres[owner]) ** 2).sum())


def equal_sizes(counts: np.ndarray) -> np.ndarray:
    """Return sizes with the sum of ``counts``, at most one apart; the larger where it is large."""
    smallest, larger = divmod(int(counts.sum()), len(counts))
    sizes = np.full(len(counts), smallest)
    sizes[np.argsort(-counts, kind="stable")[:larger]] += 1
    return sizes


def _costs(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared distances but for |x|^2, on which no choice of a cluster depends."""
    return (centres**2).sum(axis=1) - 2 * points @ centres.T


def _means(points: np.ndarray, owner: np.ndarray, n_clusters: int) -> np.ndarray:
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(n_clusters))
    sums = np.add.reduceat(points[order], starts, axis=0)
    return sums / np.bincount(owner, minlength=n_clusters)[:, None]


def _seeds(points: np.ndarray, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """k-means++ (Arthur and Vassilvitskii 2007): centres far from each other, out of the points."""
    chosen = [int(rng.integers(len(points)))]
    distance = np.full(len(points), np.inf)
    for _ in range(n_clusters - 1):
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
        total = distance.sum()
        weights = distance / total if total > 0 else None
        chosen.append(int(rng.choice(len(points), p=weights)))
    return points[chosen]


def equal_parts(points: np.ndarray, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the cluster of each point, int64 (n,), where clusters have equal size."""
    if len(points) * n_clusters**2 <= LARGE or len(points) < n_clusters:
        return equal_clusters(points, n_clusters, rng).owner
    smallest, larger = divmod(len(points), n_clusters)
    owner = np.empty(len(points), np.int64)
    sizes = smallest + (np.arange(n_clusters) < larger)
    _part(points, np.arange(len(points)), np.arange(n_clusters), sizes, rng, owner)
    return owner


def _part(
    points: np.ndarray,
    members: np.ndarray,
    clusters: np.ndarray,
    sizes: np.ndarray,
    rng: np.random.Generator,
    owner: np.ndarray,
) -> None:
    """Writes to ``owner`` which of ``clusters`` each of ``members`` belongs to."""
    if len(clusters) == 1:
        owner[members] = clusters[0]
        return
    parts = np.array_split(clusters, min(BRANCHES, len(clusters)))
    part_sizes = np.array([sizes[part].sum() for part in parts])
    groups = kmeans(points[members], len(parts), rng, part_sizes, STEPS).owner
    for group, part in enumerate(parts):
        _part(points, members[groups == group], part, sizes, rng, owner)
