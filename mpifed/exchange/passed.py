"""Graphs, weights and schedules that a Python program passes, as keys of a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse

from mpifed.errors import InputError
from topologies.inline import graph_section
from topologies.matrix import MixingMatrix
from topologies.own_rounds import as_matrix, schedule_section
from topologies.parameters import TopologyError

FILES: Mapping[str, str] = {
    ".graphml": "graphml",
    ".edges": "edge_list",
    ".npz": "matrix",
    ".csv": "matrix",
}
"""The family that reads a file of each suffix."""

MOST_ROUNDS = 1000
"""Most rounds of a schedule that are stored with a configuration."""


def mixing_overrides(
    topology: Any, weights: Any, schedule: Any, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the overrides that ``topology``, ``weights`` and ``schedule`` stand for.

    Parameters
    ----------
    topology, weights, schedule : Any
        As for ``mpifed.run``.
    overrides : mapping
        The other overrides, which may name the exchange.

    Returns
    -------
    dict of str to Any
        Values by dotted key; empty if none of the three is given.

    Raises
    ------
    InputError
        For an object that is no graph, no mixing matrix or no schedule, or both at once.
    """
    given = {"topology": topology, "weights": weights, "schedule": schedule}
    found = {f"exchange.{key}": value for key, value in given.items() if value is not None}
    if not found:
        return {}
    for key in found:
        if key in overrides:
            raise InputError(f"{key.partition('.')[2]} and {key} are both given; give one of them")
    if topology is not None:
        found["exchange.topology"] = _converted("topology", _topology, topology)
    if _is_array(weights):
        if topology is not None or schedule is not None:
            beside = "topology" if topology is not None else "schedule"
            raise InputError(f"weights is a matrix, which has its own edges: leave {beside} out")
        del found["exchange.weights"]
        found |= _converted("weights", _of_matrix, weights)
    if schedule is not None:
        found["exchange.schedule"] = _converted("schedule", _schedule, schedule)
    if "exchange" not in overrides and "exchange.name" not in overrides:
        found = {"exchange": "gossip", **found}
    return found


def _converted(field: str, convert: Any, value: Any) -> Any:
    try:
        return convert(value)
    except TopologyError as error:
        raise InputError(f"{field}: {error}") from None


def _topology(value: Any) -> Any:
    if isinstance(value, nx.Graph):
        return graph_section(value)
    if _is_array(value):
        raise TopologyError(
            f"it is {type(value).__name__}, but a graph is wanted; pass a mixing matrix as weights"
        )
    if isinstance(value, (str, os.PathLike)) and Path(value).suffix in FILES:
        return {"name": FILES[Path(value).suffix], "path": os.fspath(value)}
    return value


def _of_matrix(value: Any) -> dict[str, Any]:
    """The edges of a symmetric matrix with their weights, or a schedule of one directed round."""
    matrix = as_matrix(value)
    if not matrix.symmetric:
        return {"exchange.schedule": schedule_section([matrix])}
    graph = nx.empty_graph(matrix.n)
    pairs = zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True)
    graph.add_weighted_edges_from((i, j, weight) for (i, j), weight in pairs)
    return {"exchange.topology": graph_section(graph), "exchange.weights": "given"}


def _schedule(value: Any) -> Any:
    if isinstance(value, (list, tuple)) or (_is_array(value) and np.ndim(value) == 3):
        if not len(value):
            raise TopologyError("it is empty; it must have a matrix at least")
        return schedule_section(list(value))
    if hasattr(value, "matrix") and hasattr(value, "period"):
        if value.period is None or value.period > MOST_ROUNDS:
            raise TopologyError(
                f"its period is {value.period}, and at most {MOST_ROUNDS} rounds can be stored; "
                "pass a function of the top level of a module that returns it"
            )
        return schedule_section([value.matrix(k) for k in range(1, value.period + 1)])
    return value


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, MixingMatrix)) or scipy.sparse.issparse(value)
