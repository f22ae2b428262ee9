"""Graphs of groups and of people: cliques, D-Cliques, trees, social and geometric graphs."""

from __future__ import annotations

import math
import random

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from topologies.files import plain, read_numbers
from topologies.parameters import TopologyError

Seed = int | random.Random | None


def tree(n: int, branching: int = 2) -> nx.Graph:
    """Return the balanced tree in which every inner node has ``branching`` children.

    Parameters
    ----------
    n : int
        The number of nodes; the last inner node may have fewer children.
    branching : int, default 2
        The number of children.

    Returns
    -------
    networkx.Graph
        The tree, with root 0 and the nodes in breadth-first order.

    Examples
    --------
    >>> sorted(tree(6).neighbors(1))
    [0, 3, 4]
    """
    return nx.full_rary_tree(branching, n)


def karate(n: int | None = None) -> nx.Graph:
    """Return Zachary's karate club: 34 members, joined where they met outside (Zachary 1977).

    Parameters
    ----------
    n : int, optional
        The number of nodes, which is always 34.

    Returns
    -------
    networkx.Graph
        The graph, without weights.
    """
    return _unweighted(nx.karate_club_graph())


def davis(n: int | None = None) -> nx.Graph:
    """Return the 18 Southern women and the 14 events that they attended (Davis et al. 1941).

    Parameters
    ----------
    n : int, optional
        The number of nodes, which is always 32.

    Returns
    -------
    networkx.Graph
        The bipartite graph; women and events are numbered in the order of their names.
    """
    return _unweighted(nx.davis_southern_women_graph())


def florentine(n: int | None = None) -> nx.Graph:
    """Return 15 families of Renaissance Florence, joined by marriages (Breiger and Pattison 1986).

    Parameters
    ----------
    n : int, optional
        The number of nodes, which is always 15.

    Returns
    -------
    networkx.Graph
        The graph; families are numbered in alphabetical order.
    """
    return _unweighted(nx.florentine_families_graph())


SOCIAL_NODES = {"karate": 34, "davis": 32, "florentine": 15}
"""The number of nodes of each social graph."""


def _unweighted(graph: nx.Graph) -> nx.Graph:
    bare = nx.Graph(graph.edges)
    bare.add_nodes_from(graph)
    return plain(bare)


def geometric(n: int, radius: float | None = None, seed: Seed = None) -> nx.Graph:
    """Return random points in the unit square, joined where they are at most ``radius`` apart.

    Parameters
    ----------
    n : int
        The number of nodes.
    radius : float, optional
        The largest distance of neighbours. None is sqrt(2 ln n / (pi n)), twice the area at which
        such graphs become connected (Gupta and Kumar 1999).
    seed : Seed, optional
        Seed or generator of the draw.

    Returns
    -------
    networkx.Graph
        The graph, with ``distance`` on its edges, and ``x`` and ``y`` at its nodes.
    """
    drawn = random.Random(seed) if not isinstance(seed, random.Random) else seed
    points = np.array([[drawn.random(), drawn.random()] for _ in range(n)])
    if radius is None:
        radius = math.sqrt(2 * math.log(n) / (math.pi * n)) if n > 1 else 0.0
    graph = nx.empty_graph(n)
    for i, (x, y) in enumerate(points.tolist()):
        graph.nodes[i].update(x=x, y=y)
        distances = np.hypot(*(points[i + 1 :] - points[i]).T)
        for step in np.flatnonzero(distances <= radius).tolist():
            graph.add_edge(i, i + 1 + step, distance=float(distances[step]))
    return graph


def cliques(n: int, size: int = 10, between: str = "ring") -> nx.Graph:
    """Return cliques of consecutive nodes, with one edge between neighbouring cliques.

    Parameters
    ----------
    n : int
        The number of nodes.
    size : int, default 10
        Nodes of a clique, at most; sizes differ by one at most.
    between : str, default 'ring'
        How cliques are joined: "ring" or "complete". An edge is taken by the nodes of its two
        cliques that have the fewest edges outside.

    Returns
    -------
    networkx.Graph
        The graph.
    """
    groups = np.array_split(np.arange(n), -(-n // size))
    return _joined([group.tolist() for group in groups], n, between)


def d_cliques(
    n: int | None = None,
    path: str = "",
    size: int = 10,
    between: str = "complete",
    steps: int = 1000,
    seed: Seed = None,
) -> nx.Graph:
    """Return D-Cliques: cliques whose members together have the labels of all.

    Random cliques are improved by greedy swaps (Bellet, Kermarrec and Lavoie 2022, D-Cliques:
    compensating for data heterogeneity with topology in decentralized federated learning,
    Algorithm 1): two cliques are drawn, and of all exchanges of two of their nodes that reduce the
    sum of their skews, one is drawn. The skew of a clique is the sum over labels of the distance
    of its share from that in all data.

    Parameters
    ----------
    n : int, optional
        The number of nodes, if it is given besides the table.
    path : str
        A CSV file with the number of samples of each label (columns) at each node (rows).
    size : int, default 10
        Nodes of a clique, at most.
    between : str, default 'complete'
        How cliques are joined: "ring" or "complete".
    steps : int, default 1000
        How many pairs of cliques are drawn.
    seed : Seed, optional
        Seed or generator of the draws.

    Returns
    -------
    networkx.Graph
        The graph.

    Raises
    ------
    TopologyError
        If the file is no table of counts, or has another number of rows than ``n``.
    """
    counts = read_numbers(path)
    if n is not None and n != len(counts):
        raise TopologyError(f"d_cliques: n is {n}, but {path!r} has {len(counts)} rows")
    if not np.isfinite(counts).all() or (counts < 0).any() or not (counts.sum(axis=1) > 0).all():
        raise TopologyError(
            f"d_cliques: {path!r} must have counts of at least 0, and a sample in each row"
        )
    drawn = random.Random(seed) if not isinstance(seed, random.Random) else seed
    order = list(range(len(counts)))
    drawn.shuffle(order)
    groups = [list(part) for part in np.array_split(order, -(-len(order) // size))]
    for _ in range(steps if len(groups) > 1 else 0):
        one, other = drawn.sample(groups, 2)
        _swap(one, other, counts, drawn)
    return _joined([sorted(map(int, group)) for group in groups], len(counts), between)


def skew(group: list[int], counts: NDArray[np.float64]) -> float:
    """Return the sum over labels of |share in the group - share in all data| (Bellet et al. 2022).

    Parameters
    ----------
    group : list of int
        The nodes of the group.
    counts : ndarray of float64, shape (n, labels)
        Samples by node and label.

    Returns
    -------
    float
        From 0 to 2.

    Examples
    --------
    >>> skew([0], np.array([[1.0, 0.0], [0.0, 1.0]]))
    1.0
    """
    own, every = counts[group].sum(axis=0), counts.sum(axis=0)
    return float(np.abs(own / own.sum() - every / every.sum()).sum())


def _swap(
    one: list[int], other: list[int], counts: NDArray[np.float64], drawn: random.Random
) -> None:
    """Exchange two nodes of the groups, drawn among all exchanges that lower their skews."""
    first, second = counts[one].sum(axis=0), counts[other].sum(axis=0)
    moved = counts[other][None, :, :] - counts[one][:, None, :]
    shares = counts.sum(axis=0) / counts.sum()

    def skews(total: NDArray[np.float64]) -> NDArray[np.float64]:
        part = total / total.sum(axis=-1, keepdims=True)
        return np.asarray(np.abs(part - shares).sum(axis=-1))

    before = skews(first) + skews(second)
    better = np.argwhere(skews(first + moved) + skews(second - moved) < before - 1e-12)
    if len(better):
        i, j = better[drawn.randrange(len(better))]
        one[i], other[j] = other[j], one[i]


def _joined(groups: list[list[int]], n: int, between: str) -> nx.Graph:
    graph = nx.empty_graph(n)
    for group in groups:
        graph.add_edges_from((i, j) for i in group for j in group if i < j)
    links = nx.cycle_graph(len(groups)) if between == "ring" else nx.complete_graph(len(groups))
    outside = np.zeros(n, dtype=int)
    for a, b in sorted((min(link), max(link)) for link in links.edges if link[0] != link[1]):
        i, j = (min(groups[k], key=lambda node: (outside[node], node)) for k in (a, b))
        outside[[i, j]] += 1
        graph.add_edge(i, j)
    return graph
