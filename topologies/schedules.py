"""Schedules by name: prepared once, then restored from arrays with the same result everywhere.

A schedule is made in two steps. ``prepare_schedule`` does what is expensive or depends on the last
digit of an eigensolver, and returns plain arrays, to be computed by one process, sent to the others
and stored. ``restore_schedule`` makes the schedule from them: cheap, and the same for equal arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

from topologies.catalogue import (
    Entry,
    Parameter,
    TopologyError,
    find,
    node_count,
    parse_spec,
    read_parameters,
)
from topologies.finite_time import base_k, equitopo, one_peer_exponential, static_exponential
from topologies.matcha import prepare_matcha, restore_matcha
from topologies.matchings import (
    prepare_matchings,
    prepare_random_matching,
    restore_matchings,
    restore_random_matching,
)
from topologies.sequences import (
    Arrays,
    DropEdges,
    DropNodes,
    LocalRounds,
    Schedule,
    Static,
    check_returned,
)
from topologies.weighted import (
    prepare_periodic,
    prepare_resampled,
    prepare_static,
    restore_periodic,
    restore_resampled,
    restore_static,
)


@dataclass(frozen=True)
class ScheduleEntry(Entry):
    """A named schedule: ``prepare(graph, rule, **params)``, ``build(n, seed, arrays, **params)``.

    Attributes
    ----------
    uses : str
        What it takes from the topology: "weights" (the graph and a weight rule), "graph" (its edges
        only) or "nodes" (their number only).
    random : bool
        Whether it draws from a seed.
    prepare : Any
        The function that computes its arrays, if any.
    """

    uses: str = "weights"
    random: bool = False
    prepare: Any = None


def build_schedule(
    name: str = "static",
    n: int | None = None,
    *,
    graph: nx.Graph | None = None,
    weights: str = "fmmc",
    weight_options: Mapping[str, Any] | None = None,
    seed: int = 0,
    **params: Any,
) -> Schedule:
    """Return the named schedule.

    Parameters
    ----------
    name : str, default 'static'
        An entry of ``SCHEDULES``, or ``package.module:object``, called with n and ``params``.
    n : int, optional
        The number of nodes, for the schedules that need no graph.
    graph : networkx.Graph, optional
        The graph on 0 .. n-1, for the schedules that need one.
    weights : str, default 'fmmc'
        The weight rule, for the schedules that use one.
    weight_options : Mapping[str, Any], optional
        The options of the weight rule.
    seed : int, default 0
        The seed of all draws from round to round.
    **params : Any
        The schedule's parameters, and for any schedule ``drop_nodes`` and ``drop_edges``
        (probabilities), and ``local_rounds`` (only every so many rounds communicate).

    Returns
    -------
    Schedule
        The schedule.

    Raises
    ------
    TopologyError
        For an unknown schedule, a bad parameter, or a missing graph or n.

    Examples
    --------
    >>> build_schedule("one_peer_exponential", 8).matrix(2).neighbours(0)[0].tolist()
    [6]
    """
    arrays = prepare_schedule(
        name, graph=graph, weights=weights, weight_options=weight_options, **params
    )
    if n is None and graph is not None:
        n = len(graph)
    return restore_schedule(name, n, arrays, seed=seed, **params)


def prepare_schedule(
    name: str,
    *,
    graph: nx.Graph | None = None,
    weights: str = "fmmc",
    weight_options: Mapping[str, Any] | None = None,
    **params: Any,
) -> Arrays:
    """Return the arrays that :func:`restore_schedule` needs.

    Parameters
    ----------
    name : str
        The schedule.
    graph : networkx.Graph, optional
        The graph on 0 .. n-1, for the schedules that need one.
    weights : str, default 'fmmc'
        The weight rule.
    weight_options : Mapping[str, Any], optional
        The options of the weight rule.
    **params : Any
        As for :func:`build_schedule`.

    Returns
    -------
    mapping of str to ndarray
        The arrays; empty for a schedule that needs none.

    Raises
    ------
    TopologyError
        For an unknown schedule, a bad parameter, or a missing graph.
    """
    entry = find(SCHEDULES, "schedule", name)
    own, _ = _split(name, entry, params)
    if entry.prepare is None:
        return {}
    if entry.uses != "nodes" and graph is None:
        raise TopologyError(f"the schedule {name} needs a graph")
    arrays: Arrays = entry.prepare(graph, (weights, weight_options or {}), **own)
    return arrays


def restore_schedule(
    name: str, n: int | None, arrays: Arrays, *, seed: int = 0, **params: Any
) -> Schedule:
    """Return the schedule whose arrays ``prepare_schedule`` made from the same parameters.

    Parameters
    ----------
    name : str
        The schedule.
    n : int | None
        The number of nodes.
    arrays : mapping of str to ndarray
        The arrays.
    seed : int, default 0
        The seed of all draws from round to round.
    **params : Any
        As for :func:`build_schedule`.

    Returns
    -------
    Schedule
        The schedule.

    Raises
    ------
    TopologyError
        For an unknown schedule, a bad parameter, or a missing n.
    """
    entry = find(SCHEDULES, "schedule", name)
    own, around = _split(name, entry, params)
    n = node_count(name, n)
    if entry.parameters is None:
        schedule = check_returned(entry.build(n, **own), name, n)
    else:
        schedule = entry.build(n, seed, arrays, **own)
    if around["drop_nodes"]:
        schedule = DropNodes(schedule, around["drop_nodes"], seed)
    if around["drop_edges"]:
        schedule = DropEdges(schedule, around["drop_edges"], seed)
    if around["local_rounds"] > 1:
        schedule = LocalRounds(schedule, around["local_rounds"])
    return schedule


def check_schedule(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Check the parameters of a schedule.

    Parameters
    ----------
    name : str
        The schedule.
    params : Mapping[str, Any]
        Its parameters.

    Returns
    -------
    dict of str to Any
        The parameters with the defaults filled in.

    Raises
    ------
    TopologyError
        For an unknown schedule or parameter, or a value out of range.
    """
    entry = find(SCHEDULES, "schedule", name)
    own, around = _split(name, entry, params)
    return {**own, **around}


def parse_schedule(text: str) -> tuple[str, dict[str, Any]]:
    """Parse ``schedule:key=value,...``.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    tuple of str and dict
        The name and the checked parameters, defaults included.

    Raises
    ------
    TopologyError
        If the text is malformed or names a schedule that does not exist.

    Examples
    --------
    >>> parse_schedule("matcha:budget=0.25,local_rounds=2")[1]
    {'budget': 0.25, 'drop_nodes': 0.0, 'drop_edges': 0.0, 'local_rounds': 2}
    """
    name, given = parse_spec(text)
    return name, check_schedule(name, given)


def _split(
    name: str, entry: ScheduleEntry, params: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schedule's own parameters and those that any schedule has, all checked."""
    common = {key: value for key, value in params.items() if key in AROUND}
    own = {key: value for key, value in params.items() if key not in AROUND}
    around = read_parameters(name, Entry(Static, "", AROUND), common)
    return read_parameters(name, entry, own), around


def _of_nodes(make: Callable[..., Schedule]) -> Callable[..., Schedule]:
    """Return the build function of a schedule that is determined by n and its parameters."""
    return lambda n, seed, arrays, **params: make(n, **params)


def _equitopo(n: int, seed: int, arrays: Arrays, step: float) -> Schedule:
    return equitopo(n, seed, step)


SCHEDULES: dict[str, ScheduleEntry] = {
    "static": ScheduleEntry(
        restore_static, "the same matrix in every round", prepare=prepare_static
    ),
    "periodic": ScheduleEntry(
        restore_periodic,
        "the matrices of a directory in turn",
        {
            "path": Parameter(
                str, "directory of .npz files, in the order of their names", required=True
            )
        },
        uses="nodes",
        prepare=prepare_periodic,
    ),
    "one_peer_exponential": ScheduleEntry(
        _of_nodes(one_peer_exponential),
        "averages with the node 1, 2, 4, ... before; directed",
        uses="nodes",
    ),
    "static_exponential": ScheduleEntry(
        _of_nodes(static_exponential),
        "averages with all nodes 1, 2, 4, ... before; directed",
        uses="nodes",
    ),
    "base_k": ScheduleEntry(
        _of_nodes(base_k),
        "few neighbours a round, the exact mean after a period (Base-(k+1) graph)",
        {"peers": Parameter(int, "most neighbours of a node in a round", default=1, low=1)},
        uses="nodes",
    ),
    "equitopo": ScheduleEntry(
        _equitopo,
        "averages with the node a random number before; directed (EquiTopo, one peer)",
        {
            "step": Parameter(
                float, "weight of the exchange", 0.5, low=0, high=1, open_ends=("low",)
            )
        },
        uses="nodes",
        random=True,
    ),
    "matchings": ScheduleEntry(
        restore_matchings,
        "the matchings of an edge colouring of the graph in turn",
        uses="graph",
        prepare=prepare_matchings,
    ),
    "random_matching": ScheduleEntry(
        restore_random_matching,
        "a random maximal matching of the graph every round",
        uses="graph",
        random=True,
        prepare=prepare_random_matching,
    ),
    "matcha": ScheduleEntry(
        restore_matcha,
        "matchings of the graph, switched on at random within a budget",
        {
            "budget": Parameter(
                float, "mean share of the matchings", 0.5, low=0, high=1, open_ends=("low",)
            )
        },
        uses="graph",
        random=True,
        prepare=prepare_matcha,
    ),
    "resampled": ScheduleEntry(
        restore_resampled,
        "a new draw of the graph every round, connected or not",
        random=True,
        prepare=prepare_resampled,
    ),
}

AROUND: dict[str, Parameter] = {
    "drop_nodes": Parameter(
        float, "probability that a node is absent in a round", 0.0, low=0, high=1
    ),
    "drop_edges": Parameter(
        float, "probability that an edge is lost in a round", 0.0, low=0, high=1
    ),
    "local_rounds": Parameter(int, "only every so many rounds communicate", 1, low=1),
}
