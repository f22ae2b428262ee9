"""Graph families: functions of n, keyword-only options and, where they draw, a seed."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import networkx as nx
import numpy as np
from annotated_types import Ge, Gt, Le

from topologies.errors import TopologyError
from topologies.graphs.files import plain
from topologies.memory_limits import check_memory
from topologies.names import Entry
from topologies.node_counts import check_nodes, node_count

Seed = int | random.Random | None
Count = Annotated[int, Ge(1)]
Probability = Annotated[float, Ge(0), Le(1)]
Between = Literal["ring", "complete"]


@dataclass(frozen=True)
class Family(Entry):
    """A graph family; ``count`` gives its nodes where that takes more than n."""

    count: Callable[[Any, Mapping[str, Any]], int] | None = None

    @property
    def random(self) -> bool:
        """Whether a graph is drawn, from ``seed``."""
        return "seed" in inspect.signature(self.build).parameters

    @property
    def needs_n(self) -> bool:
        """Whether the options cannot determine the number of nodes."""
        n = inspect.signature(self.build).parameters.get("n")
        return n is not None and n.default is n.empty


def check_count(name: str, family: Family, n: int | None, options: Mapping[str, Any]) -> None:
    """Check the number of nodes that a graph of the family has, without building it."""
    if n is None and family.needs_n:
        raise TopologyError(f"{name} needs n, the number of nodes, an integer of at least 1")
    if n is not None:
        n = node_count(name, n)
    if family.count is not None:
        check_nodes(name, n, node_count(name, family.count(n, options)), "the graph")


def erdos_renyi(n: int, seed: Seed = None, *, p: Probability = 0.5) -> nx.Graph:
    """Each edge independently with probability p (Erdos and Renyi 1959).

    Parameters
    ----------
    p
        Probability of each edge.
    """
    return nx.binomial_graph(n, p, seed=seed)


def ring(n: int) -> nx.Graph:
    """A cycle."""
    return plain(nx.cycle_graph(n))


def path(n: int) -> nx.Graph:
    """A line."""
    return nx.path_graph(n)


def complete(n: int) -> nx.Graph:
    """Every pair joined."""
    check_memory(100.0 * n * (n - 1) / 2, f"complete with {n} nodes")  # bytes of networkx's edges
    return nx.complete_graph(n)


def star(n: int) -> nx.Graph:
    """Node 0 joined to all others."""
    return nx.star_graph(n - 1)


def random_regular(n: int, seed: Seed = None, *, degree: Annotated[int, Ge(0)] = 4) -> nx.Graph:
    """A random graph of constant degree (Steger and Wormald 1999).

    Parameters
    ----------
    degree
        Neighbours of each node.
    """
    return plain(nx.random_regular_graph(degree, n, seed=seed))


def small_world(
    n: int, seed: Seed = None, *, neighbours: Annotated[int, Ge(2)] = 4, p: Probability = 0.2
) -> nx.Graph:
    """A ring lattice with rewired edges (Watts and Strogatz 1998).

    Parameters
    ----------
    neighbours
        Degree of the lattice, even.
    p
        Probability that an edge is rewired.
    """
    return plain(nx.watts_strogatz_graph(n, neighbours, p, seed=seed))


def barbell(n: int, *, bridge: Annotated[int, Ge(0)] | None = None) -> nx.Graph:
    """Two complete graphs joined by a path.

    Parameters
    ----------
    bridge
        Nodes on the path. None is n mod 2.
    """
    bridge = n % 2 if bridge is None else bridge
    return plain(nx.barbell_graph((n - bridge) // 2, bridge))


def exponential(n: int) -> nx.Graph:
    """Node i joined to i ± 2^k mod n; undirected, unlike that of Ying et al. 2021."""
    return plain(nx.circulant_graph(n, [1 << k for k in range((n - 1).bit_length())]))


def torus(
    n: int | None = None, *, rows: Count | None = None, cols: Count | None = None
) -> nx.Graph:
    """A periodic grid; the squarest one where only n is given.

    Node r * cols + c is at (r, c).

    Parameters
    ----------
    rows
        Rows of the grid.
    cols
        Columns of the grid.
    """
    shape = torus_shape(n, rows, cols)
    return plain(nx.grid_2d_graph(*shape, periodic=True))


def torus_shape(n: int | None, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Return (rows, cols), completed from whichever of the three are given."""
    stated = rows or cols
    if rows and cols:
        return rows, cols
    if n is None:
        raise TopologyError("torus needs n, or rows and cols")
    if stated:
        if n % stated:
            raise TopologyError(
                f"torus: n is {n}, but must be a multiple of "
                f"{'rows' if rows else 'cols'} = {stated}"
            )
        return (rows, n // rows) if rows else (n // stated, stated)
    side = next(k for k in range(math.isqrt(n), 0, -1) if n % k == 0)
    if side == 1 and n > 3:
        raise TopologyError(
            f"torus: n is {n}, a prime, but must be rows x cols, such as {n - 1} or {n + 1}"
        )
    return side, n // side


def hypercube(
    n: int | None = None, *, dimension: Annotated[int, Ge(0), Le(24)] | None = None
) -> nx.Graph:
    """2^dimension nodes, joined where one bit differs.

    Parameters
    ----------
    dimension
        log2 of the number of nodes.
    """
    dimension = _dimension(n, dimension)
    # networkx has no node at all in dimension 0, where the cube is a point.
    return plain(nx.hypercube_graph(dimension)) if dimension else nx.empty_graph(1)


def _dimension(n: int | None, dimension: int | None) -> int:
    if dimension is not None:
        return dimension
    if n is None:
        raise TopologyError("hypercube needs n or dimension")
    below = n.bit_length() - 1
    if n != 1 << below:
        raise TopologyError(
            f"hypercube: n is {n}, but must be a power of two; "
            f"the nearest are {1 << below} and {2 << below}"
        )
    return below


def tree(n: int, *, branching: Count = 2) -> nx.Graph:
    """A balanced tree.

    Parameters
    ----------
    branching
        Children of an inner node.
    """
    return nx.full_rary_tree(branching, n)


def karate(n: int | None = None) -> nx.Graph:
    """Zachary's karate club, 34 members, joined where they met outside (Zachary 1977)."""
    return _unweighted(nx.karate_club_graph())


def davis(n: int | None = None) -> nx.Graph:
    """18 Southern women and the 14 events that they attended (Davis et al. 1941)."""
    return _unweighted(nx.davis_southern_women_graph())


def florentine(n: int | None = None) -> nx.Graph:
    """15 families of Florence, joined by marriages (Breiger and Pattison 1986)."""
    return _unweighted(nx.florentine_families_graph())


def _unweighted(graph: nx.Graph) -> nx.Graph:
    bare = nx.Graph(graph.edges)
    bare.add_nodes_from(graph)
    return plain(bare)


def geometric(
    n: int, seed: Seed = None, *, radius: Annotated[float, Gt(0)] | None = None
) -> nx.Graph:
    """Random points in a square, joined where they are near; edges have a distance.

    Parameters
    ----------
    radius
        Largest distance of neighbours. None is sqrt(2 ln n / (pi n)).
    """
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


def cliques(n: int, *, size: Count = 10, between: Between = "ring") -> nx.Graph:
    """Cliques of consecutive nodes, joined by single edges.

    Parameters
    ----------
    size
        Nodes of a clique, at most.
    between
        How cliques are joined.
    """
    groups = np.array_split(np.arange(n), -(-n // size))
    return joined_cliques([group.tolist() for group in groups], between)


def joined_cliques(groups: list[list[int]], between: Between) -> nx.Graph:
    """Return cliques with an edge between each two (``complete``), or each and the next."""
    graph = nx.empty_graph(sum(map(len, groups)))
    for group in groups:
        graph.add_edges_from(itertools.combinations(group, 2))
    outside = np.zeros(len(graph), dtype=int)
    for a, b in itertools.combinations(range(len(groups)), 2):
        if between == "complete" or b - a in (1, len(groups) - 1):
            i, j = (min(groups[k], key=lambda node: (outside[node], node)) for k in (a, b))
            outside[[i, j]] += 1
            graph.add_edge(i, j)
    return graph


def count_random_regular(n: int, options: Mapping[str, Any]) -> int:
    """Return n, for which there is such a graph."""
    degree = options["degree"]
    if degree >= n or degree * n % 2:
        raise TopologyError(
            f"random_regular: degree is {degree} and n is {n}, but the degree must be below n "
            "and their product even"
        )
    return n


def count_small_world(n: int, options: Mapping[str, Any]) -> int:
    """Return n, for which there is such a graph."""
    neighbours = options["neighbours"]
    if neighbours >= n or neighbours % 2:
        raise TopologyError(
            f"small_world: neighbours is {neighbours} and n is {n}, but it must be even and below n"
        )
    return n


def count_barbell(n: int, options: Mapping[str, Any]) -> int:
    """Return n, for which there is such a graph."""
    bridge = n % 2 if options["bridge"] is None else options["bridge"]
    if n - bridge < 4 or (n - bridge) % 2:
        raise TopologyError(
            f"barbell: n is {n} and bridge is {bridge}, but n - bridge must be an even number "
            "of at least 4"
        )
    return n


def count_torus(n: int | None, options: Mapping[str, Any]) -> int:
    """Return the nodes of a torus."""
    return math.prod(torus_shape(n, options["rows"], options["cols"]))


def count_hypercube(n: int | None, options: Mapping[str, Any]) -> int:
    """Return the nodes of a hypercube."""
    return 1 << _dimension(n, options["dimension"])
