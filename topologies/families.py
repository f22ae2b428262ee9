"""Families of undirected graphs, each a function that returns a networkx graph on 0 .. n-1.

networkx generates; the functions here give one name and one order of nodes to each family and
refuse sizes that do not exist. :func:`topologies.build_graph` adds the seed, the redraws and the
metadata.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

from topologies.catalogue import Entry, Parameter, TopologyError, check_memory, node_count
from topologies.files import edge_list, graphml, matrix, plain
from topologies.inputs import check_regular

Seed = int | random.Random | None

NODE_BYTES, EDGE_BYTES = 400, 300
"""Bytes that networkx and the lists made of it take for a node and for an edge, about."""


def erdos_renyi(n: int, p: float = 0.5, seed: Seed = None) -> nx.Graph:
    """Each edge independently with probability p: ``networkx.binomial_graph(n, p, seed)``."""
    return nx.binomial_graph(n, p, seed=seed)


def ring(n: int) -> nx.Graph:
    """The cycle 0-1-...-(n-1)-0; one edge for n = 2, none for n = 1."""
    return plain(nx.cycle_graph(n))


def path(n: int) -> nx.Graph:
    """The path 0-1-...-(n-1)."""
    return nx.path_graph(n)


def complete(n: int) -> nx.Graph:
    """All n(n-1)/2 edges."""
    return nx.complete_graph(n)


def star(n: int) -> nx.Graph:
    """Node 0 joined to all n-1 others."""
    return nx.star_graph(n - 1)


def torus(n: int | None = None, rows: int | None = None, cols: int | None = None) -> nx.Graph:
    """The periodic grid of rows x cols nodes, node r * cols + c at (r, c).

    Given n alone, rows and cols are its divisors nearest to each other. Where a side is 2 the
    two neighbours along it coincide, and the degree is 3.
    """
    shape = torus_shape(n, rows, cols)
    return plain(nx.grid_2d_graph(*shape, periodic=True))


def torus_shape(n: int | None, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Return (rows, cols), completed from whichever of the three are given.

    Raises:
        TopologyError: if they do not fit together, or if n is a prime above 3 and so would make a
            ring.
    """
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
                f"torus: n is {n}, which is no multiple of {'rows' if rows else 'cols'} = {known}"
            )
        return (rows, n // rows) if rows else (n // known, known)
    side = next(k for k in range(math.isqrt(n), 0, -1) if n % k == 0)
    if side == 1 and n > 3:
        raise TopologyError(
            f"torus: n is {n}, a prime, but must be rows x cols, such as {n - 1} or {n + 1}"
        )
    return side, n // side


def hypercube(n: int | None = None, dimension: int | None = None) -> nx.Graph:
    """The 2^dimension nodes of a cube, joined where their numbers differ in one binary digit."""
    dimension = hypercube_dimension(n, dimension)
    # networkx has no node at all in dimension 0, where the cube is a point.
    return plain(nx.hypercube_graph(dimension)) if dimension else nx.empty_graph(1)


def hypercube_dimension(n: int | None, dimension: int | None) -> int:
    """Return log2(n).

    Raises:
        TopologyError: if n is no power of two, or not 2^dimension.
    """
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


def random_regular(n: int, degree: int = 4, seed: Seed = None) -> nx.Graph:
    """A random graph in which every node has the given degree (Steger and Wormald 1999)."""
    return plain(nx.random_regular_graph(degree, n, seed=seed))


def small_world(n: int, neighbours: int = 4, p: float = 0.2, seed: Seed = None) -> nx.Graph:
    """A ring lattice with edges rewired with probability p (Watts and Strogatz 1998)."""
    return plain(nx.watts_strogatz_graph(n, neighbours, p, seed=seed))


def barbell(n: int, bridge: int | None = None) -> nx.Graph:
    """Two complete graphs joined by a path of ``bridge`` nodes (default n mod 2)."""
    bridge = n % 2 if bridge is None else bridge
    return plain(nx.barbell_graph((n - bridge) // 2, bridge))


def exponential(n: int) -> nx.Graph:
    """Node i joined to i ± 2^k mod n for all 2^k < n: the undirected exponential graph.

    Ying et al. 2021 (Exponential graph is provably efficient for decentralized deep training) use
    the directed one.
    """
    return plain(nx.circulant_graph(n, [1 << k for k in range((n - 1).bit_length())]))


@dataclass(frozen=True)
class Family(Entry):
    """A graph family.

    ``random``: it takes a seed. ``needs_n``: its parameters alone do not say how many nodes there
    are. ``edges``: about how many edges a graph of n nodes has. ``count``: returns the number of
    nodes (None where only reading a file tells) and refuses sizes that do not exist.
    """

    random: bool = False
    needs_n: bool = True
    edges: Callable[[int, Mapping[str, Any]], float] = lambda n, params: n
    count: Callable[[Any, Mapping[str, Any]], int | None] | None = None

    def determined_by(self, given: Mapping[str, Any]) -> bool:
        """Whether the given parameters alone say how many nodes there are."""
        return not self.needs_n and bool(given)


def count_nodes(name: str, family: Family, n: int | None, params: Mapping[str, Any]) -> int | None:
    """Return the number of nodes the family would have, or None where only building tells.

    Raises:
        TopologyError: if there is no such graph.
    """
    if n is None and family.needs_n and family.parameters is not None:
        raise TopologyError(f"{name} needs n, the number of nodes, an integer of at least 1")
    n = None if n is None else node_count(name, n)
    found = n if family.count is None else family.count(n, params)
    if found is not None and family.parameters is not None:
        needed = NODE_BYTES * found + EDGE_BYTES * family.edges(found, params)
        check_memory(needed, f"{name} with {found} nodes")
    return found


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
