"""Writing of matrices and tables: npz (exact), dense CSV, edge lists, GraphML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import networkx as nx

from topologies.matrix import MixingMatrix
from topologies.parameters import TopologyError
from topologies.replacing import check_replaceable, replacing


def write_matrix(matrix: MixingMatrix, path: str | Path) -> None:
    """Write the matrix in the format of the path's suffix, one of ``FORMATS``.

    Weights are written with all their digits. Only the CSV file has self-weights; elsewhere they
    are one minus the other weights of the row. The edge list begins with the number of nodes.

    Parameters
    ----------
    matrix : MixingMatrix
        The mixing matrix.
    path : str | Path
        The file to write.

    Raises
    ------
    TopologyError
        For another suffix, for a directed matrix as an edge list or GraphML, or if the file cannot
        be written.
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
    """Check that a path has the suffix of a format and may be written.

    Parameters
    ----------
    path : Path
        The file to be written.

    Raises
    ------
    TopologyError
        If it does not.
    """
    if path.suffix not in FORMATS:
        raise TopologyError(
            f"{str(path)!r} ends in {path.suffix!r}, but must end in one of {', '.join(FORMATS)}"
        )
    check_writable(path)


def check_writable(path: Path) -> None:
    """Check that a path is that of a regular file or of none, in a directory that may be written.

    Parameters
    ----------
    path : Path
        The file to be written.

    Raises
    ------
    TopologyError
        If it does not.
    """
    try:
        check_replaceable(path)
    except OSError as error:
        raise TopologyError(f"cannot write {str(path)!r}: {error.strerror}") from error


def check_empty(directory: Path) -> None:
    """Check that a directory is empty, or may be made.

    Parameters
    ----------
    directory : Path
        The directory.

    Raises
    ------
    TopologyError
        If it is not empty, or a file or a link, or its parent may not be written.
    """
    try:
        if directory.is_symlink() or not directory.is_dir():
            check_replaceable(directory)
            free = not directory.exists()
        else:
            free = not any(directory.iterdir())
    except OSError as error:
        raise TopologyError(f"cannot write {str(directory)!r}: {error.strerror}") from error
    if not free:
        raise TopologyError(f"{str(directory)!r} exists, but must be a new or empty directory")


def _write_edges(matrix: MixingMatrix, path: Path) -> None:
    pairs = zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True)
    lines = [f"{i} {j} {weight!r}" for (i, j), weight in pairs]
    _write_lines([str(matrix.n), *lines], path)


def _write_csv(matrix: MixingMatrix, path: Path) -> None:
    rows = (",".join(map(repr, row)) for row in matrix.to_dense().tolist())
    _write_lines(rows, path)


def _write_lines(lines: Iterable[str], path: Path) -> None:
    with replacing(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def _write_graphml(matrix: MixingMatrix, path: Path) -> None:
    graph = nx.empty_graph(matrix.n)
    for (i, j), weight in zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True):
        graph.add_edge(i, j, weight=weight)
    graph.graph["info"] = json.dumps(dict(matrix.info))
    with replacing(path) as file:
        nx.write_graphml(graph, file)


FORMATS: dict[str, Callable[[MixingMatrix, Path], None]] = {
    ".npz": MixingMatrix.save,
    ".csv": _write_csv,
    ".edges": _write_edges,
    ".graphml": _write_graphml,
}


def write_table(records: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Write records of equal keys as CSV; None becomes an empty cell, a mapping JSON.

    Parameters
    ----------
    records : Sequence[dict[str, Any]]
        The rows; the keys of the first one make the header.
    path : str | Path
        The file to write.

    Raises
    ------
    TopologyError
        If the file cannot be written.
    """
    try:
        with replacing(path) as raw:
            file = io.TextIOWrapper(raw, encoding="utf-8", newline="")
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            for record in records:
                writer.writerow({key: _cell(value) for key, value in record.items()})
            file.detach()
    except OSError as error:
        raise TopologyError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
