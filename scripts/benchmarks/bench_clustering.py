"""Benchmarks of clusters of equal size: mpifed's own k-means against libraries.

Each prints one JSON object a line: {"name", "value", "unit", "detail"}. The value is the CPU
seconds of mpifed's own on one thread. ``detail`` has, for each solver and several seeds, the CPU
seconds and the sum of squared distances to the means (inertia), and whether repeating a seed gave
the same clusters. ``package`` is k-means-constrained; ``pot`` alternates means with the exact
transport plan of POT (``ot.emd``) from the same starts as mpifed's own. A library that is not
installed is left out.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from bench_figures import in_turn, report, run

from mpifed.random import stream  # imports mpifed, which sets up MKL before torch starts

SEEDS = 3
Solve = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


def own(points: np.ndarray, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the clusters of mpifed's own k-means, int64 (n,)."""
    from mpifed.data.kmeans import equal_clusters

    return equal_clusters(points, n_clusters, rng).owner


def package(points: np.ndarray, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the clusters of k-means-constrained, int64 (n,)."""
    from k_means_constrained import KMeansConstrained

    smallest, larger = divmod(len(points), n_clusters)
    seed, largest = int(rng.integers(2**31)), smallest + (larger > 0)
    solver = KMeansConstrained(n_clusters, smallest, largest, random_state=seed)
    return np.asarray(solver.fit_predict(points), np.int64)


def pot(points: np.ndarray, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the best of some starts of k-means whose assignments are POT's, int64 (n,)."""
    import ot

    from mpifed.data import kmeans

    n = len(points)
    found = []
    for _ in range(kmeans.STARTS):
        centres, owner = kmeans._seeds(points, n_clusters, rng), np.full(n, -1)
        for _ in range(kmeans.MOST_STEPS):
            costs = ot.dist(points, centres)
            counts = np.bincount(costs.argmin(axis=1), minlength=n_clusters)
            plan = ot.emd(
                np.ones(n),
                kmeans.equal_sizes(counts).astype(float),
                costs,
                numItermax=10_000_000,
            )
            moved = plan.argmax(axis=1)
            if np.array_equal(moved, owner):
                break
            owner = moved
            centres = kmeans._means(points, owner, n_clusters)
        found.append(owner)
    return min(found, key=lambda owner: inertia(points, owner))


SOLVERS: Mapping[str, tuple[Solve, str]] = {
    "own": (own, "numpy"),
    "package": (package, "k_means_constrained"),
    "pot": (pot, "ot"),
}


def inertia(points: np.ndarray, owner: np.ndarray) -> float:
    """Return the sum of squared distances to the means of the clusters."""
    return sum(
        float(((part - part.mean(0)) ** 2).sum())
        for part in (points[owner == cluster] for cluster in np.unique(owner))
    )


def compare(name: str, points: np.ndarray, n_clusters: int) -> None:
    """Report one problem."""
    solvers = {
        solver: solve
        for solver, (solve, module) in SOLVERS.items()
        if importlib.util.find_spec(module)
    }
    kept: dict[str, list[np.ndarray]] = {solver: [] for solver in solvers}
    seconds: dict[str, list[float]] = {solver: [] for solver in solvers}
    for seed in [*range(SEEDS), 0]:  # the first seed again, to see whether clusters repeat

        def solve(solver: str, seed: int = seed) -> None:
            kept[solver].append(solvers[solver](points, n_clusters, np.random.default_rng(seed)))

        measured = in_turn({s: partial(solve, s) for s in solvers}, 1, warm=False)
        for solver, (spent,) in measured.items():
            seconds[solver].append(round(spent, 2))
    detail: dict[str, Any] = {
        solver: {
            "cpu_seconds": seconds[solver][:SEEDS],
            "inertia": [round(inertia(points, owner), 3) for owner in kept[solver][:SEEDS]],
            "repeats": bool(np.array_equal(kept[solver][0], kept[solver][-1])),
        }
        for solver in solvers
    }
    shape = {"points": len(points), "dimension": points.shape[1], "clusters": n_clusters}
    report(name, float(np.median(seconds["own"])), "CPU s", **shape, **detail)


def clusters_transport() -> None:
    """The sizes of transport-fedmm-ot: 2048 points for each of 10 clients, in 16 dimensions."""
    from mpifed.optimal_transport.benchmarks import random_mixture

    draws = stream(0, "bench/transport")
    points = random_mixture(16, 3, draws).sample(draws, 20480).numpy()
    compare("clusters_transport", points, 10)


def clusters_dictionary() -> None:
    """The sizes of fedmm-heterogeneous: 5000 sparse mixes in 20 dimensions, 20 clients."""
    from bench_surrogates import mixes

    compare("clusters_dictionary", mixes(5000, 20, 15)[1].numpy(), 20)


def clusters_ratings() -> None:
    """The sizes of fedmm-ratings: 5000 users, 500 movies, 20 clients; made-up ratings."""
    from bench_surrogates import ratings

    compare("clusters_ratings", ratings(5000, 500).double().numpy(), 20)


def clusters_many() -> None:
    """2000 points in 8 dimensions and 100 clusters, as of 100 clients of 20 samples."""
    points = stream(0, "bench/many").normal(size=(2000, 8))
    compare("clusters_many", points, 100)


BENCHMARKS = {
    f.__name__: f
    for f in (clusters_transport, clusters_dictionary, clusters_ratings, clusters_many)
}


if __name__ == "__main__":
    sys.exit(run(BENCHMARKS, sys.argv[1:]))
