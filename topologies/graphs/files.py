"""Reading of graphs, matrices and tables: npz (exact), dense CSV, edge lists, GraphML.

Graphs as text, and from networkx graphs.
"""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from topologies.inputs import read_bytes
from topologies.matrix import MixingMatrix
from topologies.parameters import TopologyError, check_memory, node_count

WHOLE = re.compile(r"-?[0-9]{1,18}")

TEXT_BYTES = 30
"""Bytes that the graph of a text file takes for each byte of the text, about."""


def read_matrix(path: str | Path) -> MixingMatrix:
    """Return the mixing matrix in a file.

    Parameters
    ----------
    path : str | Path
        ``.npz`` as written by ``MixingMatrix.save``, or ``.csv`` with n x n numbers.

    Returns
    -------
    MixingMatrix
        The matrix.

    Raises
    ------
    TopologyError
        If the file cannot be read, or its matrix is not doubly stochastic and non-negative; the
        message then lists the violations.
    """
    if Path(path).suffix == ".npz":
        return MixingMatrix.load(path)
    return MixingMatrix.from_sparse(read_numbers(path))


def read_numbers(path: str | Path) -> NDArray[np.float64]:
    """Return the numbers in a CSV file.

    Parameters
    ----------
    path : str | Path
        The file.

    Returns
    -------
    ndarray of float64, shape (rows, columns)
        The numbers.

    Raises
    ------
    TopologyError
        If the file cannot be read, is empty or has anything but numbers.
    """
    text = read_text(path, "table of numbers")
    if not text.strip():
        raise TopologyError(f"{str(path)!r} holds no number")
    try:
        return np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)
    except ValueError as error:
        raise TopologyError(f"{str(path)!r} is not a table of numbers: {error}") from error


def edge_list(n: int | None = None, path: str = "") -> nx.Graph:
    """Return the graph of a text file with one edge ``i j`` or ``i j weight`` per line.

    Text after ``#`` is ignored. A line with a single integer gives the number of nodes. Labels are
    replaced by 0 .. n-1 in sorted order. Where n is larger than the number of labels, these are the
    node numbers themselves, and nodes that are not named are isolated.

    Parameters
    ----------
    n : int, optional
        The number of nodes, if it is larger than that of the labels.
    path : str, default ''
        The file.

    Returns
    -------
    networkx.Graph
        The graph, with ``weight`` on edges where the file has it.

    Raises
    ------
    TopologyError
        If the file cannot be read or a line is not an edge.
    """
    graph = nx.Graph()
    for number, line in enumerate(read_text(path, "graph file").splitlines(), start=1):
        words = line.split("#")[0].replace(",", " ").split()
        if len(words) == 1 and WHOLE.fullmatch(words[0]) and not graph:
            n = n or int(words[0])
        elif len(words) == 1:
            raise TopologyError(
                f"edge_list: line {number} of {path} is {line.strip()!r}, but must be an edge 'i j'"
            )
        elif words:
            graph.add_edge(words[0], words[1])
            if len(words) > 2:
                graph.edges[words[0], words[1]]["weight"] = _weight(words[2], number, path)
    return _relabelled(graph, n, f"edge_list {path}")


def graphml(n: int | None = None, path: str = "") -> nx.Graph:
    """Return the undirected graph of a GraphML file, with labels replaced by 0 .. n-1 in order.

    Parameters
    ----------
    n : int, optional
        The number of nodes, if it is larger than that of the labels.
    path : str, default ''
        The file.

    Returns
    -------
    networkx.Graph
        The graph.

    Raises
    ------
    TopologyError
        If the file cannot be read or its graph is directed.
    """
    graph = read_graphml(path, "graph file")
    if graph.is_directed():
        raise TopologyError(
            f"graphml: {path} holds a directed graph, but must hold an undirected one"
        )
    return _relabelled(nx.Graph(graph), n, f"graphml {path}")


def read_graphml(path: str | Path, what: str) -> nx.Graph:
    """Return the graph of a GraphML file, with its labels and attributes.

    Parameters
    ----------
    path : str | Path
        The file.
    what : str
        What the file is, for messages.

    Returns
    -------
    networkx.Graph
        The graph.

    Raises
    ------
    TopologyError
        If the file cannot be read or is not GraphML.
    """
    text = read_text(path, what)
    try:
        return nx.read_graphml(io.BytesIO(text.encode()))
    except Exception as error:  # the XML parser's and networkx's errors have no common base
        raise TopologyError(f"{str(path)!r} is not a GraphML file: {error}") from error


def matrix(n: int | None = None, path: str = "") -> nx.Graph:
    """Return the graph of a stored symmetric mixing matrix.

    Parameters
    ----------
    n : int, optional
        The number of nodes; None takes that of the matrix.
    path : str, default ''
        A ``.npz`` file, or ``.csv`` with all n x n entries.

    Returns
    -------
    networkx.Graph
        The graph, with the matrix's entries as ``weight`` on its edges.

    Raises
    ------
    TopologyError
        If the file cannot be read, or its matrix is directed or of another size.
    """
    found = read_matrix(path)
    if not found.symmetric:
        raise TopologyError(
            f"matrix: {path} holds a directed matrix, but must hold a symmetric one"
        )
    if n not in (None, found.n):
        raise TopologyError(f"matrix: {path} holds a matrix of {found.n} nodes, but n is {n}")
    graph = nx.empty_graph(found.n)
    for (i, j), weight in zip(found.edges.tolist(), found.weights.tolist(), strict=True):
        graph.add_edge(i, j, weight=weight)
    return graph


def _weight(text: str, number: int, path: str) -> float:
    try:
        weight = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise TopologyError(
            f"edge_list: line {number} of {path} has {text!r} where the weight must be a number"
        )
    return weight


def plain(graph: nx.Graph) -> nx.Graph:
    """Return the graph on 0 .. n-1 in sorted order of its labels, without self-loops.

    Parameters
    ----------
    graph : networkx.Graph
        A graph with labels that can be sorted.

    Returns
    -------
    networkx.Graph
        The relabelled graph; it keeps edge weights only.
    """
    number = {label: k for k, label in enumerate(sorted(graph))}
    plain = nx.empty_graph(len(number))
    for i, j, weight in graph.edges(data="weight"):
        if i != j:
            plain.add_edge(number[i], number[j], **({} if weight is None else {"weight": weight}))
    return plain


def _relabelled(graph: nx.Graph, n: int | None, source: str) -> nx.Graph:
    """Return a graph read from a file on 0 .. n-1; integer labels are sorted as numbers."""
    if all(WHOLE.fullmatch(str(label)) for label in graph):
        graph = nx.relabel_nodes(graph, int)
    if n is not None and n != len(graph):
        outside = [label for label in graph if not (isinstance(label, int) and 0 <= label < n)]
        if outside:
            raise TopologyError(
                f"{source}: n is {n}, but the file names {len(graph)} nodes, "
                f"among them {outside[0]!r}"
            )
        node_count(source, n)  # which refuses more than memory holds
        graph.add_nodes_from(range(n))
    if not graph:
        raise TopologyError(f"{source}: the file names no node")
    return plain(graph)


def read_text(path: str | Path, what: str) -> str:
    """Return the text of a file.

    Parameters
    ----------
    path : str | Path
        The file, in UTF-8.
    what : str
        What the file is, for messages.

    Returns
    -------
    str
        The text.

    Raises
    ------
    TopologyError
        If the file cannot be read or is too large for the memory.
    """
    try:
        content = read_bytes(path)
        check_memory(TEXT_BYTES * len(content), f"the {what} {str(path)!r}")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise TopologyError(f"cannot read the {what} {str(path)!r}: {reason}") from error


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
