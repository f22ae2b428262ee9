"""One round of gossip: rows mixed by W^k, plainly, corrected, or by CHOCO-Gossip if compressed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.components.results import checked_result
from mpifed.exchange.base import Channel
from mpifed.exchange.choco import contracted, gossip_step
from mpifed.exchange.compression import Compressor
from mpifed.exchange.corrections import Correction, Kept, Neighbours
from mpifed.exchange.corrections.base import checked_step
from mpifed.exchange.ledger import Ledger, bits_of
from mpifed.exchange.nearby import nearby
from mpifed.exchange.reduction import common_exponents
from mpifed.exchange.routes import Route
from mpifed.exchange.routing import Routing
from mpifed.exchange.transfer import arrivals
from mpifed.federation.clients import Draws, Federation
from mpifed.staging import host_memory, on_host
from mpifed.state import Nothing, client


@dataclass(frozen=True)
class Replicas:
    """The replicas of the clients' values that their neighbours hold (CHOCO-Gossip).

    Attributes
    ----------
    replica : Tensor
        (clients, numbers), one row per client; the shared values of a round one after another.
    """

    replica: Tensor = client()


@dataclass(frozen=True)
class CompressedMessages:
    """How the messages of gossip are compressed.

    Attributes
    ----------
    compressor : Compressor
        What messages go through.
    seed : int
        The seed of its draws.
    step : callable
        Maps the size of a message to the step size gamma of CHOCO-Gossip.
    """

    compressor: Compressor
    seed: int
    step: Callable[[int], float]


@dataclass
class GossipChannel(Channel):
    """The neighbours of one round.

    Attributes
    ----------
    federation : Federation
        Its training clients are the nodes.
    routing : Routing
        Gives W^k and how its rows move.
    ledger : Ledger
        Where messages are booked.
    messages : CompressedMessages, Correction or None
        How messages are compressed or corrected; None where they are sent whole and mixed plainly.
    round : int
        k, counted from 1.
    active : ndarray
        Who takes part, bool (n_clients,).
    memory : Replicas, Kept or Nothing
        What the messages of this round leave behind.
    """

    federation: Federation
    routing: Routing
    ledger: Ledger
    messages: CompressedMessages | Correction | None
    round: int
    active: np.ndarray
    memory: Any = field(default_factory=Nothing)
    _sent: int = 0
    """Messages of this round so far."""
    _place: int = 0
    """Numbers of the memory that they have used."""

    @property
    def shared_is_rows(self) -> bool:
        return True

    @property
    def compressor(self) -> Compressor | None:
        return self.messages.compressor if isinstance(self.messages, CompressedMessages) else None

    def broadcast(self, shared: Tensor) -> Tensor:
        return shared

    def average(self, rows: Tensor, weights: Tensor, before: Tensor, whole: float = 1.0) -> Tensor:
        if isinstance(self.messages, Correction):
            return self._corrected(rows, before, self.messages)
        if self.messages is not None:
            return self._compressed(rows, self.messages)
        self._book_whole(rows, math.prod(rows.shape[1:]))
        return self._mixed(rows)

    def _route(self, rows: Tensor, routing: Routing | None = None) -> Route:
        routing = routing or self.routing
        return routing.route(self.round, self.active, rows.element_size())

    def _book(self, bits: int, floats: int) -> None:
        """What goes up an edge comes down it."""
        self.ledger.up_bits += bits
        self.ledger.down_bits += bits
        self.ledger.up_floats += floats

    def _book_whole(self, rows: Tensor, numbers: int, routing: Routing | None = None) -> None:
        """Messages of ``numbers`` numbers of the type of ``rows``."""
        messages = self._route(rows, routing).messages
        self._book(messages * bits_of(torch.Size([numbers]), rows.dtype), messages * numbers)

    def _corrected(self, rows: Tensor, before: Tensor, correction: Correction) -> Tensor:
        """The correction sees the update that the method has made."""
        size, route = math.prod(rows.shape[1:]), self._route(rows)
        part = slice(self._place, self._place + correction.width(size))
        self._place = part.stop
        self._book_whole(rows, correction.numbers(size))
        around = partial(nearby, self.federation.communicator, route)
        neighbours = Neighbours(
            self._mixed_apart, self._mixed_within, route.sparse, route.mine, around
        )
        kept, x = self.memory.corrections, before.flatten(1)
        own = kept[:, part]
        made = correction.step(x, rows.flatten(1), own, neighbours)
        after, found = checked_step(correction, made, x, own)
        if part == slice(0, kept.shape[1]):
            self.memory = Kept(found)
        else:
            kept = kept.clone()
            kept[:, part] = found
            self.memory = Kept(kept)
        return after.view(rows.shape)

    def _compressed(self, rows: Tensor, messages: CompressedMessages) -> Tensor:
        """CHOCO-Gossip: what travels is the compressed distance from the neighbours' replica."""
        compressor, size = messages.compressor, math.prod(rows.shape[1:])
        draws, purpose = Draws(messages.seed, self.round), f"compression {self._sent}"
        part = slice(self._place, self._place + size)
        self._sent, self._place = self._sent + 1, part.stop
        route, training = self._route(rows), self.federation.training
        bits = compressor.bits(size, rows.element_size(), draws, training, purpose)
        floats = compressor.floats(size, draws, training, purpose)
        bits = checked_result(compressor, "bits", bits, training)
        floats = checked_result(compressor, "floats", floats, training)
        self._book(int(bits @ route.receivers), int(floats @ route.receivers))
        replicas, flat = self.memory.replica, rows.flatten(1)
        sent = contracted(
            compressor, flat - replicas[:, part], draws, training[route.mine], purpose
        )
        mixed, moved = gossip_step(flat, replicas[:, part], sent, self._mixed, messages.step(size))
        replicas = replicas.clone()
        replicas[:, part] = moved
        self.memory = Replicas(replicas)
        return mixed.view(rows.shape)

    def _mixed_apart(self, rows: Tensor, routing: Routing | None = None) -> Tensor:
        """The rows of W X in memory of their own, also where nobody sends."""
        mixed = self._mixed(rows, routing)
        return mixed.clone() if mixed is rows else mixed

    def _mixed_within(self, rows: Tensor) -> Tensor:
        self._book_whole(rows, rows.shape[1], self.routing.within)
        return self._mixed_apart(rows, self.routing.within)

    def _mixed(self, rows: Tensor, routing: Routing | None = None) -> Tensor:
        """The rows of W X, exactly, and equal for any ranks."""
        routing = routing or self.routing
        route, communicator = self._route(rows, routing), self.federation.communicator
        if not route.messages:
            return rows
        ids = self.federation.training[route.mine]
        (exponent,) = common_exponents(communicator, [rows.flatten(1)], ids, "update")
        flat = np.ascontiguousarray(on_host(rows.flatten(1)))
        made = host_memory(rows.flatten(1))
        mixed = made.numpy()
        neighbourhood = routing.neighbourhood(route)
        for arrival in arrivals(communicator, route, neighbourhood, flat, exponent):
            mine, target = flat[:, arrival.columns], mixed[:, arrival.columns]
            route.mix(mine, arrival.rows, exponent, target, arrival.sums)
        mixed[~route.linked] = flat[~route.linked]
        return made.view(rows.shape).to(rows.device)
