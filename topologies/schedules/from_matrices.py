"""Schedules of a weight rule (static, resampled), of given matrices, and of a user's function."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import networkx as nx
import numpy as np
from annotated_types import Ge

from topologies.errors import TopologyError
from topologies.graphs.build import build_graph, edge_array
from topologies.graphs.files import plain, read_matrix, words_of
from topologies.matrix import COLUMNS, IMPORT_TOLERANCE, NEGATIVE, MixingMatrix
from topologies.node_counts import check_nodes
from topologies.schedules import sequences
from topologies.schedules.sequences import Arrays, Drawn, Periodic, Schedule, Static, check_round
from topologies.weights.formulas import metropolis_hastings_weights
from topologies.weights.table import mixing_matrix

Rule = tuple[str, Mapping[str, Any]]


def prepare_static(graph: nx.Graph, rule: Rule) -> Arrays:
    """Return the matrix of the graph under the rule, and its origin."""
    matrix = mixing_matrix(graph, rule[0], **rule[1])
    # Not how long it took, so that equal arguments give equal bytes.
    origin = {key: value for key, value in matrix.info.items() if key != "seconds"}
    info = np.frombuffer(json.dumps(origin).encode(), dtype=np.uint8)
    directed = {} if matrix.symmetric else {"directed": np.array(True)}
    return {"edges": matrix.edges, "weights": matrix.weights, "info": info, **directed}


def restore_static(n: int, arrays: Arrays) -> Static:
    """The same matrix in every round."""
    info = json.loads(arrays["info"].tobytes())
    symmetric = "directed" not in arrays
    return Static(MixingMatrix(n, arrays["edges"], arrays["weights"], symmetric, info))


def prepare_periodic(*, path: str) -> Arrays:
    """Return the matrices in files, concatenated.

    Parameters
    ----------
    path
        A file with one matrix (.npz, .npy or .csv), or a directory of .npz files, in the order of
        their names.
    """
    files = [Path(path)] if Path(path).is_file() else sorted(Path(path).glob("*.npz"))
    if not files:
        raise TopologyError(f"periodic: there is no .npz file in the directory {path!r}")
    matrices = [read_matrix(file) for file in files]
    for file, matrix in zip(files, matrices, strict=True):
        report = matrix.validate(IMPORT_TOLERANCE).besides(COLUMNS)
        # Negative self-weights are those of best_constant and matcha, and keep the mean.
        if not report.besides(NEGATIVE).ok or matrix.weights.min(initial=0.0) < -IMPORT_TOLERANCE:
            raise TopologyError(f"periodic: {str(file)!r} does not hold a mixing matrix: {report}")
    return {
        "edges": np.concatenate([matrix.edges for matrix in matrices]),
        "weights": np.concatenate([matrix.weights for matrix in matrices]),
        "counts": np.array([len(matrix.edges) for matrix in matrices]),
        "symmetric": np.array([matrix.symmetric for matrix in matrices]),
        "nodes": np.array([matrix.n for matrix in matrices]),
    }


def restore_periodic(n: int, arrays: Arrays, *, path: str) -> Periodic:
    """The matrices of a directory in turn."""
    if (arrays["nodes"] != n).any():
        sizes = arrays["nodes"].tolist()
        raise TopologyError(f"periodic: the matrices in {path!r} have n = {sizes}, but n is {n}")
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
    if not mixing_matrix(graph, rule[0], **rule[1]).symmetric:
        law["directed"] = True
    return {"law": np.frombuffer(json.dumps(law).encode(), dtype=np.uint8)}


def restore_resampled(n: int, seed: int, arrays: Arrays) -> Drawn:
    """A new draw of the graph every round, connected or not."""
    law = json.loads(arrays["law"].tobytes())
    rule, options = law["weights"]

    def draw(random: np.random.Generator) -> MixingMatrix:
        seed = int(random.integers(2**63))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a round may be disconnected
            graph = build_graph(law["family"], n, seed, on_disconnected="keep", **law["params"])
        return mixing_matrix(graph, rule, **options)

    symmetric = "directed" not in law
    return Drawn(n, seed, draw, symmetric=symmetric, doubly_stochastic=symmetric)


def prepare_matrices(*, nodes: Annotated[int, Ge(1)], rounds: str) -> Arrays:
    """Return the number of nodes of rounds: texts of edges and arcs with weights, between
    semicolons.

    Parameters
    ----------
    nodes
        Number of nodes.
    rounds
        Edges i-j:w and arcs i>j:w of each round.
    """
    return {"nodes": np.array(nodes)}


def restore_matrices(n: int, *, nodes: int, rounds: str) -> Periodic:
    """Matrices written out in turn: 0-1:0.5 2>3:0.5; 0-2:0.5."""
    check_nodes("matrices", n, nodes, "the text")
    return Periodic(tuple(_round(text, n) for text in rounds.split(";")))


def _round(text: str, n: int) -> MixingMatrix:
    words = words_of(text, n, "matrices")
    symmetric = all(sign == "-" for _, sign, _, _ in words)
    arcs = []  # (receiver, sender, weight)
    for i, sign, j, weight in words:
        if weight is None:
            raise TopologyError(f"matrices: '{i}{sign}{j}' has no weight, as in {i}{sign}{j}:0.5")
        if sign == "-":
            arcs.append((i, j, weight))
        if not symmetric:
            arcs.append((j, i, weight))
    edges = np.array([arc[:2] for arc in arcs], dtype=np.int64).reshape(-1, 2)
    weights = np.array([weight for _, _, weight in arcs], dtype=np.float64)
    matrix = MixingMatrix(n, edges, weights, symmetric=symmetric)
    report = matrix.validate(IMPORT_TOLERANCE).besides(COLUMNS)
    if not report.ok:
        raise TopologyError(f"matrices: a round is not a mixing matrix: {report}")
    return matrix


def schedule_section(matrices: Sequence[Any]) -> dict[str, Any]:
    """Return matrices as the parameters of the schedule ``matrices``, with its name."""
    rounds = Periodic(tuple(as_matrix(matrix) for matrix in matrices))
    return {"name": "matrices", "nodes": rounds.n, "rounds": "; ".join(map(_text, rounds.matrices))}


def _text(matrix: MixingMatrix) -> str:
    pairs = zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True)
    if matrix.symmetric:
        return " ".join(f"{i}-{j}:{weight!r}" for (i, j), weight in pairs)
    return " ".join(f"{sender}>{receiver}:{weight!r}" for (receiver, sender), weight in pairs)


def as_matrix(value: Any) -> MixingMatrix:
    """Return a mixing matrix from an array, a graph (Metropolis-Hastings weights), or as it is.

    In a directed graph each node weighs alike itself and those from which arcs come.
    """
    if isinstance(value, nx.DiGraph):
        arcs = nx.to_numpy_array(value, sorted(value), weight=None).T + np.eye(len(value))
        return MixingMatrix.from_sparse((arcs > 0) / (arcs > 0).sum(1, keepdims=True))
    if isinstance(value, nx.Graph):
        graph = plain(nx.Graph(value))
        edges = edge_array(graph)
        return MixingMatrix(len(graph), edges, metropolis_hastings_weights(len(graph), edges))
    return sequences.as_matrix(value)


@dataclass(frozen=True)
class OfRounds:
    """The schedule of a user's function of n and the round, which returns W^k."""

    n: int
    function: Callable[..., Any]
    options: Mapping[str, Any]
    name: str
    period = None
    tau = 1
    # Of rounds that nobody has asked for yet nothing is known.
    symmetric = False

    @cached_property
    def doubly_stochastic(self) -> bool:
        """Whether the matrix of the first round is; others must be then."""
        return self._matrix(1).doubly_stochastic

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1."""
        matrix = self._matrix(k)
        if self.doubly_stochastic and not matrix.doubly_stochastic:
            raise TopologyError(
                f"{self.name} for round {k}: columns do not sum to one, but those of round 1 do"
            )
        return matrix

    def _matrix(self, k: int) -> MixingMatrix:
        returned = self.function(self.n, round=check_round(k), **self.options)
        where = f"{self.name} for round {k}"
        try:
            matrix = as_matrix(returned)
        except TopologyError as error:
            raise TopologyError(f"{where}: {error}") from None
        check_nodes(where, self.n, matrix.n, "the matrix")
        return matrix


def schedule_of_function(
    name: str, function: Callable[..., Any], n: int, options: Mapping[str, Any]
) -> Any:
    """Return the schedule of a user's function of n, or of n and the round."""
    if "round" in inspect.signature(function).parameters:
        return OfRounds(n, function, options, name)
    schedule = function(n, **options)
    if not isinstance(schedule, Schedule):
        raise TopologyError(
            f"{name} returned {schedule!r}, which lacks what a topologies.Schedule has; "
            "write def function(n, round) for one that returns the matrix of a round"
        )
    check_nodes(name, n, schedule.n, "the schedule")
    return schedule
