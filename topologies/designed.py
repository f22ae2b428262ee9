"""Topologies that are designed for the links of a network (Marfoq et al. 2020)."""

from __future__ import annotations

import networkx as nx
import numpy as np

from topologies.matrix import MixingMatrix
from topologies.network import Network, read_network
from topologies.overlays import design
from topologies.parameters import Parameter, TopologyError
from topologies.sequences import Arrays, Periodic, identity

PARAMETERS = {
    "path": Parameter(str, "the network: .csv of latencies, .graphml or .gml", required=True),
    "message_bytes": Parameter(
        float, "size of a message", 4_000_000.0, low=0, high=1e300, open_ends=("low",)
    ),
    "local_steps": Parameter(int, "local steps in a round", 1, low=1),
}
"""Parameters of every design."""


def mst(
    n: int | None = None, path: str = "", message_bytes: float = 4e6, local_steps: int = 1
) -> nx.Graph:
    """Return the minimum spanning tree of a network's delays; see ``overlays.mst``.

    Parameters
    ----------
    n : int, optional
        The number of nodes, if it is given besides the network.
    path : str
        The file of the network.
    message_bytes : float, default 4e6
        The size of a message.
    local_steps : int, default 1
        The number of local steps in a round.

    Returns
    -------
    networkx.Graph
        The tree.
    """
    return _undirected("mst", n, path, message_bytes, local_steps)


def delta_mbst(
    n: int | None = None, path: str = "", message_bytes: float = 4e6, local_steps: int = 1
) -> nx.Graph:
    """Return the spanning tree of small degree and delay of a network; see ``overlays``.

    Parameters
    ----------
    n : int, optional
        The number of nodes, if it is given besides the network.
    path : str
        The file of the network.
    message_bytes : float, default 4e6
        The size of a message.
    local_steps : int, default 1
        The number of local steps in a round.

    Returns
    -------
    networkx.Graph
        The tree.
    """
    return _undirected("delta_mbst", n, path, message_bytes, local_steps)


def _undirected(
    name: str, n: int | None, path: str, message_bytes: float, local_steps: int
) -> nx.Graph:
    network = _network(name, n, path)
    overlay = design(name, network, message_bits=8 * message_bytes, local_steps=local_steps)
    graph = nx.empty_graph(network.n)
    graph.add_edges_from(overlay.edges)
    return graph


def _network(name: str, n: int | None, path: str) -> Network:
    network = read_network(path)
    if n is not None and n != network.n:
        raise TopologyError(f"{name}: n is {n}, but the network {path!r} has {network.n} nodes")
    return network


def prepare_tour(
    graph: object, rule: object, path: str, message_bytes: float, local_steps: int
) -> Arrays:
    """Return the arcs of the directed ring along a short tour of a network.

    Parameters
    ----------
    graph, rule : object
        Not used: the network is all.
    path : str
        The file of the network.
    message_bytes : float
        The size of a message.
    local_steps : int
        The number of local steps in a round.

    Returns
    -------
    mapping of str to ndarray
        ``nodes``, their number, and ``arcs``, int64 (arcs, 2): sender and receiver.
    """
    network = _network("tour", None, path)
    overlay = design("ring", network, message_bits=8 * message_bytes, local_steps=local_steps)
    arcs = np.array(list(overlay.edges), dtype=np.int64).reshape(-1, 2)
    return {"nodes": np.array(network.n), "arcs": arcs}


def restore_tour(
    n: int, seed: int, arrays: Arrays, path: str, message_bytes: float, local_steps: int
) -> Periodic:
    """Return the schedule in which each node averages with the one before it on the tour.

    Parameters
    ----------
    n : int
        The number of nodes.
    seed : int
        Not used: nothing is drawn.
    arrays : mapping of str to ndarray
        The arrays of :func:`prepare_tour`.
    path, message_bytes, local_steps
        As for :func:`prepare_tour`, for messages.

    Returns
    -------
    Periodic
        A schedule of period 1 with weights 1/2; directed and doubly stochastic.

    Raises
    ------
    TopologyError
        If the network has another number of nodes.
    """
    if arrays["nodes"] != n:
        found = int(arrays["nodes"])
        raise TopologyError(f"tour: n is {n}, but the network {path!r} has {found} nodes")
    if n <= 2:
        pair = MixingMatrix(n, np.array([(0, 1)] * (n - 1)), np.full(n - 1, 0.5))
        return Periodic((pair if n == 2 else identity(1),))
    edges = arrays["arcs"][:, ::-1]
    return Periodic((MixingMatrix(n, edges, np.full(len(edges), 0.5), symmetric=False),))
