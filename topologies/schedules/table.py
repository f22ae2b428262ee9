"""Schedules by name: prepared once, then restored from arrays with the same result everywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import networkx as nx

from topologies.errors import TopologyError
from topologies.links import overlays
from topologies.names import find, parse_spec, values_of
from topologies.node_counts import node_count
from topologies.parameters import options_of
from topologies.schedules import (
    circulants,
    cliques,
    epidemic,
    from_matrices,
    matchings,
    moving_models,
)
from topologies.schedules.sequences import Arrays, Schedule, ScheduleEntry, thinned
from topologies.schema import check_options

SCHEDULES: dict[str, ScheduleEntry] = {
    "static": ScheduleEntry(from_matrices.restore_static, from_matrices.prepare_static),
    "periodic": ScheduleEntry(from_matrices.restore_periodic, from_matrices.prepare_periodic),
    "one_peer_exponential": ScheduleEntry(circulants.one_peer_exponential),
    "static_exponential": ScheduleEntry(circulants.static_exponential),
    "base_k": ScheduleEntry(circulants.base_k),
    "simple_base_k": ScheduleEntry(circulants.simple_base_k),
    "hyper_hypercube": ScheduleEntry(circulants.hyper_hypercube),
    "k_peer_exponential": ScheduleEntry(circulants.k_peer_exponential),
    "null_cascade": ScheduleEntry(circulants.null_cascade),
    "equitopo": ScheduleEntry(circulants.equitopo),
    "d_equistatic": ScheduleEntry(circulants.d_equistatic),
    "u_equistatic": ScheduleEntry(circulants.u_equistatic),
    "od_equidyn": ScheduleEntry(circulants.od_equidyn),
    "ou_equidyn": ScheduleEntry(circulants.ou_equidyn),
    "epidemic": ScheduleEntry(epidemic.epidemic),
    "teleport": ScheduleEntry(moving_models.teleport, has_few=True),
    "random_walk": ScheduleEntry(
        moving_models.restore_random_walk, from_matrices.prepare_static, has_few=True
    ),
    "tour": ScheduleEntry(overlays.restore_tour, overlays.prepare_tour),
    "matrices": ScheduleEntry(from_matrices.restore_matrices, from_matrices.prepare_matrices),
    "stl_fw": ScheduleEntry(cliques.restore_stl_fw, cliques.prepare_stl_fw),
    "d_cliques": ScheduleEntry(cliques.restore_d_cliques, cliques.prepare_d_cliques),
    "matchings": ScheduleEntry(matchings.restore_matchings, matchings.prepare_matchings),
    "random_matching": ScheduleEntry(
        matchings.restore_random_matching, matchings.prepare_random_matching
    ),
    "matcha": ScheduleEntry(matchings.restore_matcha, matchings.prepare_matcha),
    "resampled": ScheduleEntry(
        from_matrices.restore_resampled, from_matrices.prepare_resampled, in_rounds=True
    ),
}


def _called(function: Callable[..., Any], **available: Any) -> Any:
    """Call a function with what it takes of all that there is."""
    taken = inspect.signature(function).parameters
    return function(**{name: value for name, value in available.items() if name in taken})


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
    options, _ = _split(name, entry, params)
    if entry.prepare is None:
        return {}
    if entry.uses != "nodes" and graph is None:
        raise TopologyError(f"the schedule {name} needs a graph")
    arrays: Arrays = _called(
        entry.prepare, graph=graph, rule=(weights, weight_options or {}), **options
    )
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
    options, losses = _split(name, entry, params)
    n = node_count(name, n)
    if entry.custom:
        schedule: Schedule = from_matrices.schedule_of_function(name, entry.build, n, options)
    else:
        schedule = _called(entry.build, n=n, seed=seed, arrays=arrays, **options)
    return thinned(schedule, seed, **losses)


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
    options, losses = _split(name, entry, params)
    if not losses["edge_failure"]:
        del losses["edge_failure"], losses["edge_recovery"]
    return {**options, **losses}


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
    name, words = parse_spec(text)
    return name, read_schedule(name, words)


def read_schedule(name: str, words: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a schedule from words; see ``check_schedule``."""
    parameters = {**find(SCHEDULES, "schedule", name).parameters, **options_of(thinned)}
    return check_schedule(name, values_of(parameters, words))


def _split(
    name: str, entry: ScheduleEntry, params: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schedule's own options and those that any schedule has, all checked."""
    around = options_of(thinned)
    options = {key: value for key, value in params.items() if key not in around}
    losses = {key: value for key, value in params.items() if key in around}
    return entry.checked_options(name, options), check_options(thinned, losses, name)
