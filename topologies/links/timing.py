"""When clients of a synchronous federation begin their rounds, on given links. with the seconds c
of local work, the latency l, the bits b of a message and the rate r of its path (Marfoq et al.
2020, eqs. 3 and 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.links.network import Network
from topologies.parameters import TopologyError

Array = NDArray[np.float64]
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
) -> Links:
    """Return links that are alike between all pairs of clients."""
    table = np.array([[latency]]), np.array([[bandwidth]])
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


def server_round(
    links: Links, active: Nodes, work: Array, down_bits: float, up_bits: float, server: int | None
) -> float:
    """Return the seconds of a round at a server, from its first sending to its last receiving."""
    if not len(active):
        return 0.0
    network, site = links.network, links.site[active]
    seat = site if server is None else np.full(len(site), server)
    away = np.ones(len(site), bool) if server is None else site != server
    shared = np.inf if server is None else max(1, int(away.sum()))
    hub_up = np.inf if server is None else network.upload[server] / shared
    hub_down = np.inf if server is None else network.download[server] / shared
    down = np.minimum(np.minimum(hub_up, network.download[site]), network.bandwidth[seat, site])
    up = np.minimum(np.minimum(hub_down, network.upload[site]), network.bandwidth[site, seat])
    there = network.latency[seat, site] + down_bits / down
    back = network.latency[site, seat] + up_bits / up
    return float((work + np.where(away, there + back, 0.0)).max())
