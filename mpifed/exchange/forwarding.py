"""Channels that pass on to another one, for those that change a few of its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from mpifed.exchange.base import Channel, ServerChannel
from mpifed.exchange.compression import Compressor
from mpifed.exchange.reduction import SparseRows


class Forwarding(Channel):
    """A channel that does what ``channel`` does; subclasses override methods, or ``_call``."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def _call(self, verb: Callable[..., Any], *given: Any) -> Any:
        return verb(*given)

    @property
    def shared_is_rows(self) -> bool:
        return self.channel.shared_is_rows

    @property
    def compressor(self) -> Compressor | None:
        return self.channel.compressor

    @property
    def memory(self) -> Any:
        return self.channel.memory

    def broadcast(self, shared: Tensor) -> Tensor:
        return self._call(self.channel.broadcast, shared)

    def average(self, rows: Tensor, weights: Tensor, before: Tensor, whole: float = 1.0) -> Tensor:
        return self._call(self.channel.average, rows, weights, before, whole)


class ServerForwarding(Forwarding, ServerChannel):
    """The same of a channel to a server; ``among`` is left to subclasses."""

    def __init__(self, channel: ServerChannel) -> None:
        super().__init__(channel)
        self.server = channel

    def send(self, rows: Tensor, whole: bool = False) -> Tensor:
        return self._call(self.server.send, rows, whole)

    def coordinates(self, size: int) -> np.ndarray | None:
        return self._call(self.server.coordinates, size)

    def send_chosen(self, rows: SparseRows) -> SparseRows:
        return self._call(self.server.send_chosen, rows)

    def sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        return self._call(self.server.sum, rows, weights)

    def mean(self, rows: Tensor, weights: Tensor, whole: float = 1.0) -> Tensor:
        return self._call(self.server.mean, rows, weights, whole)

    def deliver(self, rows: Tensor) -> Tensor:
        return self._call(self.server.deliver, rows)

    def collect(self, values: Tensor) -> np.ndarray:
        return self._call(self.server.collect, values)

    def products(self, rows: Tensor) -> Tensor:
        return self._call(self.server.products, rows)

    def at_server(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        return self.server.at_server(make)
