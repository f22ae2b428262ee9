"""The commands' graph, weights and schedule: parsed and checked as a plan, then built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

from topologies.catalogue import node_count, parse_spec
from topologies.clock import cpu_seconds
from topologies.graphs import NODES, build_graph, parse_graph
from topologies.measures import describe
from topologies.parameters import TopologyError
from topologies.schedule_table import SCHEDULES
from topologies.schedules import build_schedule, parse_schedule
from topologies.sequences import Schedule
from topologies.weights import check_weights


@dataclass(frozen=True)
class Plan:
    """One graph with weights and schedule, checked but not built.

    Attributes
    ----------
    label : str
        The words of the user, for tables and legends.
    family : str | None
        The graph family; None for a schedule that needs no graph.
    arguments : Mapping[str, Any]
        The arguments of ``build_graph``, or ``n``.
    rule : str
        The name of the weight rule.
    rule_options : Mapping[str, Any]
        Its options.
    schedule : str
        The name of the schedule.
    schedule_options : Mapping[str, Any]
        Its options.
    """

    label: str
    family: str | None
    arguments: Mapping[str, Any]
    rule: str
    rule_options: Mapping[str, Any]
    schedule: str
    schedule_options: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """The graph and the schedule that were built from a plan.

    Attributes
    ----------
    plan : Plan
        The plan.
    graph : networkx.Graph | None
        The graph; None for a schedule that needs none.
    schedule : Schedule
        The schedule.
    seconds : float
        CPU seconds for the weights and the schedule.
    """

    plan: Plan
    graph: nx.Graph | None
    schedule: Schedule
    seconds: float

    def record(self, *, accuracy: float, message_bytes: float) -> dict[str, Any]:
        """Return the description of the case, as ``describe`` makes it.

        Parameters
        ----------
        accuracy : float
            Of ``mixing_time`` and ``bytes_to_accuracy``, in (0, 1).
        message_bytes : float
            The size of a message in bytes.

        Returns
        -------
        dict of str to Any
            Plain values by name.
        """
        record = describe(
            self.graph,
            self.schedule,
            schedule=self.plan.schedule,
            accuracy=accuracy,
            message_bytes=message_bytes,
            seconds=self.seconds,
        )
        return record if self.graph is not None else {**record, "family": self.plan.schedule}


def plan(text: str, weights: str, schedule: str, n: int | None) -> Plan:
    """Parse a graph, or a schedule that needs none, with its weights and schedule.

    Parameters
    ----------
    text : str
        ``family:key=value,...``, or a schedule that needs no graph.
    weights : str
        ``rule:key=value,...``.
    schedule : str
        ``schedule:key=value,...``.
    n : int | None
        The number of nodes where the graph does not say it.

    Returns
    -------
    Plan
        The checked plan.

    Raises
    ------
    TopologyError
        If any of them does not exist or has a bad option.
    """
    name, given = parse_spec(text)
    rule, rule_options = parse_spec(weights)
    rule_options = check_weights(rule, rule_options)
    if name in SCHEDULES and SCHEDULES[name].uses == "nodes":
        nodes = NODES.read(name, "n", given.pop("n", n))
        options = parse_schedule(name + ":" + ",".join(f"{k}={v}" for k, v in given.items()))[1]
        arguments = {"n": node_count(name, nodes)}
        return Plan(text, None, arguments, rule, rule_options, name, options)
    if name in SCHEDULES:
        raise TopologyError(
            f"{name} is a schedule on a graph: give the graph, and {name} as its schedule"
        )
    family, arguments = parse_graph(text, n)
    kind, options = parse_schedule(schedule)
    uses = SCHEDULES[kind].uses if kind in SCHEDULES else "nodes"
    if kind in SCHEDULES and uses == "nodes":
        raise TopologyError(f"the schedule {kind} uses no graph: write {kind}:n=... in its place")
    uses_weights = uses == "weights"
    around = [schedule] if schedule != "static" else []
    words = [text, *([weights] if uses_weights else []), *around]
    return Plan(" · ".join(words), family, arguments, rule, rule_options, kind, options)


def carry_out(plan: Plan, seed: int) -> Case:
    """Build the graph, the weights and the schedule of a plan.

    Parameters
    ----------
    plan : Plan
        The plan.
    seed : int
        The seed of all draws, unless the graph has its own.

    Returns
    -------
    Case
        What was built.

    Raises
    ------
    TopologyError
        If the graph, the weights or the schedule cannot be built.
    """
    graph = None
    if plan.family is not None:
        graph = build_graph(plan.family, **{"seed": seed, **plan.arguments})
    start = cpu_seconds()
    schedule = build_schedule(
        plan.schedule,
        plan.arguments.get("n") if graph is None else len(graph),
        graph=graph,
        weights=plan.rule,
        weight_options=plan.rule_options,
        seed=seed,
        **plan.schedule_options,
    )
    return Case(plan, graph, schedule, cpu_seconds() - start)
