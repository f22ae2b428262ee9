"""Which mixing matrices a configuration asks for: its topology, weights and schedule."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

import topologies
from mpifed.components.registry import Section, checked_section, named
from mpifed.errors import InputError
from topologies.errors import TopologyError
from topologies.graphs.files import FAMILY_OF, graph_of, graph_section, is_adjacency
from topologies.matrix import MixingMatrix
from topologies.schedules.from_matrices import as_matrix, schedule_section

_ASYNCHRONY = ("asynchrony", "kept_versions")
_OFTEN = {"when": "every", "budget": None, "gossip_steps": 1, "chebyshev": False}

DEFAULT_TOPOLOGY, DEFAULT_WEIGHTS, DEFAULT_SCHEDULE = "erdos_renyi", "fmmc", "static"

# Most rounds of a schedule that are stored with a configuration.
MOST_ROUNDS = 1000


def completed_options(options: Mapping[str, Any], n_training: int) -> dict[str, Any]:
    """Return the options with every parameter of topology, weights and schedule spelled out."""
    corrected, waits_not = correction(options), options.get("asynchrony", "none") != "none"
    return {
        **mixing_sections(options, n_training),
        "consensus_step": options["consensus_step"],
        # Runs of plain gossip mention neither, as those of earlier versions.
        **({} if corrected.name == "none" else {"correction": corrected}),
        **{key: options[key] for key in _ASYNCHRONY if waits_not},
        **{key: options[key] for key, usual in _OFTEN.items() if options.get(key, usual) != usual},
    }


def mixing_sections(options: Mapping[str, Any], n_training: int) -> dict[str, Section | None]:
    """Return the sections topology, weights and schedule with all their parameters, checked."""
    name, of_schedule = named(options.get("schedule"), "exchange.schedule", DEFAULT_SCHEDULE)
    try:
        of_schedule = topologies.check_schedule(name, of_schedule)
    except topologies.TopologyError as error:
        raise InputError(f"exchange.schedule: {error}") from None
    uses = _uses(name)
    return {
        "topology": _completed(
            "topology",
            _of_file(options.get("topology")),
            None if uses == "nodes" else DEFAULT_TOPOLOGY,
            name,
            lambda family, parameters: topologies.check_graph_parameters(
                family, n_training, parameters
            ),
        ),
        "weights": _completed(
            "weights",
            options.get("weights"),
            DEFAULT_WEIGHTS if uses == "weights" else None,
            name,
            topologies.check_weights,
        ),
        "schedule": Section(name, of_schedule),
    }


def correction(options: Mapping[str, Any]) -> Section:
    """Return the section ``correction`` of the options of gossip; ``none`` where they lack it."""
    section = options.get("correction")
    return checked_section("correction", section, "exchange.correction", "none")


def with_sizes(options: Mapping[str, Any], sizes: np.ndarray) -> Mapping[str, Any]:
    """Return the options, where weights by size have those of the clients unless they are given."""
    name, parameters = named(options.get("weights"), "exchange.weights", DEFAULT_WEIGHTS)
    if name != "by_size" or parameters.get("sizes") is not None:
        return options
    return {**options, "weights": Section(name, {"sizes": sizes.tolist()})}


def prepare_arrays(n: int, seed: int, options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays that the schedule of these options is made from."""
    name, parameters = named(options["schedule"], "exchange.schedule", DEFAULT_SCHEDULE)
    graph, rule = None, DEFAULT_WEIGHTS
    rule_options: dict[str, Any] = {}
    if _uses(name) != "nodes":
        family, of_graph = named(options["topology"], "exchange.topology", DEFAULT_TOPOLOGY)
        own_seed = of_graph.pop("seed", None)
        graph = topologies.build_graph(
            family, n, seed if own_seed is None else own_seed, **of_graph
        )
    if _uses(name) == "weights":
        rule, rule_options = named(options["weights"], "exchange.weights", DEFAULT_WEIGHTS)
    arrays = dict(
        topologies.prepare_schedule(
            name, graph=graph, weights=rule, weight_options=rule_options, **parameters
        )
    )
    # Refuses what does not fit n, such as a directory of matrices of another size.
    schedule = restore(n, seed, options["schedule"], arrays)
    if name not in topologies.SCHEDULES:
        # A user's function that fails does so before the first round.
        schedule.matrix(1)
    return arrays


def restore(n: int, seed: int, schedule: Any, stored: Mapping[str, np.ndarray]) -> Any:
    """Return the schedule over ``n`` nodes from the arrays that ``prepare_arrays`` made."""
    name, parameters = named(schedule, "exchange.schedule", DEFAULT_SCHEDULE)
    return topologies.restore_schedule(name, n, stored, seed=seed, **parameters)


def computed_in_rounds(schedule: Any) -> bool:
    """Return whether weights are computed in round k, not taken from what was prepared."""
    name, _ = named(schedule, "exchange.schedule", DEFAULT_SCHEDULE)
    entry = topologies.SCHEDULES.get(name)
    return entry is None or entry.in_rounds


def _uses(schedule: str) -> str:
    """What a schedule takes of the topology: 'weights' (a graph and a rule), 'graph' or 'nodes'."""
    entry = topologies.SCHEDULES.get(schedule)
    return entry.uses if entry is not None else "nodes"


def _completed(
    section: str,
    words: Any,
    default: str | None,
    schedule: str,
    check: Callable[[str, Mapping[str, Any]], dict[str, Any]],
) -> Section | None:
    """A section with all its parameters; None where the schedule has no use for it."""
    field = f"exchange.{section}"
    if default is None:
        if words is not None:
            raise InputError(
                f"{field} is given, but exchange.schedule '{schedule}' takes no {section}; "
                "leave it out, or choose a schedule that does, such as static"
            )
        return None
    name, parameters = named(words, field, default)
    try:
        return Section(name, check(name, parameters))
    except topologies.TopologyError as error:
        raise InputError(f"{field}: {error}") from None


def mixing_overrides(
    topology: Any, weights: Any, schedule: Any, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the overrides that ``topology``, ``weights`` and ``schedule`` stand for."""
    arguments = {"topology": topology, "weights": weights, "schedule": schedule}
    changes = {f"exchange.{key}": value for key, value in arguments.items() if value is not None}
    if not changes:
        return {}
    for key in changes:
        if key in overrides:
            raise InputError(f"{key.partition('.')[2]} and {key} are both given; give one of them")
    if topology is not None:
        changes["exchange.topology"] = _converted("topology", _topology, topology)
    if _is_array(weights):
        if topology is not None or schedule is not None:
            other = "topology" if topology is not None else "schedule"
            raise InputError(f"weights is a matrix, which has its own edges: leave {other} out")
        del changes["exchange.weights"]
        changes |= _converted("weights", _of_matrix, weights)
    if schedule is not None:
        changes["exchange.schedule"] = _converted("schedule", _schedule, schedule)
    if "exchange" not in overrides and "exchange.name" not in overrides:
        changes = {"exchange": "gossip", **changes}
    return changes


def _converted(field: str, convert: Any, value: Any) -> Any:
    try:
        return convert(value)
    except TopologyError as error:
        raise InputError(f"{field}: {error}") from None


def _topology(value: Any) -> Any:
    if isinstance(value, nx.Graph):
        return graph_section(value)
    if is_adjacency(value):
        return graph_section(graph_of(value, "the array"))
    if _is_array(value):
        raise TopologyError(
            f"it is {type(value).__name__}, but a graph is wanted, or an adjacency matrix of zeros "
            "and ones; pass a mixing matrix as weights"
        )
    return _of_file(value)


def _of_file(value: Any) -> Any:
    """Return the family that reads a file with a graph; another value as it is."""
    if isinstance(value, (str, os.PathLike)) and Path(value).suffix in FAMILY_OF:
        return {"name": FAMILY_OF[Path(value).suffix], "path": os.fspath(value)}
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
    from scipy.sparse import issparse  # here, since a wrong name is found without it

    return isinstance(value, (np.ndarray, MixingMatrix)) or issparse(value)
