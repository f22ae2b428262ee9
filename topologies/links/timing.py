"""When clients of a synchronous federation begin their rounds, on given links.

A round of client j begins when its own work of the last round is done and the messages of all its
in-neighbours i have arrived. The starts obey the max-plus recursion

    t_j(k + 1) = max(t_j(k) + c_j(k), max_i (t_i(k) + c_i(k) + l_ij + b / r_ij))

with the seconds c of local work, the latency l, the bits b of a message and the rate r of its path
(Marfoq et al. 2020, eqs. 3 and 4). With the same arcs in every round starts grow by the cycle time
of ``throughput`` a round in the long run.
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
    """The links among clients that live at the sites of a network.

    Attributes
    ----------
    network : Network
        The sites. Clients of one site are joined by its ``latency[s, s]`` and ``bandwidth[s, s]``;
        each client has an access link of the rates of its site.
    site : ndarray of int64, shape (n,)
        The site of each client.
    """

    network: Network
    site: Nodes

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.site)

    def travel(
        self, receivers: Nodes, senders: Nodes, message_bits: float, shared: bool = True
    ) -> Array:
        """Return the seconds from the sending to the arrival of the messages of one round.

        A client's upload is shared by the messages that it sends, its download by those that it
        receives.

        Parameters
        ----------
        receivers, senders : ndarray of int64, shape (arcs,)
            The messages.
        message_bits : float
            The size of a message in bits.
        shared : bool, default True
            Whether they are under way at once. Otherwise each has its links for itself.

        Returns
        -------
        ndarray of float64, shape (arcs,)
            The seconds.
        """
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
    """Return links that are alike between all pairs of clients.

    Parameters
    ----------
    n : int
        The number of clients.
    latency : float, default 0.0
        Seconds.
    bandwidth : float, default inf
        Bits per second on each path.
    upload, download : float, default inf
        Bits per second of each client's access link.

    Returns
    -------
    Links
        The links.

    Examples
    --------
    >>> one_site(3, 0.5, 1e3).travel(np.array([0]), np.array([2]), 250.0).tolist()
    [0.75]
    """
    table = np.array([[latency]]), np.array([[bandwidth]])
    network = Network(*table, np.array([upload]), np.array([download]), np.zeros(1))
    return Links(network, np.zeros(n, dtype=np.int64))


def at_sites(network: Network, n: int) -> Links:
    """Return links among clients that are spread evenly over the sites of a network, in order.

    Parameters
    ----------
    network : Network
        The sites.
    n : int
        The number of clients, at least that of the sites.

    Returns
    -------
    Links
        The links; client t is at site floor(t N / n) of N.

    Raises
    ------
    TopologyError
        If there are fewer clients than sites.

    Examples
    --------
    >>> at_sites(one_site(1).network, 3).site.tolist()
    [0, 0, 0]
    """
    if n < network.n:
        raise TopologyError(
            f"the network has {network.n} sites, but there are {n} clients; it needs as many at "
            "least, or a smaller network"
        )
    return Links(network, np.arange(n) * network.n // n)


def after_gossip(
    start: Array, work: Array, receivers: Nodes, senders: Nodes, travel: Array
) -> Array:
    """Return when each client begins the next round of gossip.

    Parameters
    ----------
    start : ndarray of float64, shape (n,)
        When the clients begin this round.
    work : ndarray of float64, shape (n,)
        The seconds of their local work.
    receivers, senders : ndarray of int64, shape (arcs,)
        The messages.
    travel : ndarray of float64, shape (arcs,)
        The seconds from their sending to their arrival.

    Returns
    -------
    ndarray of float64, shape (n,)
        When a client's own work is done and all its messages have arrived.

    Examples
    --------
    >>> one = np.array([0.0, 1.0]), np.array([0.5, 0.5])
    >>> after_gossip(*one, np.array([0]), np.array([1]), np.array([0.25])).tolist()
    [1.75, 1.5]
    """
    done = start + work
    after = done.copy()
    np.maximum.at(after, receivers, done[senders] + travel)
    return after


def server_round(
    links: Links, active: Nodes, work: Array, down_bits: float, up_bits: float, server: int | None
) -> float:
    """Return the seconds of a round at a server, from its first sending to its last receiving.

    Each client begins its work when the model has arrived. A server at a site shares the site's
    access link among the clients elsewhere, and reaches those of its own site at once; one outside
    the network is reached from site s with ``latency[s, s]`` and ``bandwidth[s, s]``, and has no
    limit of its own.

    Parameters
    ----------
    links : Links
        The links.
    active : ndarray of int64, shape (m,)
        The clients that take part.
    work : ndarray of float64, shape (m,)
        The seconds of their local work.
    down_bits, up_bits : float
        The size of a message to a client, and of one from it, in bits.
    server : int or None
        The site of the server; None if it is outside.

    Returns
    -------
    float
        The seconds; 0 if nobody takes part.
    """
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
