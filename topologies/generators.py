"""Generators of undirected graphs: one name and one order of nodes for each family."""

from __future__ import annotations

import random

import networkx as nx

from topologies.files import plain

Seed = int | random.Random | None


def erdos_renyi(n: int, p: float = 0.5, seed: Seed = None) -> nx.Graph:
    """Return a graph with each edge present independently with probability p.

    Parameters
    ----------
    n : int
        The number of nodes.
    p : float, default 0.5
        The probability of each edge.
    seed : Seed, optional
        Seed or generator of the draw.

    Returns
    -------
    networkx.Graph
        ``networkx.binomial_graph(n, p, seed)``.
    """
    return nx.binomial_graph(n, p, seed=seed)


def ring(n: int) -> nx.Graph:
    """Return the cycle 0-1-...-(n-1)-0; one edge for n = 2, none for n = 1.

    Parameters
    ----------
    n : int
        The number of nodes.

    Returns
    -------
    networkx.Graph
        The cycle.

    Examples
    --------
    >>> sorted(ring(4).edges)
    [(0, 1), (0, 3), (1, 2), (2, 3)]
    """
    return plain(nx.cycle_graph(n))


def path(n: int) -> nx.Graph:
    """Return the path 0-1-...-(n-1).

    Parameters
    ----------
    n : int
        The number of nodes.

    Returns
    -------
    networkx.Graph
        The path.
    """
    return nx.path_graph(n)


def complete(n: int) -> nx.Graph:
    """Return the complete graph, with all n(n-1)/2 edges.

    Parameters
    ----------
    n : int
        The number of nodes.

    Returns
    -------
    networkx.Graph
        The complete graph.
    """
    return nx.complete_graph(n)


def star(n: int) -> nx.Graph:
    """Return the star: node 0 joined to all n-1 other nodes.

    Parameters
    ----------
    n : int
        The number of nodes.

    Returns
    -------
    networkx.Graph
        The star.
    """
    return nx.star_graph(n - 1)


def random_regular(n: int, degree: int = 4, seed: Seed = None) -> nx.Graph:
    """Return a random graph in which every node has the given degree (Steger and Wormald 1999).

    Parameters
    ----------
    n : int
        The number of nodes.
    degree : int, default 4
        The number of neighbours of each node; ``degree * n`` must be even.
    seed : Seed, optional
        Seed or generator of the draw.

    Returns
    -------
    networkx.Graph
        The graph.
    """
    return plain(nx.random_regular_graph(degree, n, seed=seed))


def small_world(n: int, neighbours: int = 4, p: float = 0.2, seed: Seed = None) -> nx.Graph:
    """Return a ring lattice with edges rewired with probability p (Watts and Strogatz 1998).

    Parameters
    ----------
    n : int
        The number of nodes.
    neighbours : int, default 4
        The degree of the lattice, even.
    p : float, default 0.2
        The probability that an edge is rewired.
    seed : Seed, optional
        Seed or generator of the draw.

    Returns
    -------
    networkx.Graph
        The graph.
    """
    return plain(nx.watts_strogatz_graph(n, neighbours, p, seed=seed))


def barbell(n: int, bridge: int | None = None) -> nx.Graph:
    """Return two complete graphs joined by a path.

    Parameters
    ----------
    n : int
        The number of nodes.
    bridge : int, optional
        The number of nodes on the path; None takes n mod 2.

    Returns
    -------
    networkx.Graph
        The graph.
    """
    bridge = n % 2 if bridge is None else bridge
    return plain(nx.barbell_graph((n - bridge) // 2, bridge))


def exponential(n: int) -> nx.Graph:
    """Return the undirected exponential graph: node i joined to i ± 2^k mod n for all 2^k < n.

    Ying et al. 2021 (Exponential graph is provably efficient for decentralized deep training) use
    the directed one.

    Parameters
    ----------
    n : int
        The number of nodes.

    Returns
    -------
    networkx.Graph
        The graph.

    Examples
    --------
    >>> sorted(exponential(8).neighbors(0))
    [1, 2, 4, 6, 7]
    """
    return plain(nx.circulant_graph(n, [1 << k for k in range((n - 1).bit_length())]))
