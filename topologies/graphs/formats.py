"""Writing of mixing matrices: dense arrays, edge lists and GraphML."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from topologies.matrix import MixingMatrix


def write_edges(matrix: MixingMatrix, path: Path) -> None:
    """Write the number of nodes, and a line for each edge."""
    pairs = zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True)
    _write_lines([[matrix.n], *([*edge, weight] for edge, weight in pairs)], path, " ")


def write_csv(matrix: MixingMatrix, path: Path) -> None:
    """Write the whole matrix, a row a line."""
    _write_lines(matrix.to_dense().tolist(), path, ",")


def write_npy(matrix: MixingMatrix, path: Path) -> None:
    """Write the whole matrix, float64, as ``numpy.load`` reads it."""
    np.save(path, matrix.to_dense())


def _write_lines(rows: Iterable[Sequence[Any]], path: Path, separator: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator, lineterminator="\n").writerows(rows)


def write_graphml(matrix: MixingMatrix, path: Path) -> None:
    """Write the graph with its weights."""
    graph = nx.empty_graph(matrix.n)
    for (i, j), weight in zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True):
        graph.add_edge(i, j, weight=weight)
    graph.graph["info"] = json.dumps(dict(matrix.info))
    nx.write_graphml(graph, path)
