"""Schedules by name: prepared once, then restored from arrays with the same result everywhere.

A schedule is made in two steps. ``prepare_schedule`` does what is expensive or depends on the last
digit of an eigensolver, and returns plain arrays, to be computed by one process, sent to the others
and stored. ``restore_schedule`` makes the schedule from them: cheap, and the same for equal arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx

from topologies.catalogue import (
    Entry,
    find,
    node_count,
    parse_spec,
    read_parameters,
)
from topologies.own_functions import call_own
from topologies.own_rounds import OfRounds, takes_round
from topologies.own_schedule import own_schedule
from topologies.parameters import TopologyError
from topologies.places import within
from topologies.schedule_table import AROUND, BURSTS, SCHEDULES, ScheduleEntry
from topologies.sequences import Arrays, Schedule, Static
from topologies.thinning import BurstyEdges, DropEdges, DropNodes, LocalRounds


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
        An entry of ``SCHEDULES``, or ``package.module:object``, called with n and ``params``, which
        returns a ``Schedule``, or with n, ``round=k`` and ``params``, which returns W^k.
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
        (probabilities), ``edge_failure`` and ``edge_recovery`` (losses in bursts), and
        ``local_rounds`` (only every so many rounds communicate).

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
    if entry.parameters is None and takes_round(entry.build):
        schedule: Schedule = OfRounds(n, entry.build, own, name)
    elif entry.parameters is None:
        found = call_own(name, entry.build, "schedule", {"n": n}, own)
        schedule = own_schedule(found, name, n, within(entry.build))
    else:
        schedule = entry.build(n, seed, arrays, **own)
    if around["drop_nodes"]:
        schedule = DropNodes(schedule, around["drop_nodes"], seed)
    if around["drop_edges"]:
        schedule = DropEdges(schedule, around["drop_edges"], seed)
    if around["edge_failure"]:
        failure, recovery = around["edge_failure"], around["edge_recovery"]
        schedule = BurstyEdges(schedule, failure, recovery, seed)
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
    if not around["edge_failure"]:
        around = {key: value for key, value in around.items() if key not in BURSTS}
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
