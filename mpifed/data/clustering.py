"""Clusters of equal size: k-means with constrained cluster sizes (Bradley et al. 2000).

k-means alternates between means and assignments. With prescribed sizes the assignment is a
transportation problem (``assignment``). Its dual solution (a price per cluster) starts the next
assignment, in which little is then left to move.

Libraries lower the sum of squares by less than 1 %, and would add 180 MB to what experiments need;
their version would decide who the clients are. ``scripts/bench clusters_ratings`` compares them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mpifed.data.assignment import assign
from mpifed.errors import InputError
from mpifed.memory import check_memory

Solver = Literal["own", "package"]
STARTS = 4
"""Times that k-means begins anew; the best result is kept."""

MOST_STEPS = 100
"""Steps of one k-means, if it has not settled before."""


REPORTED = 1e8
"""Points times squared clusters above which the log reports progress."""

log = logging.getLogger("mpifed")


@dataclass(frozen=True)
class Clusters:
    """Points in clusters whose sizes differ by at most one.

    ``owner`` is the cluster of each point, int64 (points,). ``centres`` are the means, float64
    (clusters, dimension). ``prices``, float64 (clusters,), are dual to the sizes: every point is in
    the cluster of least |x - c|^2 - price, so that clusters are cells of a power diagram (with
    ``package``, as far as it has converged). ``inertia`` is the sum of squared distances.
    """

    owner: np.ndarray
    centres: np.ndarray
    prices: np.ndarray
    inertia: float

    def cell(self, points: np.ndarray) -> np.ndarray:
        """Return the cluster in whose cell each of ``points`` (n, dimension) lies: int64 (n,)."""
        return (_costs(points, self.centres) - self.prices).argmin(axis=1)


def equal_clusters(
    points: np.ndarray, n_clusters: int, rng: np.random.Generator, solver: Solver = "own"
) -> Clusters:
    """Return the k-means of ``points``, float64 (n, dimension), into clusters of equal size.

    ``own`` begins ``STARTS`` times by k-means++ and keeps the best; where ``n_clusters`` does not
    divide n, the clusters that draw most points at first are larger. ``package`` is the optional
    package k-means-constrained (Levy-Kramer). Raises ``InputError`` for fewer points than clusters,
    and if the package is asked for but missing.
    """
    if len(points) < n_clusters:
        raise InputError(
            f"clients is {n_clusters}, but {len(points)} samples are enough for at most "
            f"{len(points)} clusters"
        )
    check_memory(
        16.0 * len(points) * n_clusters,
        f"clients is {n_clusters}, which for k-means of {len(points)} samples",
    )
    if solver == "package":
        return _by_package(points, n_clusters, rng)
    return _best_of_starts(points, n_clusters, rng)


def _best_of_starts(points: np.ndarray, n_clusters: int, rng: np.random.Generator) -> Clusters:
    found: list[Clusters] = []
    for start in range(STARTS):
        if len(points) * n_clusters**2 > REPORTED:
            what = f"k-means of {len(points)} samples into {n_clusters} clusters of equal size"
            log.info(f"{what}: start {start + 1} of {STARTS}, of at most {MOST_STEPS} steps each")
        found.append(kmeans(points, n_clusters, rng))
    return min(found, key=lambda clusters: clusters.inertia)


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


def _by_package(points: np.ndarray, n_clusters: int, rng: np.random.Generator) -> Clusters:
    try:
        from k_means_constrained import KMeansConstrained
    except ImportError as error:
        raise InputError(
            "data.kmeans_solver is 'package', but k-means-constrained cannot be imported "
            f"({error}): pip install k-means-constrained; allowed without it: own"
        ) from None
    smallest, larger = divmod(len(points), n_clusters)
    model: Any = KMeansConstrained(
        n_clusters, smallest, smallest + (larger > 0), random_state=int(rng.integers(2**31))
    )
    owner = np.asarray(model.fit_predict(points), np.int64)
    centres = _means(points, owner, n_clusters)
    sizes = np.bincount(owner, minlength=n_clusters)
    _, prices = assign(_costs(points, centres), sizes, np.zeros(n_clusters))
    return Clusters(owner, centres, prices, _inertia(points, centres, owner))


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
