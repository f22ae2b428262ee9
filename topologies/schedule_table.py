"""The table of schedules: how each is prepared and restored, and its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topologies.catalogue import Entry
from topologies.cliques import prepare_d_cliques, restore_d_cliques
from topologies.epidemic import epidemic
from topologies.finite_time import base_k, equitopo, one_peer_exponential, static_exponential
from topologies.label_counts import prepare_stl_fw, restore_stl_fw
from topologies.matcha import prepare_matcha, restore_matcha
from topologies.matchings import (
    prepare_matchings,
    prepare_random_matching,
    restore_matchings,
    restore_random_matching,
)
from topologies.parameters import Parameter
from topologies.sequences import Arrays, Schedule
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


def _of_nodes(make: Callable[..., Schedule]) -> Callable[..., Schedule]:
    """Return the build function of a schedule that is determined by n and its parameters."""
    return lambda n, seed, arrays, **params: make(n, **params)


def _epidemic(n: int, seed: int, arrays: Arrays, sends: int, regular: bool) -> Schedule:
    return epidemic(n, seed, sends, regular)


def _equitopo(n: int, seed: int, arrays: Arrays, step: float) -> Schedule:
    return equitopo(n, seed, step)


LABELS = Parameter(
    str, "CSV file of label counts, a row for each node and a column for each label", required=True
)

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
    "epidemic": ScheduleEntry(
        _epidemic,
        "every node sends to a few random others; directed (Epidemic Learning)",
        {
            "sends": Parameter(int, "receivers of a node in a round", 1, low=1),
            "regular": Parameter(
                bool, "whether each also receives so many, so that rounds keep the mean", False
            ),
        },
        uses="nodes",
        random=True,
    ),
    "stl_fw": ScheduleEntry(
        restore_stl_fw,
        "few neighbours whose labels together are like those of all; directed (STL-FW)",
        {
            "labels": LABELS,
            "neighbours": Parameter(int, "most neighbours of a node", 5, low=1),
            "balance": Parameter(
                float, "weight of mixing as such against that of labels", 0.1, low=0
            ),
        },
        uses="nodes",
        prepare=prepare_stl_fw,
    ),
    "d_cliques": ScheduleEntry(
        restore_d_cliques,
        "cliques that together have the labels of all, and few edges between (D-Cliques)",
        {
            "labels": LABELS,
            "size": Parameter(int, "most members of a clique", 10, low=2),
            "between": Parameter(
                str, "edges between cliques", "complete", choices=("ring", "complete")
            ),
            "swaps": Parameter(int, "pairs of cliques in which a swap is sought", 1000, low=0),
            "draw": Parameter(int, "seed of the search", 0, low=0),
        },
        uses="nodes",
        prepare=prepare_d_cliques,
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
    "edge_failure": Parameter(
        float,
        "probability that a working edge fails before a round, and stays so until it recovers",
        0.0,
        low=0,
        high=0.999,
    ),
    "edge_recovery": Parameter(
        float, "probability that an edge that has failed works again", 0.5, low=0.001, high=1
    ),
}

BURSTS = ("edge_failure", "edge_recovery")
"""Parameters that a checked schedule mentions only where edges fail in bursts."""
