"""Schedules with a weight rule or given matrices: static, periodic and resampled.

Each has a ``prepare`` and a ``restore``; see schedules.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from topologies.graphs.build import draw_graph
from topologies.matrix import IMPORT_TOLERANCE, NEGATIVE, MixingMatrix
from topologies.parameters import TopologyError
from topologies.schedules.sequences import Arrays, Drawn, Periodic, Schedule, Static
from topologies.weights.rules import mixing_matrix

Rule = tuple[str, Mapping[str, Any]]


def prepare_static(graph: nx.Graph, rule: Rule) -> Arrays:
    """Return the matrix of the graph under the rule, and its origin."""
    matrix = mixing_matrix(graph, rule[0], **rule[1])
    # Not how long it took, so that equal arguments give equal bytes.
    kept = {key: value for key, value in matrix.info.items() if key != "seconds"}
    info = np.frombuffer(json.dumps(kept).encode(), dtype=np.uint8)
    return {"edges": matrix.edges, "weights": matrix.weights, "info": info}


def restore_static(n: int, seed: int, arrays: Arrays) -> Schedule:
    """Return the schedule of the arrays of :func:`prepare_static`."""
    info = json.loads(arrays["info"].tobytes())
    return Static(MixingMatrix(n, arrays["edges"], arrays["weights"], info=info))


def prepare_periodic(graph: nx.Graph | None, rule: Rule, path: str) -> Arrays:
    """Return the matrices in the ``.npz`` files of a directory, concatenated."""
    files = sorted(Path(path).glob("*.npz"))
    if not files:
        raise TopologyError(f"periodic: there is no .npz file in the directory {path!r}")
    matrices = [MixingMatrix.load(file) for file in files]
    for file, matrix in zip(files, matrices, strict=True):
        report = matrix.validate(IMPORT_TOLERANCE)
        sums = [v for v in report.violations if v.name != NEGATIVE]
        # Negative self-weights are those of best_constant and matcha, and keep the mean.
        if sums or matrix.weights.min(initial=0.0) < -IMPORT_TOLERANCE:
            raise TopologyError(f"periodic: {str(file)!r} does not hold a mixing matrix: {report}")
    return {
        "edges": np.concatenate([matrix.edges for matrix in matrices]),
        "weights": np.concatenate([matrix.weights for matrix in matrices]),
        "counts": np.array([len(matrix.edges) for matrix in matrices]),
        "symmetric": np.array([matrix.symmetric for matrix in matrices]),
        "nodes": np.array([matrix.n for matrix in matrices]),
    }


def restore_periodic(n: int, seed: int, arrays: Arrays, path: str) -> Schedule:
    """Return the schedule of the arrays of :func:`prepare_periodic`."""
    if (arrays["nodes"] != n).any():
        found = arrays["nodes"].tolist()
        raise TopologyError(f"periodic: the matrices in {path!r} have n = {found}, but n is {n}")
    ends = np.cumsum(arrays["counts"])[:-1]
    rounds = zip(
        np.split(arrays["edges"], ends),
        np.split(arrays["weights"], ends),
        arrays["symmetric"].tolist(),
        strict=True,
    )
    return Periodic(tuple(MixingMatrix(n, *matrix) for matrix in rounds))


def prepare_resampled(graph: nx.Graph, rule: Rule) -> Arrays:
    """Return the law of a random graph and its weights, as JSON."""
    record = graph.graph
    if record.get("seed") is None:
        raise TopologyError(
            f"resampled needs a random graph family, but {record.get('family')} is not drawn"
        )
    law = {"family": record["family"], "params": record["params"], "weights": rule}
    return {"law": np.frombuffer(json.dumps(law).encode(), dtype=np.uint8)}


def restore_resampled(n: int, seed: int, arrays: Arrays) -> Schedule:
    """Return the schedule that draws a new graph every round, connected or not."""
    law = json.loads(arrays["law"].tobytes())
    rule, options = law["weights"]
    return Drawn(n, seed, partial(_resample, n=n, law=law, rule=rule, options=options))


def _resample(
    random: np.random.Generator, n: int, law: dict[str, Any], rule: str, options: dict[str, Any]
) -> MixingMatrix:
    graph = draw_graph(law["family"], n, int(random.integers(2**63)), **law["params"])
    return mixing_matrix(graph, rule, **options)
