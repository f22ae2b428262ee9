"""Overlays for given links, designed for a small cycle time (Marfoq, Xu, Neglia and Vidal 2020).

Starting times obey a max-plus linear recursion, and grow by the *cycle time* per round: the largest
mean delay of a directed cycle, 1 / throughput (their eq. 5).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Annotated

import networkx as nx
import numpy as np
from annotated_types import Ge, Gt, Le
from networkx.algorithms.approximation import christofides
from numpy.typing import NDArray

from topologies.links.network import Links, Network, read_network
from topologies.matrix import MixingMatrix
from topologies.node_counts import check_nodes
from topologies.schedules.sequences import Arrays, Periodic, identity

Array = NDArray[np.float64]

Bytes = Annotated[float, Gt(0), Le(1e300)]
Steps = Annotated[int, Ge(1)]


def delays(
    overlay: nx.DiGraph, network: Network, *, message_bits: float, local_steps: int = 1
) -> Array:
    """Return the seconds from the start of i's round to the arrival of its message at j
    (eq. 3).
    """
    n = network.n
    work = local_steps * network.compute
    table = np.full((n, n), np.inf)
    np.fill_diagonal(table, work)
    arcs = np.array(list(overlay.edges), dtype=np.int64).reshape(-1, 2)
    senders, receivers = arcs.T
    links = Links(network, np.arange(n))
    table[senders, receivers] = work[senders] + links.travel(receivers, senders, message_bits)
    return table


def maximum_cycle_mean(table: Array) -> float:
    """Return the largest mean of the finite entries around a directed cycle (Karp 1978)."""
    n = len(table)
    arcs = np.where(np.isfinite(table), table, -np.inf)
    # longest[k, v]: of the walks of k arcs that end at v, from anywhere.
    longest = np.zeros((n + 1, n))
    for k in range(n):
        longest[k + 1] = (longest[k][:, None] + arcs).max(axis=0)
    reached = np.isfinite(longest[n])
    if not reached.any():
        return -np.inf
    lengths = np.arange(n, 0, -1)[:, None]
    means = (longest[n][None, reached] - longest[:n, reached]) / lengths
    return float(means.min(axis=0).max())


def cycle_time(
    overlay: nx.DiGraph, network: Network, *, message_bits: float, local_steps: int = 1
) -> float:
    """Return the seconds per round of the overlay in the long run."""
    table = delays(overlay, network, message_bits=message_bits, local_steps=local_steps)
    server = overlay.graph.get("server")
    if server is None:
        return maximum_cycle_mean(table)
    others = np.array([i for i in overlay if i != server], dtype=np.int64)
    down = table[server, others] - local_steps * network.compute[server]
    return float(max(table[server, server], (down + table[others, server]).max(initial=0.0)))


def star(network: Network, *, message_bits: float, local_steps: int = 1) -> nx.DiGraph:
    """Return a server with its clients; the server is the node for which the cycle time is
    least.
    """

    def around(centre: int) -> nx.DiGraph:
        overlay = nx.star_graph([centre, *(i for i in range(network.n) if i != centre)])
        overlay = overlay.to_directed()
        overlay.graph["server"] = centre
        return overlay

    return _best(map(around, range(network.n)), network, message_bits, local_steps)


def mst(network: Network, *, message_bits: float, local_steps: int = 1) -> nx.DiGraph:
    """Return the minimum spanning tree of the delays, averaged over both directions."""
    return _both_ways(nx.minimum_spanning_tree(_pairwise(network, message_bits, local_steps)))


def delta_mbst(network: Network, *, message_bits: float, local_steps: int = 1) -> nx.DiGraph:
    """Return the best of several spanning trees of small degree and small largest delay
    (Alg. 1).
    """
    pairs = _pairwise(network, message_bits, local_steps)
    trees = [_hamiltonian_path(pairs)]
    trees += [_prim(pairs, delta) for delta in range(2, network.n)]
    return _best(map(_both_ways, trees), network, message_bits, local_steps)


def ring(network: Network, *, message_bits: float, local_steps: int = 1) -> nx.DiGraph:
    """Return a directed ring along a short tour (Christofides 1976), in the faster direction."""
    if network.n < 3:
        return _both_ways(nx.path_graph(network.n))
    tour = christofides(_pairwise(network, message_bits, local_steps))
    rings = [nx.DiGraph(itertools.pairwise(nodes)) for nodes in (tour, tour[::-1])]
    return _best(rings, network, message_bits, local_steps)


OVERLAYS: dict[str, Callable[..., nx.DiGraph]] = {
    "star": star,
    "mst": mst,
    "delta_mbst": delta_mbst,
    "ring": ring,
}


def design(name: str, network: Network, *, message_bits: float, local_steps: int = 1) -> nx.DiGraph:
    """Return the named overlay for a network."""
    return OVERLAYS[name](network, message_bits=message_bits, local_steps=local_steps)


def _pairwise(network: Network, message_bits: float, local_steps: int) -> nx.Graph:
    """Return the complete graph of mean delays both ways, where each node has one link."""
    alone = nx.complete_graph(network.n)
    single = np.minimum(
        network.bandwidth, np.minimum(network.upload[:, None], network.download[None, :])
    )
    one_way = local_steps * network.compute[:, None] + network.latency + message_bits / single
    for i, j in alone.edges:
        alone.edges[i, j]["weight"] = (one_way[i, j] + one_way[j, i]) / 2
    return alone


def _both_ways(tree: nx.Graph) -> nx.DiGraph:
    overlay = nx.DiGraph()
    overlay.add_nodes_from(sorted(tree))
    overlay.add_edges_from((i, j) for edge in tree.edges for i, j in (edge, edge[::-1]))
    return overlay


def _hamiltonian_path(pairs: nx.Graph) -> nx.Graph:
    """Return a path through all nodes whose steps are at most three edges of the spanning tree. A
    path from a to b, joined by an edge of a tree, goes through a's side of the edge to a neighbour
    of a, and from a neighbour of b through b's side to b (Sekanina 1960).
    """
    tree = nx.minimum_spanning_tree(pairs)
    order: list[int] = []
    first = next(iter(tree.edges), (0, 0))
    waiting = [(tree, *first)]
    while waiting:
        tree, a, b = waiting.pop()
        if a == b:
            order.append(a)
            continue
        cut = tree.copy()
        cut.remove_edge(a, b)
        sides = [cut.subgraph(nx.node_connected_component(cut, end)).copy() for end in (a, b)]
        turn = [next(iter(side[end]), end) for side, end in zip(sides, (a, b), strict=True)]
        waiting += [(sides[1], turn[1], b), (sides[0], a, turn[0])]
    return nx.Graph(itertools.pairwise(order)) if len(order) > 1 else nx.empty_graph(1)


def _prim(pairs: nx.Graph, most: int) -> nx.Graph:
    """Return the tree grown by the shortest link to a new node from one of degree < ``most``."""
    weights = nx.to_numpy_array(pairs, nodelist=range(len(pairs)))
    tree = nx.empty_graph(1)
    outside = np.ones(len(pairs), dtype=bool)
    outside[0] = False
    while outside.any():
        open_nodes = [i for i in tree if tree.degree(i) < most]
        new_nodes = np.flatnonzero(outside)
        table = weights[np.ix_(open_nodes, new_nodes)]
        row, column = np.unravel_index(table.argmin(), table.shape)
        tree.add_edge(open_nodes[row], int(new_nodes[column]))
        outside[new_nodes[column]] = False
    return tree


def _best(
    overlays: Iterable[nx.DiGraph], network: Network, message_bits: float, local_steps: int
) -> nx.DiGraph:
    def seconds(overlay: nx.DiGraph) -> float:
        return cycle_time(overlay, network, message_bits=message_bits, local_steps=local_steps)

    return min(overlays, key=seconds)


def mst_graph(
    n: int | None = None, *, path: str, message_bytes: Bytes = 4e6, local_steps: Steps = 1
) -> nx.Graph:
    """The minimum spanning tree of the delays of a network.

    Parameters
    ----------
    path
        The network: .csv of latencies, .graphml or .gml.
    message_bytes
        Size of a message.
    local_steps
        Local steps in a round.
    """
    return _undirected("mst", n, path, message_bytes, local_steps)


def delta_mbst_graph(
    n: int | None = None, *, path: str, message_bytes: Bytes = 4e6, local_steps: Steps = 1
) -> nx.Graph:
    """A spanning tree of a network with small degrees and delays.

    Parameters
    ----------
    path
        The network: .csv of latencies, .graphml or .gml.
    message_bytes
        Size of a message.
    local_steps
        Local steps in a round.
    """
    return _undirected("delta_mbst", n, path, message_bytes, local_steps)


def _undirected(
    name: str, n: int | None, path: str, message_bytes: float, local_steps: int
) -> nx.Graph:
    network = read_network(path)
    check_nodes(name, n, network.n, path)
    overlay = design(name, network, message_bits=8 * message_bytes, local_steps=local_steps)
    graph = nx.empty_graph(network.n)
    graph.add_edges_from(overlay.edges)
    return graph


def prepare_tour(*, path: str, message_bytes: Bytes = 4e6, local_steps: Steps = 1) -> Arrays:
    """Return the arcs of the directed ring along a short tour of a network.

    Parameters
    ----------
    path
        The network: .csv of latencies, .graphml or .gml.
    message_bytes
        Size of a message.
    local_steps
        Local steps in a round.
    """
    network = read_network(path)
    overlay = design("ring", network, message_bits=8 * message_bytes, local_steps=local_steps)
    arcs = np.array(list(overlay.edges), dtype=np.int64).reshape(-1, 2)
    return {"nodes": np.array(network.n), "arcs": arcs}


def restore_tour(n: int, arrays: Arrays, *, path: str) -> Periodic:
    """Averages with the node before on a short tour of a network; directed."""
    check_nodes("tour", n, int(arrays["nodes"]), path)
    if n <= 2:
        pair = MixingMatrix(n, np.array([(0, 1)] * (n - 1)), np.full(n - 1, 0.5))
        return Periodic((pair if n == 2 else identity(1),))
    edges = arrays["arcs"][:, ::-1]
    return Periodic((MixingMatrix(n, edges, np.full(len(edges), 0.5), symmetric=False),))
