"""Any number of clusters of equal size: many are found by parting the points recursively.

The time of k-means into equal clusters (``clustering``) grows as the points times the squared
clusters. Recursive parting (everything into few clusters, each of these into few, and so on) takes
time as the points times the logarithm of the clusters. The clusters are then the leaves of a tree
of power diagrams.
"""

from __future__ import annotations

import logging

import numpy as np

from mpifed.data.clustering import Solver, equal_clusters, kmeans

LARGE = 2.1e9
"""Points times squared clusters above which clusters are parted recursively."""

BRANCHES = 4
"""Into how many parts at a time."""

STEPS = 10
"""Steps of k-means for each parting, if it has not settled before."""

log = logging.getLogger("mpifed")


def equal_parts(
    points: np.ndarray, n_clusters: int, rng: np.random.Generator, solver: Solver = "own"
) -> np.ndarray:
    """Return the cluster of each point, int64 (n,), where clusters have equal size.

    Up to ``LARGE``, or with ``package``, these are the clusters of ``equal_clusters``; above, they
    are found by recursive parting.

    Parameters
    ----------
    points : ndarray
        float64 (n, dimension).
    n_clusters : int
        Number of clusters; their sizes differ by at most one.
    rng : Generator
        Draws the first centres.
    solver : {'own', 'package'}
        As in ``equal_clusters``.

    Raises
    ------
    InputError
        As in ``equal_clusters``.
    """
    few = len(points) * n_clusters**2 <= LARGE or len(points) < n_clusters
    if solver == "package" or few:
        return equal_clusters(points, n_clusters, rng, solver).owner
    log.info(
        f"k-means of {len(points)} samples into {n_clusters} clusters of equal size, which are "
        f"many: {BRANCHES} first, each of them into {BRANCHES} again, and so on"
    )
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
    """Writes to ``owner`` which of ``clusters`` each of ``members`` belongs to.

    ``sizes`` are those of all clusters.
    """
    if len(clusters) == 1:
        owner[members] = clusters[0]
        return
    parts = np.array_split(clusters, min(BRANCHES, len(clusters)))
    wanted = np.array([sizes[part].sum() for part in parts])
    groups = kmeans(points[members], len(parts), rng, wanted, STEPS).owner
    for group, part in enumerate(parts):
        _part(points, members[groups == group], part, sizes, rng, owner)
