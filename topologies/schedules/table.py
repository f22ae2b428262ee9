"""Schedules by name: prepared once, then restored from arrays with the same result everywhere.

A schedule is made in two steps. ``prepare_schedule`` does what is expensive or depends on the last
digit of an eigensolver, and returns plain arrays, to be computed by one process, sent to the others
and stored. ``restore_schedule`` makes the schedule from them: cheap, and the same for equal arrays.

The table of schedules: how each is prepared and restored, and its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import networkx as nx

from topologies.inputs import TopologyError, within
from topologies.links.overlays import PARAMETERS, prepare_tour, restore_tour
from topologies.parameters import (
    Entry,
    Parameter,
    call_own,
    find,
    node_count,
    parse_spec,
    read_parameters,
)
from topologies.schedules.circulants import (
    base_k,
    equistatic,
    equitopo,
    hyper_hypercube,
    k_peer_exponential,
    null_cascade,
    od_equidyn,
    one_peer_exponential,
    ou_equidyn,
    simple_base_k,
    static_exponential,
)
from topologies.schedules.cliques import (
    prepare_d_cliques,
    prepare_stl_fw,
    restore_d_cliques,
    restore_stl_fw,
)
from topologies.schedules.given import (
    OfRounds,
    own_schedule,
    prepare_matrices,
    prepare_periodic,
    prepare_resampled,
    prepare_static,
    restore_matrices,
    restore_periodic,
    restore_resampled,
    restore_static,
    takes_round,
)
from topologies.schedules.matchings import (
    prepare_matcha,
    prepare_matchings,
    prepare_random_matching,
    restore_matcha,
    restore_matchings,
    restore_random_matching,
)
from topologies.schedules.moving import OVER, epidemic, restore_random_walk, teleport
from topologies.schedules.sequences import (
    Arrays,
    BurstyEdges,
    DropEdges,
    DropNodes,
    LocalRounds,
    Schedule,
    Static,
)


@dataclass(frozen=True)
class ScheduleEntry(Entry):
    """A named schedule: ``prepare(graph, rule, **params)``, ``build(n, seed, arrays,
    **params)``.
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

# Parameters that a checked schedule mentions only where edges fail in bursts.
BURSTS = ("edge_failure", "edge_recovery")


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
