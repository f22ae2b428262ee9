"""Wall seconds by phase, and a channel that measures its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from mpifed.exchange.base import Channel, ServerChannel
from mpifed.exchange.compression import Compressor
from mpifed.sparse_rows import SparseRows

PHASES = ("startup", "data", "local", "exchange", "evaluation", "checkpoint", "total")


@dataclass
class Clock:
    """Wall seconds by phase on this rank, over all parts of a run that was resumed.

    Attributes
    ----------
    seconds : dict of str to float
        Seconds of each of ``PHASES``.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the seconds of the block to a phase.

        Parameters
        ----------
        phase : str
            One of ``PHASES``.

        Examples
        --------
        >>> clock = Clock()
        >>> with clock.measure("data"):
        ...     _ = sum(range(1000))
        >>> clock.seconds["data"] > 0, clock.seconds["local"]
        (True, 0.0)
        """
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - began


def timed(channel: Channel, clock: Clock) -> Channel:
    """Return a channel whose methods add their time to the phase ``exchange``.

    Parameters
    ----------
    channel : Channel
        The channel of a round.
    clock : Clock
        Where seconds are added.

    Returns
    -------
    Channel
        A ``ServerChannel`` if ``channel`` is one.
    """
    if isinstance(channel, ServerChannel):
        return TimedServerChannel(channel, clock)
    return TimedChannel(channel, clock)


class TimedChannel(Channel):
    """A channel whose methods add their time to the phase ``exchange``; see ``timed``."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self.channel, self.clock = channel, clock

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
        return self._timed(self.channel.broadcast, shared)

    def average(self, rows: Tensor, weights: Tensor, before: Tensor, whole: float = 1.0) -> Tensor:
        return self._timed(self.channel.average, rows, weights, before, whole)

    def _timed(self, verb: Callable[..., Any], *given: Any) -> Any:
        """Call a method and measure it, without a context manager, whose overhead counts in short
        rounds.
        """
        began = time.perf_counter()
        try:
            return verb(*given)
        finally:
            self.clock.seconds["exchange"] += time.perf_counter() - began


class TimedServerChannel(TimedChannel, ServerChannel):
    """A channel to a server; work at the server is not counted as ``exchange``."""

    def __init__(self, channel: ServerChannel, clock: Clock) -> None:
        super().__init__(channel, clock)
        self.server = channel

    def send(self, rows: Tensor, whole: bool = False) -> Tensor:
        return self._timed(self.server.send, rows, whole)

    def coordinates(self, size: int) -> np.ndarray | None:
        return self._timed(self.server.coordinates, size)

    def send_chosen(self, rows: SparseRows) -> SparseRows:
        return self._timed(self.server.send_chosen, rows)

    def sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        return self._timed(self.server.sum, rows, weights)

    def mean(self, rows: Tensor, weights: Tensor, whole: float = 1.0) -> Tensor:
        return self._timed(self.server.mean, rows, weights, whole)

    def deliver(self, rows: Tensor) -> Tensor:
        return self._timed(self.server.deliver, rows)

    def collect(self, values: Tensor) -> np.ndarray:
        return self._timed(self.server.collect, values)

    def products(self, rows: Tensor) -> Tensor:
        return self._timed(self.server.products, rows)

    def among(self, chosen: np.ndarray) -> TimedServerChannel:
        return TimedServerChannel(self.server.among(chosen), self.clock)

    def at_server(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        return self.server.at_server(make)
