"""W^k of each round, and the route by which ranks send each other the rows that it mixes.

W^k is a pure function of the round. Where weights are computed in the round itself, rank 0 computes
and broadcasts them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

import topologies
from mpifed.errors import RunError
from mpifed.exchange.routes import Route
from mpifed.federation.clients import Federation

ROUTES_KEPT = 16
"""Routes of earlier rounds that are kept for when their matrix comes again."""


class Routing:
    """The routes of a schedule's matrices between the clients of a federation.

    Parameters
    ----------
    federation : Federation
        Its training clients are the nodes, in their order.
    schedule : topologies.Schedule
        Gives W^k.
    from_rank_0 : bool
        Whether rank 0 computes W^k for all, because others might round it differently.
    transport : str
        One of ``routes.TRANSPORTS``.
    within : topologies.Schedule, optional
        A second schedule, whose routes are those of the attribute ``within``.
    """

    def __init__(
        self,
        federation: Federation,
        schedule: topologies.Schedule,
        from_rank_0: bool,
        transport: str,
        within: topologies.Schedule | None = None,
    ) -> None:
        self.within: Routing | None = None
        if within is not None:
            self.within = Routing(federation, within, from_rank_0, transport)
        self.federation, self.schedule = federation, schedule
        self._from_rank_0, self._transport = from_rank_0, transport
        self._routes: dict[tuple[int, bytes, int], Route] = {}
        self._weights: dict[int, scipy.sparse.csr_array] = {}
        self._neighbourhoods: dict[int, Any] = {}

    def route(self, round: int, active: np.ndarray, itemsize: int) -> Route:
        """Return what this rank does in a round. Collective when first asked for.

        Parameters
        ----------
        round : int
            k, counted from 1.
        active : ndarray
            Who takes part, bool (n_clients,).
        itemsize : int
            Bytes of a number.

        Raises
        ------
        RunError
            On every rank, if rank 0 cannot make W^k.
        """
        phase, period = self._phase(round), self.schedule.period
        key = (phase, np.packbits(active).tobytes(), itemsize)
        if key not in self._routes:
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
                self._neighbourhoods.clear()
            nodes = active[self.federation.training]
            matrix = self._matrix(round)
            if not nodes.all():
                matrix = matrix.restricted_to(nodes)
            repeats = period is not None and bool(nodes.all())
            self._routes[key] = Route(
                self.federation, matrix, nodes, itemsize, repeats, self._transport
            )
        return self._routes[key]

    def arcs(self, round: int, active: np.ndarray, itemsize: int) -> np.ndarray:
        """Return receivers and senders of a round's messages, int64 (messages, 2).

        Parameters
        ----------
        round, active, itemsize
            As for ``route``.
        """
        used = self.route(round, active, itemsize).sparse.tocoo()
        pairs = np.stack([used.row, used.col], axis=1).astype(np.int64)
        return np.asarray(pairs[used.row != used.col])

    def weights(self, round: int) -> scipy.sparse.csr_array:
        """Return W^k over all training clients, without explicit zeros. Collective.

        Parameters
        ----------
        round : int
            k, counted from 1.
        """
        phase = self._phase(round)
        if phase not in self._weights:
            if len(self._weights) >= ROUTES_KEPT:
                self._weights.clear()
            found = self._matrix(round).to_sparse()
            found.eliminate_zeros()
            self._weights[phase] = found
        return self._weights[phase]

    def _phase(self, round: int) -> int:
        period = self.schedule.period
        return round if period is None else (round - 1) % period

    def _matrix(self, round: int) -> topologies.MixingMatrix:
        """W^k, the same bits on every rank."""
        if not self._from_rank_0:
            return self.schedule.matrix(round)
        communicator = self.federation.communicator
        made: Any = None
        if communicator.rank == 0:
            try:
                found = self.schedule.matrix(round)
                made = (found.n, found.edges, found.weights, found.symmetric)
            except topologies.TopologyError as error:
                made = str(error)
        made = communicator.broadcast_object(made)
        if isinstance(made, str):
            raise RunError(f"exchange.schedule: {made}")
        return topologies.MixingMatrix(*made)

    def neighbourhood(self, route: Route) -> Any:
        """Return the distributed-graph communicator of ``route``. Collective when first asked for.

        None for a route that has another transport.
        """
        if route.chosen[0] != "neighbourhood":
            return None
        if id(route) not in self._neighbourhoods:
            rank = self.federation.communicator.rank
            others = [peer for peer in range(len(route.receive)) if peer != rank]
            self._neighbourhoods[id(route)] = self.federation.communicator.neighbourhood(
                [peer for peer in others if route.receive[peer]],
                [peer for peer in others if len(route.send[peer])],
            )
        return self._neighbourhoods[id(route)]
