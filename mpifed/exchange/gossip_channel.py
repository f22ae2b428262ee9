"""What a client exchanges with its neighbours in one round of gossip."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import topologies
from mpifed.exchange.base import Channel, Exchange, Round, bits_of, timed
from mpifed.exchange.choco import contracted, gossip_step
from mpifed.exchange.compression import message_sizes
from mpifed.exchange.correction import (
    Correction,
    CorrectionMemory,
    HeldOutRisks,
    Neighbours,
    Observations,
)
from mpifed.exchange.mixing_product import shared_weights
from mpifed.exchange.routes import Nearby, Route, Routing, arrivals, nearby
from mpifed.federation.reduction import check_not_diverged, weighted_sum
from mpifed.mpi.reused import Reused
from mpifed.state import check_result, client, on_host, pair_of


@dataclass(frozen=True)
class Replicas:
    """The replicas of the clients' values that their neighbours hold (CHOCO-Gossip)."""

    replica: Tensor = client()


@dataclass(frozen=True)
class Mixing:
    """How neighbours' values are mixed in all rounds.

    Attributes
    ----------
    routing : Routing
        Which rows go from rank to rank.
    correction : Correction or None
        What clients send and keep.
    steps : int
        How often clients mix in a round.
    slem : float or None
        The SLEM of W, where these steps have Chebyshev weights.
    consensus_step : callable
        Maps the numbers of a message to gamma of gossip by compressed messages.
    reused : Reused
        Memory of earlier rounds.
    received : list of ndarray
        Receivers and senders of this round's messages, in turn, where clients choose them.
    """

    routing: Routing
    correction: Correction | None
    steps: int
    slem: float | None
    consensus_step: Callable[[int], float]
    reused: Reused
    received: list[np.ndarray]


class GossipChannel(Channel):
    """The neighbours of one round; ``mixing`` is how their values are mixed in all rounds."""

    _duals_at = -1  # where the duals of the next value lie in the memory
    held_out: HeldOutRisks | None = None
    layers: Sequence[slice] = ()

    def __init__(self, exchange: Exchange, round: Round, memory: Any, mixing: Mixing) -> None:
        super().__init__(exchange, round, memory)
        self.mixing = mixing

    def broadcast(self, shared: Tensor) -> Tensor:
        return shared

    def duals(self, shared: Tensor) -> Tensor | None:
        correction = self.mixing.correction
        if correction is None or not correction.within_steps:
            return None
        part = slice(self._used, self._used + math.prod(shared.shape[1:]))
        self._duals_at = self._used
        return self.memory.corrections[:, part].view(shared.shape)

    @timed
    def average(
        self, rows: Tensor, weights: Tensor, before: Tensor, total_weight: float = 1.0
    ) -> Tensor:
        self.check_update(rows, weights, before)
        if self.exchange.privacy is not None:
            if self._messages:
                self._check_not_private("sends several messages in a round")
            self._messages += 1
        rows = self.transformed(rows, before)
        if self.mixing.correction is not None:
            return self._corrected(rows, before, self.mixing.correction)
        if self.compressor is not None:
            return self._compressed(rows)
        return self._mixed_often(rows)

    def _mixed_often(self, rows: Tensor) -> Tensor:
        """The rows after all steps of gossip of the round.

        With Chebyshev weights x_j = w_j W x_{j-1} + (1 - w_j) x_{j-2}, where w_1 = 1,
        w_2 = 2 / (2 - s^2) and w_j = 4 / (4 - s^2 w_{j-1}) for the SLEM s of W (Golub and Varga
        1961): after k steps the distance from the mean is at most 1 / T_k(1 / s) of what it was,
        not s^k.
        """
        routing, size = self.mixing.routing, math.prod(rows.shape[1:])
        before, now, weight = rows, rows, 1.0
        for step in range(self.mixing.steps):
            self._book_uncompressed(rows, size, routing, step)
            mixed = self._mixed(now, routing, step)
            if step and self.mixing.slem is not None:
                weight = 1 / (1 - self.mixing.slem**2 * weight / (2 if step == 1 else 4))
                mixed = (mixed * weight).add_(before * (1 - weight))
            before, now = now, mixed
        return now

    def _route(self, routing: Routing, step: int = 0) -> Route:
        number = (self.round.number - 1) * self.mixing.steps + step + 1
        return routing.route(number, self.round.active)

    def _book(self, bits: int, floats: int) -> None:
        """What goes up an edge comes down it."""
        ledger = self.exchange.ledger
        ledger.up_bits += bits
        ledger.down_bits += bits
        ledger.up_floats += floats

    def _book_uncompressed(
        self, rows: Tensor, numbers: int, routing: Routing, step: int = 0
    ) -> None:
        """Messages of ``numbers`` numbers of the type of ``rows``."""
        messages = self._route(routing, step).messages
        self._book(messages * bits_of(torch.Size([numbers]), rows.dtype), messages * numbers)

    def _corrected(self, rows: Tensor, before: Tensor, correction: Correction) -> Tensor:
        """The correction sees the update that the method has made."""
        routing, size = self.mixing.routing, math.prod(rows.shape[1:])
        route, part = self._route(routing), self.next_part(correction.width(size))
        if correction.within_steps and self._duals_at != part.start:
            raise TypeError(
                f"{type(correction).__name__} works within local steps, which the method takes "
                "without its channel: local(start, optimizer, clients, draws, channel)"
            )

        def mix(rows: Tensor) -> Tensor:
            if not correction.compresses:  # replicas, of which ``send`` has sent the changes
                self._book_uncompressed(rows, rows.shape[1], routing)
            return self._mixed_apart(rows, routing)

        def rows_nearby() -> Nearby:
            self._book_uncompressed(rows, correction.numbers(size), routing)
            return nearby(self.exchange.federation.communicator, route)

        def mix_in_cliques(rows: Tensor) -> Tensor:
            assert routing.cliques is not None
            self._book_uncompressed(rows, rows.shape[1], routing.cliques)
            return self._mixed_apart(rows, routing.cliques)

        neighbours = Neighbours(
            mix,
            mix_in_cliques,
            route.sparse,
            route.mine,
            rows_nearby,
            partial(self._sent, route),
            self.mixing.consensus_step(size) if correction.compresses else 1.0,
            self._observations() if correction.chooses else None,
        )
        x, memory = before.flatten(1), self.memory.corrections
        returned = correction.step(x, rows.flatten(1), memory[:, part], neighbours)
        after, remembered = pair_of(returned, correction, "step")
        check_result(after, x, correction, "step")
        check_result(remembered, memory[:, part], correction, "step")
        if remembered.shape != memory.shape:
            memory = memory.clone()
            memory[:, part] = remembered
            remembered = memory
        self.memory = CorrectionMemory(remembered)
        return after.view(rows.shape)

    def _sent(self, route: Route, rows: Tensor) -> Tensor:
        """What neighbours receive of the rows."""
        size, training, draws = rows.shape[1], self.exchange.federation.training, self.round.draws
        purpose = self._purpose
        self._messages += 1
        if self.compressor is None:
            self._book_uncompressed(rows, size, self.mixing.routing)
            return rows
        bits, floats = message_sizes(
            self.compressor, size, rows.element_size(), draws, training, purpose
        )
        self._book(int(bits @ route.receivers), int(floats @ route.receivers))
        return contracted(self.compressor, rows, draws, training[route.mine], purpose)

    def _observations(self) -> Observations:
        federation, layers = self.exchange.federation, self.layers
        samples = federation.n_train[federation.training]
        return Observations(
            self.receive, self.held_out, layers, self.round.draws, self.round.ids, samples
        )

    @timed
    def receive(self, rows: Tensor, requests: np.ndarray, numbers: int | None = None) -> Nearby:
        """Return who receives from whom where each participant hosted here asks for others' rows.

        ``rows`` are (participants, numbers), ``requests`` is bool (participants, training clients).
        Every row that one is sent is booked, or ``numbers`` of it, if it reads no others.
        Collective.
        """
        exchange, route = self.exchange, self._route(self.mixing.routing)
        communicator, n = exchange.federation.communicator, route.matrix.n
        receivers, senders = np.nonzero(requests & route.active)
        hosted_arcs = np.stack([route.mine[receivers], senders], axis=1)
        # Every rank learns who asks whom: of its own rows it knows then where they are wanted.
        arcs = communicator.broadcast_object(communicator.gather_object(hosted_arcs))
        edges = np.concatenate(arcs)
        edges = edges[edges[:, 0] != edges[:, 1]]
        weights = 1 / (1 + np.bincount(edges[:, 0], minlength=n)[edges[:, 0]])
        matrix = topologies.MixingMatrix(n, edges, weights, symmetric=False)
        self.mixing.received.append(matrix.edges)
        size = torch.Size([len(edges), rows.shape[1] if numbers is None else numbers])
        self._book(bits_of(size, rows.dtype), math.prod(size))
        return nearby(communicator, Route(exchange.federation, matrix, route.active))

    def may_receive(self) -> np.ndarray:
        """Return whose edges of W lead to each participant, bool (participants, nodes)."""
        route = self._route(self.mixing.routing)
        neighbours = route.sparse[route.mine].toarray() != 0
        neighbours[np.arange(len(neighbours)), route.mine] = False
        return neighbours

    def alike(self, labels: Tensor, others: np.ndarray) -> np.ndarray:
        """Return which of ``others`` say the same of themselves, which is booked. Collective.

        ``labels`` are (participants, 1).
        """
        arcs = self.receive(labels, others)
        values, alike = arcs.all_rows(labels)[:, 0], np.zeros_like(others)
        same = values[arcs.receivers] == values[arcs.senders]
        alike[arcs.receivers[same], arcs.nodes[arcs.senders[same]]] = True
        return alike

    def mean_received(self, rows: Tensor, others: np.ndarray) -> Tensor:
        """Return the plain mean of each participant's row and those of ``others``. Collective.

        ``rows`` are (participants, numbers), ``others`` is as in ``receive``.
        """
        arcs = self.receive(rows, others)
        every = arcs.all_rows(rows)
        means = every[: len(rows)].copy()
        for receiver, sender in zip(arcs.receivers, arcs.senders, strict=True):
            means[receiver] += every[sender]
        means /= 1 + np.bincount(arcs.receivers, minlength=len(rows))[:, None]
        return torch.from_numpy(means).to(rows)

    def _compressed(self, rows: Tensor) -> Tensor:
        """CHOCO-Gossip: what travels is the compressed distance from the neighbours' replica."""
        size = math.prod(rows.shape[1:])
        route, part = self._route(self.mixing.routing), self.next_part(size)
        replicas, flat = self.memory.replica, rows.flatten(1)
        mix = partial(self._mixed, routing=self.mixing.routing)
        sent = self._sent(route, flat - replicas[:, part])
        step = self.mixing.consensus_step(size)
        mixed, moved = gossip_step(flat, replicas[:, part], sent, mix, step)
        replicas = replicas.clone()
        replicas[:, part] = moved
        self.memory = Replicas(replicas)
        return mixed.view(rows.shape)

    def _mixed_apart(self, rows: Tensor, routing: Routing) -> Tensor:
        """The rows of W X in memory of their own, also where nobody sends."""
        mixed = self._mixed(rows, routing)
        return mixed.clone() if mixed is rows else mixed

    def _memory_like(self, rows: Tensor) -> Tensor:
        if rows.device.type != "cpu":
            return torch.empty_like(rows)
        dtype = on_host(rows[:0]).dtype
        return torch.from_numpy(self.mixing.reused.empty(tuple(rows.shape), dtype))

    def _mixed(self, rows: Tensor, routing: Routing, step: int = 0) -> Tensor:
        """The rows of W X, equal for any ranks."""
        route, federation = self._route(routing, step), self.exchange.federation
        if not route.messages:
            return rows
        communicator, ids = federation.communicator, federation.training[route.mine]
        flat = rows.detach().flatten(1)
        check_not_diverged(communicator, [flat], ids, "update")
        mixed = self._memory_like(flat)
        for columns, arrived in arrivals(communicator, route.transfer, flat):
            route.product(flat[:, columns], arrived, mixed[:, columns])
        for shared, nodes in route.summed:
            weights, self_weight = shared_weights(shared, on_host(flat[:, :0]).dtype)
            total = weighted_sum(federation, flat, weights[route.mine], ids)
            for row in np.flatnonzero(np.isin(route.mine, nodes)).tolist():
                torch.mul(flat[row], self_weight, out=mixed[row]).add_(total)
        return mixed.view(rows.shape)
