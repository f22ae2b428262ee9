"""Graphs, matrices and tables on disk: npz (exact), dense CSV, edge lists, GraphML."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from topologies.catalogue import TopologyError, check_memory, node_count
from topologies.inputs import read_bytes
from topologies.matrix import MixingMatrix

WHOLE = re.compile(r"-?[0-9]{1,18}")

TEXT_BYTES = 30
"""Bytes that the graph of a text file takes for each byte of the text, about."""


def read_matrix(path: str | Path) -> MixingMatrix:
    """Return the mixing matrix of a file: ``.npz`` as written by ``save``, or ``.csv``, n x n.

    Raises:
        TopologyError: if the file cannot be read, or holds no doubly stochastic matrix; then the
            message is the report of what is violated.
    """
    if Path(path).suffix == ".npz":
        return MixingMatrix.load(path)
    return MixingMatrix.from_sparse(read_numbers(path))


def read_numbers(path: str | Path) -> NDArray[np.float64]:
    """Return the numbers in a CSV file: float64 [rows, columns].

    Raises:
        TopologyError: if the file cannot be read, or holds anything else.
    """
    text = read_text(path, "table of numbers")
    if not text.strip():
        raise TopologyError(f"{str(path)!r} holds no number")
    try:
        return np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)
    except ValueError as error:
        raise TopologyError(f"{str(path)!r} is no table of numbers: {error}") from error


def edge_list(n: int | None = None, path: str = "") -> nx.Graph:
    """The graph of a text file with one edge ``i j`` or ``i j weight`` a line.

    Text after ``#`` is ignored. A line with a single integer gives the
    number of nodes. Labels are replaced by 0 .. n-1 in sorted order, unless n is larger than their
    number: then they are the nodes themselves and those not named are isolated.
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
    """The undirected graph of a GraphML file; labels are replaced by 0 .. n-1 in sorted order."""
    graph = read_graphml(path, "graph file")
    if graph.is_directed():
        raise TopologyError(
            f"graphml: {path} holds a directed graph, but must hold an undirected one"
        )
    return _relabelled(nx.Graph(graph), n, f"graphml {path}")


def read_graphml(path: str | Path, what: str) -> nx.Graph:
    """Return the graph of a GraphML file, with its labels and attributes.

    Raises:
        TopologyError: if the file cannot be read, or is not GraphML; ``what`` is what it is called.
    """
    text = read_text(path, what)
    try:
        return nx.read_graphml(io.BytesIO(text.encode()))
    except Exception as error:  # the XML parser's and networkx's errors have no common base
        raise TopologyError(f"{str(path)!r} is no GraphML file: {error}") from error


def matrix(n: int | None = None, path: str = "") -> nx.Graph:
    """The graph of a stored symmetric mixing matrix (.npz, or .csv with all n x n entries)."""
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
    """Return the graph on 0 .. n-1 in sorted order of its labels, without self-loops."""
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

    Raises:
        TopologyError: if it cannot be read; ``what`` is what it is called.
    """
    try:
        content = read_bytes(path)
        check_memory(TEXT_BYTES * len(content), f"the {what} {str(path)!r}")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text file"
        raise TopologyError(f"cannot read the {what} {str(path)!r}: {reason}") from error


def write_matrix(matrix: MixingMatrix, path: str | Path) -> None:
    """Write the matrix in the format of the path's suffix, one of ``FORMATS``.

    Weights are written with all their digits. The self-weights stand in the CSV only: elsewhere
    they are one minus the rest. The edge list begins with the number of nodes.

    Raises:
        TopologyError: for another suffix, for a directed matrix as an edge list or GraphML, or if
            the file cannot be written.
    """
    path = Path(path)
    check_format(path)
    if not matrix.symmetric and path.suffix in (".edges", ".graphml"):
        raise TopologyError(f"a directed matrix cannot be written to {path.name}: use .npz or .csv")
    try:
        FORMATS[path.suffix](matrix, path)
    except OSError as error:
        raise TopologyError(f"cannot write {str(path)!r}: {error.strerror}") from error


def check_format(path: Path) -> None:
    """Refuse a path whose suffix is no format, or whose directory does not exist."""
    if path.suffix not in FORMATS:
        raise TopologyError(
            f"{str(path)!r} ends in {path.suffix!r}, but must end in one of {', '.join(FORMATS)}"
        )
    check_directory(path)


def check_directory(path: Path) -> None:
    """Refuse a path into a directory that does not exist."""
    if not path.parent.is_dir():
        raise TopologyError(
            f"cannot write {str(path)!r}: there is no directory {str(path.parent)!r}"
        )


def _write_edges(matrix: MixingMatrix, path: Path) -> None:
    pairs = zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True)
    lines = [f"{i} {j} {weight!r}" for (i, j), weight in pairs]
    path.write_text("\n".join([str(matrix.n), *lines]) + "\n")


def _write_csv(matrix: MixingMatrix, path: Path) -> None:
    rows = (",".join(map(repr, row)) for row in matrix.to_dense().tolist())
    path.write_text("\n".join(rows) + "\n")


def _write_graphml(matrix: MixingMatrix, path: Path) -> None:
    graph = nx.empty_graph(matrix.n)
    for (i, j), weight in zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True):
        graph.add_edge(i, j, weight=weight)
    graph.graph["info"] = json.dumps(dict(matrix.info))
    nx.write_graphml(graph, path)


FORMATS: dict[str, Callable[[MixingMatrix, Path], None]] = {
    ".npz": MixingMatrix.save,
    ".csv": _write_csv,
    ".edges": _write_edges,
    ".graphml": _write_graphml,
}


def write_table(records: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Write records of equal keys as CSV; None is an empty cell, a mapping is JSON.

    Raises:
        TopologyError: if the file cannot be written.
    """
    try:
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            for record in records:
                writer.writerow({key: _cell(value) for key, value in record.items()})
    except OSError as error:
        raise TopologyError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
