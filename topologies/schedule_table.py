"""The table of schedules: how each is prepared and restored, and its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from topologies.catalogue import Entry
from topologies.circulants import (
    k_peer_exponential,
    null_cascade,
    one_peer_exponential,
    static_exponential,
)
from topologies.cliques import prepare_d_cliques, restore_d_cliques
from topologies.designed import PARAMETERS, prepare_tour, restore_tour
from topologies.epidemic import epidemic
from topologies.equitopo import equistatic, equitopo, od_equidyn, ou_equidyn
from topologies.finite_time import base_k, hyper_hypercube, simple_base_k
from topologies.label_counts import prepare_stl_fw, restore_stl_fw
from topologies.matcha import prepare_matcha, restore_matcha
from topologies.matchings import (
    prepare_matchings,
    prepare_random_matching,
    restore_matchings,
    restore_random_matching,
)
from topologies.moving import OVER, restore_random_walk, teleport
from topologies.own_rounds import prepare_matrices, restore_matrices
from topologies.parameters import Parameter
from topologies.sequences import Schedule
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


def _seeded(make: Callable[..., Schedule]) -> Callable[..., Schedule]:
    """Return the build function of a schedule that is determined by n, a seed and parameters."""
    return lambda n, seed, arrays, **params: make(n, seed, **params)


_PEERS = Parameter(int, "most neighbours of a node in a round", default=1, low=1)
_STEP = Parameter(float, "weight of the exchange", 0.5, low=0, high=1, open_ends=("low",))
_SHIFTS = Parameter(int, "shifts that are drawn (default ceil(log2 n))", low=1)

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
        {"peers": _PEERS},
        uses="nodes",
    ),
    "simple_base_k": ScheduleEntry(
        _of_nodes(simple_base_k),
        "as base_k, without factors of n (Simple Base-(k+1) graph)",
        {"peers": _PEERS},
        uses="nodes",
    ),
    "hyper_hypercube": ScheduleEntry(
        _of_nodes(hyper_hypercube),
        "a round for each factor of n, the exact mean after a period (k-peer hyper-hypercube)",
        {
            "peers": Parameter(
                int, "most neighbours of a node in a round (default: the fewest n allows)", low=1
            )
        },
        uses="nodes",
    ),
    "k_peer_exponential": ScheduleEntry(
        _of_nodes(k_peer_exponential),
        "averages with nodes j (peers + 1)^t before, j = 1 .. peers; directed",
        {"peers": _PEERS},
        uses="nodes",
    ),
    "null_cascade": ScheduleEntry(
        _of_nodes(null_cascade),
        "commuting rounds of two peers, the exact mean after a period (after the null-cascade)",
        uses="nodes",
    ),
    "equitopo": ScheduleEntry(
        _seeded(equitopo),
        "averages with the node a random number before; directed (OD-EquiDyn of all shifts)",
        {"step": _STEP},
        uses="nodes",
        random=True,
    ),
    "d_equistatic": ScheduleEntry(
        _seeded(equistatic),
        "the mean of random shifts in every round; directed (EquiTopo)",
        {"shifts": _SHIFTS},
        uses="nodes",
    ),
    "u_equistatic": ScheduleEntry(
        _seeded(partial(equistatic, directed=False)),
        "the mean of random shifts and their opposites in every round (EquiTopo)",
        {"shifts": _SHIFTS},
        uses="nodes",
    ),
    "od_equidyn": ScheduleEntry(
        _seeded(od_equidyn),
        "one of the shifts of a d_equistatic in each round; directed (EquiTopo)",
        {"step": _STEP, "shifts": _SHIFTS},
        uses="nodes",
        random=True,
    ),
    "ou_equidyn": ScheduleEntry(
        _seeded(ou_equidyn),
        "pairs of nodes a random number apart; symmetric (EquiTopo)",
        {
            "step": _STEP,
            "shifts": Parameter(int, "shifts that are drawn from (default: all)", low=1),
        },
        uses="nodes",
        random=True,
    ),
    "epidemic": ScheduleEntry(
        _seeded(epidemic),
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
    "teleport": ScheduleEntry(
        _seeded(teleport),
        "few models, at nodes that are drawn anew in each round; directed (Teleportation)",
        {
            "active": Parameter(int, "number of models", 2, low=1),
            "over": Parameter(str, "how they mix", "base_k", choices=tuple(OVER)),
        },
        uses="nodes",
        random=True,
    ),
    "random_walk": ScheduleEntry(
        restore_random_walk,
        "one model that walks along the edges, by the weights; directed (Markov chain SGD)",
        random=True,
        prepare=prepare_static,
    ),
    "tour": ScheduleEntry(
        restore_tour,
        "averages with the node before on a short tour of a network; directed",
        PARAMETERS,
        uses="nodes",
        prepare=prepare_tour,
    ),
    "matrices": ScheduleEntry(
        restore_matrices,
        "matrices written out in turn: 0-1:0.5 2>3:0.5; 0-2:0.5",
        {
            "nodes": Parameter(int, "number of nodes", required=True, low=1),
            "rounds": Parameter(str, "edges i-j:w and arcs i>j:w of each round", required=True),
        },
        uses="nodes",
        prepare=prepare_matrices,
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
