"""Graphs of groups and of people: cliques, trees, social and geometric graphs."""

from __future__ import annotations

import math
import random

import networkx as nx
import numpy as np

from topologies.files import plain

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
