"""Graphs as text, and from networkx graphs.

A text is what a configuration can store. Edges are written ``0-1 1-2:0.25`` (with a weight behind a
colon), an arc from a sender to a receiver ``0>1:0.5``.
"""

from __future__ import annotations

import re
from typing import Any

import networkx as nx
import numpy as np

from topologies.files import plain
from topologies.parameters import TopologyError

WORD = re.compile(r"([0-9]{1,9})([->])([0-9]{1,9})(?::([-+.0-9eE]{1,30}))?")


def edges_graph(n: int | None = None, nodes: int = 1, edges: str = "") -> nx.Graph:
    """Return the graph of a text of edges.

    Parameters
    ----------
    n : int, optional
        The number of nodes, if it is given besides ``nodes``.
    nodes : int
        The number of nodes.
    edges : str
        Such as ``0-1 1-2:0.25``.

    Returns
    -------
    networkx.Graph
        The graph on 0 .. nodes-1, with ``weight`` on the edges that have one.

    Raises
    ------
    TopologyError
        If a word is not an edge between two of the nodes.

    Examples
    --------
    >>> sorted(edges_graph(nodes=3, edges="0-1 1-2").edges)
    [(0, 1), (1, 2)]
    """
    graph = nx.empty_graph(nodes)
    for i, sign, j, weight in words_of(edges, nodes, "edges"):
        if sign != "-":
            raise TopologyError(f"edges: '{i}>{j}' is an arc, but a graph has edges, as in {i}-{j}")
        graph.add_edge(i, j, **({} if weight is None else {"weight": weight}))
    return graph


def words_of(text: str, n: int, owner: str) -> list[tuple[int, str, int, float | None]]:
    """Return the edges and arcs of a text, with ``-`` or ``>`` between their ends, and weights.

    Parameters
    ----------
    text : str
        The text.
    n : int
        The number of nodes.
    owner : str
        What the text is of, for messages.

    Returns
    -------
    list of tuple
        Left node, sign, right node, and the weight or None.

    Raises
    ------
    TopologyError
        If a word is not an edge or an arc between two of the nodes.

    Examples
    --------
    >>> words_of("0-1 2>0:0.5", 3, "edges")
    [(0, '-', 1, None), (2, '>', 0, 0.5)]
    """
    found = []
    for word in text.split():
        match = WORD.fullmatch(word)
        try:
            weight = None if match is None or match[4] is None else float(match[4])
        except ValueError:
            match = None
        if match is None:
            raise TopologyError(
                f"{owner}: {word[:40]!r} is not of the form 0-1, 0-1:0.5 or 0>1:0.5"
            )
        i, j = int(match[1]), int(match[3])
        if max(i, j) >= n or i == j:
            raise TopologyError(f"{owner}: {word!r} must join two different nodes of 0 .. {n - 1}")
        found.append((i, match[2], j, weight))
    return found


def graph_section(graph: nx.Graph) -> dict[str, Any]:
    """Return a networkx graph as the parameters of the family ``edges``, with its name.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph; labels that can be sorted become 0 .. n-1, self-loops are left out.

    Returns
    -------
    dict of str to Any
        ``name``, ``nodes`` and ``edges``. Weights of edges are kept where all edges have one.

    Raises
    ------
    TopologyError
        If the graph is directed, has no node, labels that cannot be sorted, or bad weights.

    Examples
    --------
    >>> graph_section(nx.path_graph(["a", "b", "c"]))
    {'name': 'edges', 'nodes': 3, 'edges': '0-1 1-2'}
    """
    if graph.is_directed():
        raise TopologyError(
            "the graph is directed, but a topology is undirected; pass its weights as an array"
        )
    try:
        simple = plain(nx.Graph(graph))
    except TypeError:
        raise TopologyError("the graph has labels that cannot be sorted") from None
    if not simple:
        raise TopologyError("the graph has no node")
    found = sorted((min(i, j), max(i, j), w) for i, j, w in simple.edges(data="weight"))
    weighted = bool(found) and all(isinstance(w, (int, float, np.number)) for *_, w in found)
    words = [f"{i}-{j}:{float(w)!r}" if weighted else f"{i}-{j}" for i, j, w in found]
    return {"name": "edges", "nodes": len(simple), "edges": " ".join(words)}
