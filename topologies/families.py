"""The table of graph families, with their parameters and sizes.

generators.py and grids.py have the functions that make the graphs; :func:`topologies.build_graph`
adds the seed, the redraws and the metadata.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from topologies.communities import (
    SOCIAL_NODES,
    cliques,
    davis,
    florentine,
    geometric,
    karate,
    tree,
)
from topologies.designed import PARAMETERS, delta_mbst, mst
from topologies.family import Family
from topologies.files import edge_list, graphml, matrix
from topologies.generators import (
    barbell,
    complete,
    erdos_renyi,
    exponential,
    path,
    random_regular,
    ring,
    small_world,
    star,
)
from topologies.grids import hypercube, hypercube_dimension, torus, torus_shape
from topologies.inline import edges_graph
from topologies.inputs import check_regular
from topologies.parameters import Parameter, TopologyError


def _count_torus(n: int | None, params: Mapping[str, Any]) -> int:
    return math.prod(torus_shape(n, params["rows"], params["cols"]))


def _count_hypercube(n: int | None, params: Mapping[str, Any]) -> int:
    return 1 << hypercube_dimension(n, params["dimension"])


def _count_random_regular(n: int, params: Mapping[str, Any]) -> int:
    degree = params["degree"]
    if degree >= n or degree * n % 2:
        raise TopologyError(
            f"random_regular: degree is {degree} and n is {n}, but the degree must be below n "
            "and their product even"
        )
    return n


def _count_small_world(n: int, params: Mapping[str, Any]) -> int:
    neighbours = params["neighbours"]
    if neighbours >= n or neighbours % 2:
        raise TopologyError(
            f"small_world: neighbours is {neighbours} and n is {n}, but it must be even and below n"
        )
    return n


def _count_barbell(n: int, params: Mapping[str, Any]) -> int:
    bridge = n % 2 if params["bridge"] is None else params["bridge"]
    if n - bridge < 4 or (n - bridge) % 2:
        raise TopologyError(
            f"barbell: n is {n} and bridge is {bridge}, but n - bridge must be an even number "
            "of at least 4"
        )
    return n


def _count_social(name: str) -> Callable[[int | None, Mapping[str, Any]], int]:
    def count(n: int | None, params: Mapping[str, Any]) -> int:
        if n not in (None, SOCIAL_NODES[name]):
            raise TopologyError(f"{name}: n is {n}, but the graph has {SOCIAL_NODES[name]} nodes")
        return SOCIAL_NODES[name]

    return count


def _count_edges(n: int | None, params: Mapping[str, Any]) -> int:
    if n not in (None, params["nodes"]):
        raise TopologyError(f"edges: n is {n}, but the edges are of {params['nodes']} nodes")
    return int(params["nodes"])


def _count_file(n: int | None, params: Mapping[str, Any]) -> int | None:
    try:
        check_regular(params["path"])
    except OSError as error:
        raise TopologyError(
            f"cannot read the graph file {params['path']!r}: {error.strerror}"
        ) from None
    return n


_PROBABILITY = Parameter(float, "probability of each edge", default=0.5, low=0, high=1)
_FILE = Parameter(str, "the file to read", required=True)
_SIZE = Parameter(int, "nodes of a clique, at most", default=10, low=1)
_BETWEEN = Parameter(str, "how cliques are joined", "ring", choices=("ring", "complete"))


def _edges_of_cliques(n: int, params: Mapping[str, Any]) -> float:
    return float(n * params["size"] / 2 + (n / params["size"]) ** 2)


_SOCIAL: dict[str, Family] = {
    name: Family(build, summary, needs_n=False, count=_count_social(name))
    for name, build, summary in (
        ("karate", karate, "Zachary's karate club, 34 members"),
        ("davis", davis, "18 Southern women and 14 events (Davis et al.)"),
        ("florentine", florentine, "15 families of Florence, joined by marriages"),
    )
}

FAMILIES: dict[str, Family] = {
    "erdos_renyi": Family(
        erdos_renyi,
        "each edge independently with probability p",
        {"p": _PROBABILITY},
        random=True,
        edges=lambda n, params: params["p"] * n * (n - 1) / 2,
    ),
    "ring": Family(ring, "a cycle"),
    "path": Family(path, "a line"),
    "complete": Family(complete, "every pair joined", edges=lambda n, params: n * (n - 1) / 2),
    "star": Family(star, "node 0 joined to all others"),
    "torus": Family(
        torus,
        "a periodic grid; the squarest one where only n is given",
        {
            "rows": Parameter(int, "rows of the grid", low=1),
            "cols": Parameter(int, "columns of the grid", low=1),
        },
        needs_n=False,
        count=_count_torus,
    ),
    "hypercube": Family(
        hypercube,
        "2^dimension nodes, joined where one bit differs",
        {"dimension": Parameter(int, "log2 of the number of nodes", low=0, high=24)},
        needs_n=False,
        count=_count_hypercube,
        edges=lambda n, params: n * n.bit_length() / 2,
    ),
    "random_regular": Family(
        random_regular,
        "a random graph of constant degree",
        {"degree": Parameter(int, "neighbours of each node", default=4, low=0)},
        random=True,
        count=_count_random_regular,
        edges=lambda n, params: n * params["degree"] / 2,
    ),
    "small_world": Family(
        small_world,
        "a ring lattice with rewired edges (Watts-Strogatz)",
        {
            "neighbours": Parameter(int, "degree of the lattice, even", default=4, low=2),
            "p": Parameter(
                float, "probability that an edge is rewired", default=0.2, low=0, high=1
            ),
        },
        random=True,
        count=_count_small_world,
        edges=lambda n, params: n * params["neighbours"] / 2,
    ),
    "barbell": Family(
        barbell,
        "two complete graphs joined by a path",
        {"bridge": Parameter(int, "nodes on the path (default n mod 2)", low=0)},
        count=_count_barbell,
        edges=lambda n, params: (n - (params["bridge"] or 0)) ** 2 / 4 + n,
    ),
    "exponential": Family(
        exponential,
        "node i joined to i ± 2^k mod n",
        edges=lambda n, params: n * n.bit_length(),
    ),
    "tree": Family(
        tree,
        "a balanced tree",
        {"branching": Parameter(int, "children of an inner node", default=2, low=1)},
    ),
    "geometric": Family(
        geometric,
        "random points in a square, joined where they are near; edges have a distance",
        {
            "radius": Parameter(
                float,
                "largest distance of neighbours (default sqrt(2 ln n / (pi n)))",
                low=0,
                open_ends=("low",),
            )
        },
        random=True,
        edges=lambda n, params: n * n / 2 * min(1.0, 3.2 * (params["radius"] or 0.1) ** 2),
    ),
    "cliques": Family(
        cliques,
        "cliques of consecutive nodes, joined by single edges",
        {"size": _SIZE, "between": _BETWEEN},
        edges=_edges_of_cliques,
    ),
    **_SOCIAL,
    "mst": Family(
        mst,
        "the minimum spanning tree of the delays of a network",
        PARAMETERS,
        needs_n=False,
        count=_count_file,
    ),
    "delta_mbst": Family(
        delta_mbst,
        "a spanning tree of a network with small degrees and delays",
        PARAMETERS,
        needs_n=False,
        count=_count_file,
    ),
    "edges": Family(
        edges_graph,
        "edges written out: 0-1 1-2:0.25, with a weight behind a colon",
        {
            "nodes": Parameter(int, "number of nodes", required=True, low=1),
            "edges": Parameter(str, "the edges, with spaces between", default=""),
        },
        needs_n=False,
        count=_count_edges,
    ),
    "edge_list": Family(
        edge_list,
        "a text file with one edge a line",
        {"path": _FILE},
        needs_n=False,
        count=_count_file,
    ),
    "graphml": Family(graphml, "a GraphML file", {"path": _FILE}, needs_n=False, count=_count_file),
    "matrix": Family(
        matrix,
        "the graph of a stored mixing matrix (.npz or .csv)",
        {"path": _FILE},
        needs_n=False,
        count=_count_file,
    ),
}
