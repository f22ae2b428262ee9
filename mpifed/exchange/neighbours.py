"""One round of gossip: rows mixed by W^k, or by CHOCO-Gossip where messages are compressed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.choco import contracted, gossip_step
from mpifed.exchange.compression import Compressor
from mpifed.exchange.ledger import bits_of
from mpifed.exchange.reduction import common_exponents
from mpifed.exchange.transfer import arrivals
from mpifed.federation.clients import Draws
from mpifed.state import Nothing, client

if TYPE_CHECKING:
    from mpifed.exchange.gossip import Gossip


@dataclass(frozen=True)
class Replicas:
    """What a client's neighbours believe of what it mixes, (clients, numbers)."""

    replica: Tensor = client()


@dataclass
class GossipChannel:
    """The neighbours of one round."""

    gossip: Gossip
    round: int
    active: np.ndarray
    memory: Any = field(default_factory=Nothing)
    _sent: int = 0
    """Messages of this round so far."""
    _place: int = 0
    """Numbers of the memory that they have used."""
    shared_is_rows = True

    @property
    def compressor(self) -> Compressor | None:
        return self.gossip.compressor

    def broadcast(self, shared: Tensor) -> Tensor:
        return shared

    def average(self, rows: Tensor, weights: Tensor, before: Tensor) -> Tensor:
        if self.compressor is not None:
            return self._compressed(rows, self.compressor)
        route = self.gossip.route(self.round, self.active, rows.element_size())
        size = math.prod(rows.shape[1:])
        self._book(route.messages * bits_of(rows.shape[1:], rows.dtype), route.messages * size)
        return self._mixed(rows)

    def _book(self, bits: int, floats: int) -> None:
        """What goes up an edge comes down it."""
        ledger = self.gossip.ledger
        ledger.up_bits += bits
        ledger.down_bits += bits
        ledger.up_floats += floats

    def _compressed(self, rows: Tensor, compressor: Compressor) -> Tensor:
        """CHOCO-Gossip: what travels is the compressed distance from the neighbours' replica."""
        gossip, size = self.gossip, math.prod(rows.shape[1:])
        draws, purpose = Draws(gossip.seed, self.round), f"compression {self._sent}"
        part = slice(self._place, self._place + size)
        self._sent, self._place = self._sent + 1, part.stop
        route = gossip.route(self.round, self.active, rows.element_size())
        training = gossip.federation.training
        bits = compressor.bits(size, rows.element_size(), draws, training, purpose)
        floats = compressor.floats(size, draws, training, purpose)
        self._book(int(bits @ route.receivers), int(floats @ route.receivers))
        replicas, flat = self.memory.replica, rows.flatten(1)
        sent = contracted(
            compressor, flat - replicas[:, part], draws, training[route.mine], purpose
        )
        mixed, moved = gossip_step(
            flat, replicas[:, part], sent, self._mixed, gossip.choco_step(size)
        )
        replicas = replicas.clone()
        replicas[:, part] = moved
        self.memory = Replicas(replicas)
        return mixed.view(rows.shape)

    def _mixed(self, rows: Tensor) -> Tensor:
        """The rows of W X, exactly, and equal for any ranks."""
        gossip, communicator = self.gossip, self.gossip.federation.communicator
        route = gossip.route(self.round, self.active, rows.element_size())
        if not route.messages:
            return rows
        ids = gossip.federation.training[route.mine]
        (exponent,) = common_exponents(communicator, [rows.flatten(1)], ids, "update")
        flat = np.ascontiguousarray(rows.detach().cpu().flatten(1).numpy())
        mixed = np.empty_like(flat)
        neighbourhood = gossip.neighbourhood(route)
        for arrival in arrivals(communicator, route, neighbourhood, flat, exponent):
            mine, target = flat[:, arrival.columns], mixed[:, arrival.columns]
            route.mix(mine, arrival.rows, exponent, target, arrival.sums)
        mixed[~route.linked] = flat[~route.linked]
        return torch.from_numpy(mixed).view(rows.shape).to(rows)
