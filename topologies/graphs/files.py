"""Reading of graphs, matrices and tables: npz (exact), npy, dense CSV, edge lists, GraphML."""

from __future__ import annotations

import ast
import csv
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import networkx as nx
import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.matrix import MixingMatrix
from topologies.memory_limits import check_memory
from topologies.node_counts import check_nodes, node_count
from topologies.regular_files import read_bytes

WHOLE = re.compile(r"-?[0-9]{1,18}")
NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"

# The family that reads a file of each suffix.
FAMILY_OF: Mapping[str, str] = {
    **{".npz": "matrix", ".npy": "matrix", ".csv": "matrix"},
    **{".edges": "edge_list", ".edgelist": "edge_list", ".txt": "edge_list"},
    **{".graphml": "graphml", ".gml": "graphml"},
}

# What networkx writes behind the ends of an edge: its attributes, as Python shows a dictionary.
ATTRIBUTES = re.compile(r"\{.*\}\s*$")

# Attributes of an edge that are read: two lines about one edge must agree on them.
MEASURES = ("weight", "distance", "latency", "bandwidth")

# Bytes that the graph of a text file takes for each byte of the text, about.
TEXT_BYTES = 30

# Maps often name several places alike, so that only numbers tell the nodes of GML apart.
PARSERS: dict[str, Callable[[str], nx.Graph]] = {
    ".graphml": lambda text: nx.read_graphml(io.BytesIO(text.encode())),
    ".gml": lambda text: nx.parse_gml(text, label="id"),
}

WORD = re.compile(rf"([0-9]{{1,9}})([->])([0-9]{{1,9}})(?::({NUMBER}))?")


def read_matrix(path: str | Path) -> MixingMatrix:
    """Return the mixing matrix in a file."""
    if Path(path).suffix == ".npz":
        return MixingMatrix.load(path)
    return _as_mixing(_read_table(path), path)


def _as_mixing(array: NDArray[Any], path: str | Path) -> MixingMatrix:
    try:
        return MixingMatrix.from_sparse(array)
    except TopologyError as error:
        raise TopologyError(f"{str(path)!r}: {error}") from None


def _read_table(path: str | Path) -> NDArray[Any]:
    return _read_array(path) if Path(path).suffix == ".npy" else read_numbers(path)


def is_adjacency(array: Any) -> bool:
    """Return whether a square array of zeros and ones is no mixing matrix."""
    return (
        isinstance(array, np.ndarray)
        and array.ndim == 2
        and array.shape[0] == array.shape[1]
        and bool(np.isin(array, (0, 1)).all())
        and bool((array.sum(axis=1) != 1).any())
    )


def graph_of(adjacency: NDArray[Any], source: str) -> nx.Graph:
    """Return the graph of a symmetric adjacency matrix, without its self-loops."""
    if (adjacency != adjacency.T).any():
        i, j = np.argwhere(adjacency != adjacency.T)[0].tolist()
        raise TopologyError(
            f"{source} is an adjacency matrix with an arc between {i} and {j} in one direction "
            "alone, but a topology is undirected; a directed mixing matrix is a schedule"
        )
    graph = nx.empty_graph(len(adjacency))
    graph.add_edges_from(np.argwhere(np.triu(adjacency, 1)).tolist())
    return graph


def _read_array(path: str | Path) -> NDArray[Any]:
    try:
        return np.load(io.BytesIO(read_bytes(path)))
    except (OSError, ValueError) as error:
        raise TopologyError(f"{str(path)!r} is not an array of numbers: {error}") from error


def read_numbers(path: str | Path) -> NDArray[np.float64]:
    """Return the numbers in a CSV file, without names in its first row and column."""
    text = read_text(path, "table of numbers")
    if not text.strip():
        raise TopologyError(f"{str(path)!r} holds no number")
    try:
        return np.loadtxt(io.StringIO(_without_names(text)), delimiter=",", ndmin=2)
    except ValueError as error:
        raise TopologyError(f"{str(path)!r} is not a table of numbers: {error}") from error


def _without_names(text: str) -> str:
    """Return the text of a table without a first row, and a first column, of names."""
    if all(map(_is_number, next(csv.reader(text.splitlines()), []))):
        return text  # as the largest tables are
    rows = [row for row in csv.reader(text.splitlines()) if row]
    names, *others = rows
    if not others or (names[0].strip() and any(map(_is_number, names))):
        return text
    corner = not _is_number(others[0][0]) or not names[0].strip() or len(others[0]) > len(names)
    return "\n".join(",".join(row[corner:]) for row in others)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def edge_list(n: int | None = None, *, path: str) -> nx.Graph:
    """A text file with one edge ``i j`` or ``i j weight`` a line; ``i i weight`` is a self-weight.

    Files of ``networkx.write_edgelist`` are read too, with the weight among their attributes.

    Parameters
    ----------
    path
        The file to read.
    """
    graph = nx.Graph()
    for number, line in enumerate(read_text(path, "graph file").splitlines(), start=1):
        ends, attributes = _divided(line.split("#")[0])
        words = ends.replace(",", " ").split() + attributes
        if len(words) == 1 and WHOLE.fullmatch(words[0]) and not graph:
            n = n or int(words[0])
        elif words:
            if len(words) not in (2, 3) or not all(re.fullmatch(NUMBER, w) for w in words[2:]):
                raise TopologyError(
                    f"edge_list: line {number} of {path} is {line.strip()!r}, but must be an edge "
                    "'i j' or 'i j weight'"
                )
            link = {"weight": float(words[2]), "line": number} if words[2:] else {}
            _join(graph, words[0], words[1], link, f"edge_list {path}")
    return _relabelled(graph, n, f"edge_list {path}")


def _divided(line: str) -> tuple[str, list[str]]:
    """Return a line without the attributes that networkx wrote, and their weight."""
    written = ATTRIBUTES.search(line)
    if written is None:
        return line, []
    try:
        attributes = ast.literal_eval(written[0].strip())
    except (ValueError, SyntaxError):
        return line, []
    weight = attributes.get("weight") if isinstance(attributes, dict) else None
    return line[: written.start()], [] if weight is None else [str(weight)]


def graphml(n: int | None = None, *, path: str) -> nx.Graph:
    """A GraphML file, with labels replaced by 0 .. n-1 in order, n2 before n10.

    Parameters
    ----------
    path
        The file to read.
    """
    graph = read_graph(path, "graph file")
    if graph.is_directed():
        raise TopologyError(
            f"graphml: {path} holds a directed graph, but must hold an undirected one"
        )
    return _relabelled(graph, n, f"graphml {path}")


def read_graph(path: str | Path, what: str) -> nx.Graph:
    """Return the simple graph of a GraphML or GML file, with its labels and attributes."""
    text, suffix = read_text(path, what), Path(path).suffix
    parse = PARSERS.get(suffix, PARSERS[".graphml"])
    try:
        graph = parse(text)
    except Exception as error:  # the XML parser's and networkx's errors have no common base
        raise TopologyError(f"{str(path)!r} is not a {suffix[1:]} file: {error}") from error
    return simple(graph, repr(str(path)))


def simple(graph: nx.Graph, source: str) -> nx.Graph:
    """Return the graph with one edge in place of several that agree."""
    if not graph.is_multigraph():
        return graph
    merged = nx.DiGraph() if graph.is_directed() else nx.Graph()
    merged.add_nodes_from(graph.nodes(data=True))
    for i, j, link in graph.edges(data=True):
        _join(merged, i, j, link, source)
    return merged


def _join(graph: nx.Graph, i: Any, j: Any, link: dict[str, Any], source: str) -> None:
    """Add an edge that no edge between the same nodes contradicts."""
    earlier = graph.get_edge_data(i, j, {})
    for key in MEASURES:
        one, other = earlier.get(key), link.get(key)
        if one is not None and other is not None and one != other:
            lines = f", on lines {earlier['line']} and {link['line']}" if "line" in link else ""
            raise TopologyError(
                f"{source} has two values of {key} for the edge between {i} and {j}, {one} and "
                f"{other}{lines}; they must agree"
            )
    graph.add_edge(i, j, **link)


def matrix(n: int | None = None, *, path: str) -> nx.Graph:
    """The graph of a stored mixing matrix, or of an adjacency matrix of zeros and ones.

    Parameters
    ----------
    path
        The file to read (.npz, .npy or .csv).
    """
    if Path(path).suffix == ".npz":
        mixing = MixingMatrix.load(path)
    else:
        array = _read_table(path)
        if is_adjacency(array):
            check_nodes("matrix", n, len(array), path)
            return graph_of(array, repr(str(path)))
        mixing = _as_mixing(array, path)
    if not mixing.symmetric:
        raise TopologyError(
            f"matrix: {path} holds a directed matrix, but must hold a symmetric one; a directed "
            "one is a schedule, periodic with this path"
        )
    check_nodes("matrix", n, mixing.n, path)
    graph = nx.empty_graph(mixing.n)
    for (i, j), weight in zip(mixing.edges.tolist(), mixing.weights.tolist(), strict=True):
        graph.add_edge(i, j, weight=weight)
    return graph


def plain(graph: nx.Graph) -> nx.Graph:
    """Return the graph on 0 .. n-1 in natural order of its labels; nodes have their self-loops."""
    number = {label: k for k, label in enumerate(sorted(graph, key=_natural))}
    plain = nx.empty_graph(len(number))
    plain.graph.update(graph.graph)
    for i, j, link in graph.edges(data=True):
        weight = {} if link.get("weight") is None else {"weight": link["weight"]}
        if i != j:
            plain.add_edge(number[i], number[j], **weight)
        elif weight:
            plain.nodes[number[i]]["loop"] = link
    return plain


def _natural(label: Any) -> Any:
    """Return a key that sorts texts by the numbers in them, anything else by itself."""
    if not isinstance(label, str):
        return label
    parts: list[Any] = re.split(r"([0-9]+)", label)
    digits = (part.lstrip("0") for part in parts[1::2])
    parts[1::2] = [(len(part), part) for part in digits]
    return parts, label


def _relabelled(graph: nx.Graph, n: int | None, source: str) -> nx.Graph:
    """Return a graph read from a file on 0 .. n-1; integer labels are sorted as numbers."""
    are_numbers = all(WHOLE.fullmatch(str(label)) for label in graph)
    if are_numbers and len(set(map(int, graph))) == len(graph):  # 1 and 01 would become one node
        graph = nx.relabel_nodes(graph, int)
    if n is not None and n != len(graph):
        outside = [label for label in graph if not (isinstance(label, int) and 0 <= label < n)]
        if outside:
            raise TopologyError(
                f"{source}: n is {n}, but the file names {len(graph)} nodes, "
                f"among them {outside[0]!r}"
            )
        node_count(source, n)  # which refuses more than memory holds
        graph.graph["nodes in the file"] = len(graph)
        graph.add_nodes_from(range(n))
    if not graph:
        raise TopologyError(f"{source}: the file names no node")
    return plain(graph)


def read_text(path: str | Path, what: str) -> str:
    """Return the text of a file."""
    try:
        content = read_bytes(path)
        check_memory(TEXT_BYTES * len(content), f"the {what} {str(path)!r}")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise TopologyError(f"cannot read the {what} {str(path)!r}: {reason}") from error


def edges(n: int | None = None, *, nodes: Annotated[int, Ge(1)], edges: str = "") -> nx.Graph:
    """Edges written out: 0-1 1-2:0.25, with a weight behind a colon; 2-2:0.5 is a self-weight.

    Parameters
    ----------
    nodes
        Number of nodes.
    edges
        The edges, with spaces between.
    """
    graph = nx.empty_graph(nodes)
    for i, sign, j, weight in words_of(edges, nodes, "edges", loops=True):
        if sign != "-":
            raise TopologyError(f"edges: '{i}>{j}' is an arc, but a graph has edges, as in {i}-{j}")
        _join(graph, i, j, {} if weight is None else {"weight": weight}, "edges")
    return plain(graph) if nx.number_of_selfloops(graph) else graph


def words_of(
    text: str, n: int, owner: str, loops: bool = False
) -> list[tuple[int, str, int, float | None]]:
    """Return the edges and arcs of a text, with ``-`` or ``>`` between their ends, and weights."""
    edges = []
    for word in text.split():
        match = WORD.fullmatch(word)
        if match is None:
            raise TopologyError(
                f"{owner}: {word[:40]!r} is not of the form 0-1, 0-1:0.5 or 0>1:0.5"
            )
        i, j = int(match[1]), int(match[3])
        if max(i, j) >= n or (i == j and not loops):
            different = "" if loops else " different"
            raise TopologyError(f"{owner}: {word!r} must join two{different} nodes of 0 .. {n - 1}")
        edges.append((i, match[2], j, None if match[4] is None else float(match[4])))
    return edges


def graph_section(graph: nx.Graph) -> dict[str, Any]:
    """Return a networkx graph as the parameters of the family ``edges``, with its name."""
    if graph.is_directed():
        raise TopologyError(
            "the graph is directed, but a topology is undirected; pass it as schedule=[graph]"
        )
    try:
        numbered = plain(simple(graph, "the graph"))
    except TypeError:
        raise TopologyError("the graph has labels that cannot be sorted") from None
    if not numbered:
        raise TopologyError("the graph has no node")
    edges = sorted((min(i, j), max(i, j), w) for i, j, w in numbered.edges(data="weight"))
    weighted = bool(edges) and all(isinstance(w, (int, float, np.number)) for *_, w in edges)
    if weighted:
        loops = numbered.nodes(data="loop")
        edges += [(k, k, loop["weight"]) for k, loop in loops if loop is not None]
    words = [f"{i}-{j}:{float(w)!r}" if weighted else f"{i}-{j}" for i, j, w in edges]
    return {"name": "edges", "nodes": len(numbered), "edges": " ".join(words)}
