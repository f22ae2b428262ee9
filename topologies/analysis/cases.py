"""Cases of a study: a graph with its weights and schedule, from the words of a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

from topologies.analysis.description import describe
from topologies.cpu_time import cpu_seconds
from topologies.errors import TopologyError
from topologies.graphs.build import build_graph, parse_graph, words_of_graph
from topologies.names import find, from_text, parse_spec, values_of
from topologies.node_counts import node_count
from topologies.schedules.sequences import Schedule
from topologies.schedules.table import SCHEDULES, build_schedule, parse_schedule, read_schedule
from topologies.weights.table import WEIGHTS, check_weights


@dataclass(frozen=True)
class CaseSpec:
    """One graph with weights and schedule, checked but not built."""

    label: str
    family: str | None
    arguments: Mapping[str, Any]
    rule: str
    rule_options: Mapping[str, Any]
    schedule: str
    schedule_options: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """The graph and the schedule that were built from a spec."""

    spec: CaseSpec
    graph: nx.Graph | None
    schedule: Schedule
    seconds: float

    def record(self, *, accuracy: float, message_bytes: float) -> dict[str, Any]:
        """Return the description of the case, as ``describe`` makes it."""
        record = describe(
            self.graph,
            self.schedule,
            schedule=self.spec.schedule,
            accuracy=accuracy,
            message_bytes=message_bytes,
            seconds=self.seconds,
        )
        return record if self.graph is not None else {**record, "family": self.spec.schedule}


def parse_case(text: str, weights: str, schedule: str, n: int | None) -> CaseSpec:
    """Parse a graph, or a schedule that needs none, with its weights and schedule."""
    name, words = words_of_graph(text)
    rule, rule_words = parse_spec(weights)
    parameters = find(WEIGHTS, "weight rule", rule).parameters
    rule_options = check_weights(rule, values_of(parameters, rule_words))
    if name in SCHEDULES and SCHEDULES[name].uses == "nodes":
        stated = words.pop("n", None)
        arguments = {"n": node_count(name, n if stated is None else from_text(stated, int))}
        options = read_schedule(name, words)
        return CaseSpec(text, None, arguments, rule, rule_options, name, options)
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
    parts = [text, *([weights] if uses_weights else []), *around]
    return CaseSpec(" · ".join(parts), family, arguments, rule, rule_options, kind, options)


def build_case(spec: CaseSpec, seed: int) -> Case:
    """Build the graph, the weights and the schedule of a spec."""
    graph = None
    if spec.family is not None:
        graph = build_graph(spec.family, **{"seed": seed, **spec.arguments})
    start = cpu_seconds()
    schedule = build_schedule(
        spec.schedule,
        spec.arguments.get("n") if graph is None else len(graph),
        graph=graph,
        weights=spec.rule,
        weight_options=spec.rule_options,
        seed=seed,
        **spec.schedule_options,
    )
    return Case(spec, graph, schedule, cpu_seconds() - start)
