"""Schedules with a weight rule or given matrices: static, periodic and resampled.

Each has a ``prepare`` and a ``restore``; see schedules.py.

Schedules of matrices that are written out, and of a user's function of the round.
"""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import networkx as nx
import numpy as np

from topologies.graphs.build import draw_graph
from topologies.graphs.files import plain, words_of
from topologies.inputs import TopologyError, defined_at, raised_at, within
from topologies.matrix import IMPORT_TOLERANCE, NEGATIVE, MixingMatrix
from topologies.parameters import ROUNDS, OwnPartError, check_call, kind_of
from topologies.schedules.sequences import Arrays, Drawn, Periodic, Schedule, Static, check_round
from topologies.weights.rules import metropolis_hastings, mixing_matrix

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


def prepare_matrices(graph: object, rule: object, nodes: int, rounds: str) -> Arrays:
    """Return what :func:`restore_matrices` needs: the number of nodes."""
    return {"nodes": np.array(nodes)}


def restore_matrices(n: int, seed: int, arrays: Arrays, nodes: int, rounds: str) -> Periodic:
    """Return the schedule of a text of rounds."""
    if n != nodes:
        raise TopologyError(f"matrices: n is {n}, but the rounds are of {nodes} nodes")
    return Periodic(tuple(_round(text, n) for text in rounds.split(";")))


def _round(text: str, n: int) -> MixingMatrix:
    words = words_of(text, n, "matrices")
    missing = next((f"{i}{sign}{j}" for i, sign, j, weight in words if weight is None), None)
    if missing is not None:
        raise TopologyError(f"matrices: {missing!r} has no weight, as in {missing}:0.5")
    symmetric = all(sign == "-" for _, sign, _, _ in words)
    pairs = [(i, j) if sign == "-" else (j, i) for i, sign, j, _ in words]
    if not symmetric:
        backs = [(j, i) for i, sign, j, _ in words if sign == "-"]
        pairs += backs
    weights = [weight for _, _, _, weight in words]
    weights += [weight for _, sign, _, weight in words if sign == "-" and not symmetric]
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    matrix = MixingMatrix(n, edges, np.array(weights, dtype=np.float64), symmetric=symmetric)
    report = matrix.validate(IMPORT_TOLERANCE)
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
    """Return a mixing matrix from an array, a graph (Metropolis-Hastings weights), or as it is."""
    if isinstance(value, MixingMatrix):
        return value
    if isinstance(value, nx.Graph):
        return metropolis_hastings(plain(nx.Graph(value)))
    try:
        return MixingMatrix.from_sparse(value)
    except (TypeError, ValueError) as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"{type(value).__name__} is not a matrix: {error}") from None


def takes_round(function: Callable[..., Any]) -> bool:
    """Return whether a user's function has a parameter ``round``, and so returns W^k."""
    try:
        return "round" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


# How a user's function of rounds is called, for messages.
RETURNS = "function(n, round, **options) returns W^k: an array (n, n), a graph or a MixingMatrix"


@dataclass(frozen=True)
class OfRounds:
    """The schedule of a user's function of n and the round."""

    n: int
    function: Callable[..., Any]
    options: Mapping[str, Any]
    name: str
    period = None
    tau = 1
    # Of rounds that nobody has asked for yet nothing is known.
    symmetric = False
    doubly_stochastic = True

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1; raise ``TopologyError`` where it is none."""
        where = f"{self.name} for round {check_round(k)}"
        check_call(self.name, self.function, "schedule", ("n",), ("round", *self.options))
        try:
            found = self.function(self.n, round=k, **self.options)
        except Exception as error:
            said = str(error)
            if not isinstance(error, TopologyError):
                said = f"{type(error).__name__}: {error}"
            said = f"{where} fails: {said}{raised_at(error)}; {RETURNS}"
            raise OwnPartError(said, "schedule") from error
        if not is_matrix(found):
            raise self._wrong(f"{where}: {kind_of(found)} was returned; {RETURNS}")
        try:
            made = as_matrix(found)
        except TopologyError as error:
            raise self._wrong(f"{where}: {error}") from None
        if made.n != self.n:
            raise self._wrong(f"{where} has {made.n} nodes, not {self.n}")
        if not made.doubly_stochastic:
            raise self._wrong(f"{where}: columns do not sum to one")
        return made

    def _wrong(self, said: str) -> OwnPartError:
        return OwnPartError(f"{said}{within(self.function)}", "schedule")


def is_matrix(found: Any) -> bool:
    """Return whether ``as_matrix`` may make something of an object: it has two axes, or nodes."""
    if isinstance(found, (MixingMatrix, nx.Graph)):
        return True
    try:
        return int(np.ndim(found)) == 2
    except ValueError:  # of rows of different lengths
        return False


# What a schedule's method does, for messages.
SCHEDULE_RETURNS = "matrix(k) returns W^k, a MixingMatrix"


def _is_count(value: Any) -> bool:
    return not _is_flag(value) and isinstance(value, Integral) and int(value) >= 1


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


# Attributes of a schedule, and what each must be. None has a default, so that a misspelt one is
# noticed.
REQUIRED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "n": ("a whole number", _is_count),
    "period": ("a whole number, or None", lambda value: value is None or _is_count(value)),
    "tau": ("a whole number", _is_count),
    "symmetric": ("True or False", _is_flag),
    "doubly_stochastic": ("True or False", _is_flag),
    "matrix": ("a method", callable),
}


class OwnSchedule:
    """A user's schedule, of which the matrix of each round is checked."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self._schedule, self._name = schedule, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also before there is a schedule, as in a copy
            raise AttributeError(name)
        return getattr(self._schedule, name)

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1; raise ``OwnPartError`` where it is none."""
        where, place = f"{self._name} for round {check_round(k)}", self._place()
        try:
            found: Any = self._schedule.matrix(k)
        except TopologyError as error:
            raise OwnPartError(f"{where}: {error}{raised_at(error)}", "schedule") from error
        except Exception as error:
            said = f"{where} fails: {type(error).__name__}: {error}{raised_at(error)}"
            raise OwnPartError(f"{said}; {SCHEDULE_RETURNS}", "schedule") from error
        if not is_matrix(found):
            raise OwnPartError(
                f"{where}: {kind_of(found)} was returned; {SCHEDULE_RETURNS}{place}", "schedule"
            )
        try:
            made = as_matrix(found)
        except TopologyError as error:
            raise OwnPartError(f"{where}: {error}{place}", "schedule") from None
        if made.n != self._schedule.n:
            said = f"{where} has {made.n} nodes, not {self._schedule.n}{place}"
            raise OwnPartError(said, "schedule")
        return made

    def _place(self) -> str:
        place = defined_at(self._schedule.matrix) or defined_at(type(self._schedule))
        return f" (in {place})" if place else ""


def own_schedule(found: object, name: str, n: int, where: str = "") -> Schedule:
    """Return a user's object as a schedule of ``n`` nodes."""
    missing = [attribute for attribute in REQUIRED if not hasattr(found, attribute)]
    if missing:
        near = difflib.get_close_matches(missing[0], dir(found), n=1)
        misspelt = f" (it has {near[0]!r})" if near else ""
        raise OwnPartError(
            f"{name} returned {kind_of(found)}, which is not a schedule: it lacks "
            f"{', '.join(missing)}{misspelt}{ROUNDS}{where}",
            "schedule",
        )
    for attribute, (words, allows) in REQUIRED.items():
        value = getattr(found, attribute)
        if not allows(value):
            raise OwnPartError(
                f"{name} returned {kind_of(found)}, whose {attribute} is {value!r}; it must be "
                f"{words}{where}",
                "schedule",
            )
    schedule = cast(Schedule, found)
    if schedule.n != n:
        said = f"{name} returned a schedule of {schedule.n} nodes, not of {n}{where}"
        raise OwnPartError(said, "schedule")
    module = getattr(getattr(type(found), "matrix", None), "__module__", "")
    ours = module.partition(".")[0] == "topologies"
    return schedule if ours else OwnSchedule(schedule, name)
