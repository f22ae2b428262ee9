"""What a user's words mean: a graph with weights and a schedule, first checked, then built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import process_time
from typing import Any

import networkx as nx

from topologies.catalogue import TopologyError, node_count, parse_spec
from topologies.describe import describe
from topologies.graphs import NODES, build_graph, parse_graph
from topologies.schedules import SCHEDULES, build_schedule, parse_schedule
from topologies.sequences import Schedule
from topologies.weights import check_weights


@dataclass(frozen=True)
class Plan:
    """One graph with weights and schedule, checked but not built: what the words of a user mean."""

    label: str
    family: str | None
    arguments: Mapping[str, Any]
    rule: str
    rule_options: Mapping[str, Any]
    schedule: str
    schedule_options: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A plan carried out."""

    plan: Plan
    graph: nx.Graph | None
    schedule: Schedule
    seconds: float

    def record(self, *, accuracy: float, message_bytes: float) -> dict[str, Any]:
        """Return its description."""
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
    """Read a graph, or a schedule that needs none, with its weights and schedule.

    Raises:
        TopologyError: if any of them does not exist.
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
    """Build the graph, the weights and the schedule of a plan."""
    graph = None
    if plan.family is not None:
        graph = build_graph(plan.family, **{"seed": seed, **plan.arguments})
    start = process_time()
    schedule = build_schedule(
        plan.schedule,
        plan.arguments.get("n") if graph is None else len(graph),
        graph=graph,
        weights=plan.rule,
        weight_options=plan.rule_options,
        seed=seed,
        **plan.schedule_options,
    )
    return Case(plan, graph, schedule, process_time() - start)
