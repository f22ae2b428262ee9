"""Networks of links among nodes, and when clients of a synchronous federation begin their rounds.

With the seconds c of local work, the latency l, the bits b of a message and the rate r of its path
(Marfoq et al. 2020, eqs. 3 and 4).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.graphs.files import PARSERS, read_graph, read_numbers

# The mean radius of the earth in kilometres.
EARTH = 6371.0

# Latency of a link by its length: 0.0085 ms a kilometre and 4 ms (Marfoq et al. 2020).
SECONDS_PER_KM, SECONDS_PER_LINK = 0.0085e-3, 4e-3


def latency_over(kilometres: float) -> float:
    """Return the latency of a link in seconds: 0.0085 ms a kilometre, and 4 ms. Marfoq et al.
    2020, section 4, after Gueye et al. 2006.
    """
    return SECONDS_PER_KM * kilometres + SECONDS_PER_LINK


def great_circle(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the distance of two places on the earth in kilometres, by the haversine formula."""
    (a, b), (c, d) = (map(math.radians, point) for point in (one, other))
    share = math.sin((c - a) / 2) ** 2 + math.cos(a) * math.cos(c) * math.sin((d - b) / 2) ** 2
    return 2 * EARTH * math.asin(math.sqrt(min(1.0, share)))


def number_of(
    attributes: Mapping[str, Any], name: str, default: float, low: float = 0.0, high: float = np.inf
) -> float:
    """Return an attribute of a node or a link of a file, a number from low to high."""
    try:
        number = float(attributes.get(name, default))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        raise TopologyError(
            f"the network has the {name} {attributes[name]!r}, which must be a number from {low:g} "
            f"to {high:g}"
        )
    return number


def _coordinates(attributes: Mapping[str, Any]) -> tuple[float, float] | None:
    low = {str(name).lower(): value for name, value in attributes.items()}
    if not {"latitude", "longitude"} <= low.keys():
        return None
    return number_of(low, "latitude", 0, -90, 90), number_of(low, "longitude", 0, -180, 180)


Array = NDArray[np.float64]


@dataclass(frozen=True)
class Network:
    """The links among n nodes, and the nodes' access rates and speed."""

    latency: Array
    bandwidth: Array
    upload: Array
    download: Array
    compute: Array

    @property
    def n(self) -> int:
        """The number of nodes."""
        return len(self.latency)


def read_network(path: str | Path) -> Network:
    """Return the network of a file."""
    path = Path(path)
    if path.suffix == ".csv":
        network = _unlimited(read_numbers(path))
    elif path.suffix in PARSERS:
        network = network_on(read_graph(path, "network"))
    else:
        raise TopologyError(f"{str(path)!r} must end in .csv, {' or '.join(PARSERS)}")
    n = network.n
    if network.latency.shape != (n, n):
        raise TopologyError(f"{path}: latencies have shape {network.latency.shape}, not n x n")
    for name, values in vars(network).items():
        is_rate = name in ("bandwidth", "upload", "download")
        wrong = ~(values > 0) if is_rate else ~((values >= 0) & np.isfinite(values))
        if wrong.any():
            allowed = "above 0" if is_rate else "finite and at least 0"
            raise TopologyError(f"{path}: a value of {name} is {values[wrong][0]}, not {allowed}")
    return network


def _unlimited(latency: Array) -> Network:
    n = len(latency)
    free = np.full(n, np.inf)
    return Network(latency, np.full(latency.shape, np.inf), free, free, np.zeros(n))


def network_on(underlay: nx.Graph) -> Network:
    """Return the network among all nodes of an underlay, along the paths of least latency."""
    graph = underlay.copy()
    coordinates = {node: _coordinates(attributes) for node, attributes in graph.nodes(data=True)}
    for i, j, link in graph.edges(data=True):
        one, other = coordinates[i], coordinates[j]
        seconds = 0.0
        if "distance" in link:
            seconds = latency_over(number_of(link, "distance", 0.0))
        elif one is not None and other is not None:
            seconds = latency_over(great_circle(one, other))
        link["latency"] = number_of(link, "latency", seconds)
        link["bandwidth"] = number_of(link, "bandwidth", np.inf)
    nodes = list(graph)
    n = len(nodes)
    latency, bandwidth = np.zeros((n, n)), np.full((n, n), np.inf)
    for i, source in enumerate(nodes):
        routes = nx.single_source_dijkstra_path(graph, source, weight="latency")
        if len(routes) < n:
            raise TopologyError(f"the network is not connected: {source!r} cannot reach every node")
        for j, target in enumerate(nodes):
            links = [graph.edges[hop] for hop in itertools.pairwise(routes[target])]
            latency[i, j] = sum(link["latency"] for link in links)
            bandwidth[i, j] = min((link["bandwidth"] for link in links), default=np.inf)

    def of_nodes(name: str, default: float) -> Array:
        return np.array([number_of(graph.nodes[node], name, default) for node in nodes])

    access = of_nodes("upload", np.inf), of_nodes("download", np.inf)
    return Network(latency, bandwidth, *access, of_nodes("compute", 0.0))


Nodes = NDArray[np.int64]


@dataclass(frozen=True)
class Links:
    """The links among clients that live at the sites of a network."""

    network: Network
    site: Nodes

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.site)

    def travel(
        self, receivers: Nodes, senders: Nodes, message_bits: float, shared: bool = True
    ) -> Array:
        """Return the seconds from the sending to the arrival of the messages of one round."""
        network, to, of = self.network, self.site[receivers], self.site[senders]
        sent = received = np.ones(len(senders), np.int64)
        if shared:
            sent = np.bincount(senders, minlength=self.n)[senders]
            received = np.bincount(receivers, minlength=self.n)[receivers]
        rate = np.minimum(network.upload[of] / sent, network.download[to] / received)
        rate = np.minimum(rate, network.bandwidth[of, to])
        return np.asarray(network.latency[of, to] + message_bits / rate)


def one_site(
    n: int,
    latency: float = 0.0,
    bandwidth: float = np.inf,
    upload: float = np.inf,
    download: float = np.inf,
    shared: bool = True,
) -> Links:
    """Return links that are alike for all clients. The bandwidth is that of a client's link, each
    way, which its messages of a round share; with ``shared=False`` that of each path between two.
    """
    path = np.inf if shared else bandwidth
    if shared:
        upload, download = min(upload, bandwidth), min(download, bandwidth)
    table = np.array([[latency]]), np.array([[path]])
    network = Network(*table, np.array([upload]), np.array([download]), np.zeros(1))
    return Links(network, np.zeros(n, dtype=np.int64))


def at_sites(network: Network, n: int) -> Links:
    """Return links among clients that are spread evenly over the sites of a network, in order."""
    if n < network.n:
        raise TopologyError(
            f"the network has {network.n} sites, but there are {n} clients; it needs as many at "
            "least, or a smaller network"
        )
    return Links(network, np.arange(n) * network.n // n)


def after_gossip(
    start: Array, work: Array, receivers: Nodes, senders: Nodes, travel: Array
) -> Array:
    """Return when each client begins the next round of gossip."""
    done = start + work
    after = done.copy()
    np.maximum.at(after, receivers, done[senders] + travel)
    return after


def all_reduce_round(
    links: Links, active: Nodes, work: Array, down_bits: float, up_bits: float
) -> float:
    """Return the seconds of a round in which each client adds a share of the sum of all messages:
    it gets this share of each, and sends the result to all.
    """
    n = len(active)
    receivers, senders = np.argwhere(~np.eye(n, dtype=bool)).T
    idle = after = np.zeros(n)
    for bits, busy in ((up_bits, work), (down_bits, idle)):
        travel = links.travel(active[receivers], active[senders], bits / max(1, n))
        after = after_gossip(after, busy, receivers, senders, travel)
    return float(after.max(initial=0.0))


def server_round(
    links: Links,
    active: Nodes,
    work: Array,
    down_bits: float,
    up_bits: float,
    server: int | None,
    rate: float | None = None,
) -> float:
    """Return the seconds of a round at a server, from its first sending to its last receiving. Its
    link of the given rate, by default of its site's or unlimited, is shared by all messages.
    """
    if not len(active):
        return 0.0
    network, site = links.network, links.site[active]
    seat = site if server is None else np.full(len(site), server)
    away = np.ones(len(site), bool) if server is None else site != server
    hub_rates = (
        (np.inf, np.inf) if server is None else (network.upload[server], network.download[server])
    )
    hub_up, hub_down = (
        (end if rate is None else rate) / max(1, int(away.sum())) for end in hub_rates
    )
    down = np.minimum(np.minimum(hub_up, network.download[site]), network.bandwidth[seat, site])
    up = np.minimum(np.minimum(hub_down, network.upload[site]), network.bandwidth[site, seat])
    there = network.latency[seat, site] + down_bits / down
    back = network.latency[site, seat] + up_bits / up
    return float((work + np.where(away, there + back, 0.0)).max())
