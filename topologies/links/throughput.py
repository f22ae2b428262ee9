"""The cycle time of an overlay on given links (Marfoq, Xu, Neglia and Vidal 2020). Starting times
then obey a max-plus linear recursion, and grow by the *cycle time* per round: the largest mean
delay of a directed cycle, 1 / throughput (their eq. 5).
"""

from __future__ import annotations

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from topologies.links.network import Network
from topologies.links.timing import Links
from topologies.parameters import TopologyError

Array = NDArray[np.float64]

# Seconds; the sum of as many delays as a walk has is finite.
LONGEST_DELAY = 1e290

TOO_LONG = (
    f"a delay of the network is above {LONGEST_DELAY:g} seconds: it has too small a bandwidth, or "
    "too large a latency, message or number of local steps"
)


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
    own = [(node, node) for node in overlay]
    if not all(np.isfinite(table[arc]) for arc in [*overlay.edges, *own]):
        raise TopologyError(TOO_LONG)
    server = overlay.graph.get("server")
    if server is None:
        return maximum_cycle_mean(table)
    others = np.array([i for i in overlay if i != server], dtype=np.int64)
    down = table[server, others] - local_steps * network.compute[server]
    return float(max(table[server, server], (down + table[others, server]).max(initial=0.0)))


def check_delays(network: Network, *, message_bits: float, local_steps: int = 1) -> None:
    """Check that the delays of every walk through the network can be added up."""
    slowest = min(network.upload.min(), network.download.min(), network.bandwidth.min())
    with np.errstate(over="ignore"):
        sending = message_bits * network.n / slowest
        longest = local_steps * network.compute.max() + network.latency.max() + sending
    if not longest <= LONGEST_DELAY:
        raise TopologyError(TOO_LONG)
