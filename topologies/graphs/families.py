"""The table of graph families, with their parameters and sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from topologies.graphs.files import edge_list, edges_graph, graphml, matrix, plain
from topologies.inputs import TopologyError, check_memory, check_regular
from topologies.links.overlays import PARAMETERS
from topologies.links.overlays import delta_mbst_graph as delta_mbst
from topologies.links.overlays import mst_graph as mst
from topologies.parameters import Entry, Parameter, node_count

# Bytes that networkx and the lists made of it take for a node and for an edge, about.
NODE_BYTES, EDGE_BYTES = 400, 300


@dataclass(frozen=True)
class Family(Entry):
    """A graph family."""

    random: bool = False
    needs_n: bool = True
    edges: Callable[[int, Mapping[str, Any]], float] = lambda n, params: n
    count: Callable[[Any, Mapping[str, Any]], int | None] | None = None

    def determined_by(self, given: Mapping[str, Any]) -> bool:
        """Return whether the given parameters alone determine the number of nodes."""
        return not self.needs_n and bool(given)


def count_nodes(name: str, family: Family, n: int | None, params: Mapping[str, Any]) -> int | None:
    """Return the number of nodes that a graph of the family has, without building it."""
    if n is None and family.needs_n and family.parameters is not None:
        raise TopologyError(f"{name} needs n, the number of nodes, an integer of at least 1")
    n = None if n is None else node_count(name, n)
    found = n if family.count is None else family.count(n, params)
    if found is not None and family.parameters is not None:
        needed = NODE_BYTES * found + EDGE_BYTES * family.edges(found, params)
        check_memory(needed, f"{name} with {found} nodes")
    return found


Seed = int | random.Random | None


def erdos_renyi(n: int, p: float = 0.5, seed: Seed = None) -> nx.Graph:
    """Return a graph with each edge present independently with probability p."""
    return nx.binomial_graph(n, p, seed=seed)


def ring(n: int) -> nx.Graph:
    """Return the cycle 0-1-...-(n-1)-0; one edge for n = 2, none for n = 1."""
    return plain(nx.cycle_graph(n))


def path(n: int) -> nx.Graph:
    """Return the path 0-1-...-(n-1)."""
    return nx.path_graph(n)


def complete(n: int) -> nx.Graph:
    """Return the complete graph, with all n(n-1)/2 edges."""
    return nx.complete_graph(n)


def star(n: int) -> nx.Graph:
    """Return the star: node 0 joined to all n-1 other nodes."""
    return nx.star_graph(n - 1)


def random_regular(n: int, degree: int = 4, seed: Seed = None) -> nx.Graph:
    """Return a random graph in which every node has the given degree (Steger and Wormald 1999)."""
    return plain(nx.random_regular_graph(degree, n, seed=seed))


def small_world(n: int, neighbours: int = 4, p: float = 0.2, seed: Seed = None) -> nx.Graph:
    """Return a ring lattice with edges rewired with probability p (Watts and Strogatz 1998)."""
    return plain(nx.watts_strogatz_graph(n, neighbours, p, seed=seed))


def barbell(n: int, bridge: int | None = None) -> nx.Graph:
    """Return two complete graphs joined by a path."""
    bridge = n % 2 if bridge is None else bridge
    return plain(nx.barbell_graph((n - bridge) // 2, bridge))


def exponential(n: int) -> nx.Graph:
    """Return the undirected exponential graph: node i joined to i ± 2^k mod n for all 2^k < n.
    Ying et al. 2021 (Exponential graph is provably efficient for decentralized deep training) use
    the directed one.
    """
    return plain(nx.circulant_graph(n, [1 << k for k in range((n - 1).bit_length())]))


def torus(n: int | None = None, rows: int | None = None, cols: int | None = None) -> nx.Graph:
    """Return the periodic grid of rows x cols nodes, with node r * cols + c at (r, c)."""
    shape = torus_shape(n, rows, cols)
    return plain(nx.grid_2d_graph(*shape, periodic=True))


def torus_shape(n: int | None, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Return (rows, cols), completed from whichever of the three are given."""
    known = rows or cols
    if rows and cols:
        if n not in (None, rows * cols):
            raise TopologyError(
                f"torus: rows = {rows} times cols = {cols} is {rows * cols}, but n is {n}"
            )
        return rows, cols
    if n is None:
        raise TopologyError("torus needs n, or rows and cols")
    if known:
        if n % known:
            raise TopologyError(
                f"torus: n is {n}, but must be a multiple of {'rows' if rows else 'cols'} = {known}"
            )
        return (rows, n // rows) if rows else (n // known, known)
    side = next(k for k in range(math.isqrt(n), 0, -1) if n % k == 0)
    if side == 1 and n > 3:
        raise TopologyError(
            f"torus: n is {n}, a prime, but must be rows x cols, such as {n - 1} or {n + 1}"
        )
    return side, n // side


def hypercube(n: int | None = None, dimension: int | None = None) -> nx.Graph:
    """Return the hypercube: nodes are joined where their numbers differ in one binary digit."""
    dimension = hypercube_dimension(n, dimension)
    # networkx has no node at all in dimension 0, where the cube is a point.
    return plain(nx.hypercube_graph(dimension)) if dimension else nx.empty_graph(1)


def hypercube_dimension(n: int | None, dimension: int | None) -> int:
    """Return log2(n)."""
    if n is None:
        if dimension is None:
            raise TopologyError("hypercube needs n or dimension")
        return dimension
    below = n.bit_length() - 1
    if n != 1 << below:
        raise TopologyError(
            f"hypercube: n is {n}, but must be a power of two; "
            f"the nearest are {1 << below} and {2 << below}"
        )
    if dimension not in (None, below):
        raise TopologyError(
            f"hypercube: dimension = {dimension} makes {1 << dimension} nodes, but n is {n}"
        )
    return below


def tree(n: int, branching: int = 2) -> nx.Graph:
    """Return the balanced tree in which every inner node has ``branching`` children."""
    return nx.full_rary_tree(branching, n)


def karate(n: int | None = None) -> nx.Graph:
    """Return Zachary's karate club: 34 members, joined where they met outside (Zachary 1977)."""
    return _unweighted(nx.karate_club_graph())


def davis(n: int | None = None) -> nx.Graph:
    """Return the 18 Southern women and the 14 events that they attended (Davis et al. 1941)."""
    return _unweighted(nx.davis_southern_women_graph())


def florentine(n: int | None = None) -> nx.Graph:
    """Return 15 families of Renaissance Florence, joined by marriages (Breiger and
    Pattison 1986).
    """
    return _unweighted(nx.florentine_families_graph())


# The number of nodes of each social graph.
SOCIAL_NODES = {"karate": 34, "davis": 32, "florentine": 15}


def _unweighted(graph: nx.Graph) -> nx.Graph:
    bare = nx.Graph(graph.edges)
    bare.add_nodes_from(graph)
    return plain(bare)


def geometric(n: int, radius: float | None = None, seed: Seed = None) -> nx.Graph:
    """Return random points in the unit square, joined where they are at most ``radius`` apart."""
    drawn = random.Random(seed) if not isinstance(seed, random.Random) else seed
    points = np.array([[drawn.random(), drawn.random()] for _ in range(n)])
    if radius is None:
        radius = math.sqrt(2 * math.log(n) / (math.pi * n)) if n > 1 else 0.0
    graph = nx.empty_graph(n)
    for i, (x, y) in enumerate(points.tolist()):
        graph.nodes[i].update(x=x, y=y)
        distances = np.hypot(*(points[i + 1 :] - points[i]).T)
        for step in np.flatnonzero(distances <= radius).tolist():
            graph.add_edge(i, i + 1 + step, distance=float(distances[step]))
    return graph


def cliques(n: int, size: int = 10, between: str = "ring") -> nx.Graph:
    """Return cliques of consecutive nodes, with one edge between neighbouring cliques."""
    groups = np.array_split(np.arange(n), -(-n // size))
    return _joined([group.tolist() for group in groups], n, between)


def _joined(groups: list[list[int]], n: int, between: str) -> nx.Graph:
    graph = nx.empty_graph(n)
    for group in groups:
        graph.add_edges_from((i, j) for i in group for j in group if i < j)
    links = nx.cycle_graph(len(groups)) if between == "ring" else nx.complete_graph(len(groups))
    outside = np.zeros(n, dtype=int)
    for a, b in sorted((min(link), max(link)) for link in links.edges if link[0] != link[1]):
        i, j = (min(groups[k], key=lambda node: (outside[node], node)) for k in (a, b))
        outside[[i, j]] += 1
        graph.add_edge(i, j)
    return graph


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
