"""Wall seconds by phase, and a channel that measures its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpifed.exchange.base import Channel, ServerChannel
from mpifed.exchange.forwarding import Forwarding, ServerForwarding

PHASES = ("startup", "data", "local", "exchange", "evaluation", "checkpoint", "total")


@dataclass
class Clock:
    """Wall seconds by phase on this rank, over all parts of a run that was resumed."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the seconds of the block to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - began


def timed(channel: Channel, clock: Clock) -> Channel:
    """Return a channel whose methods add their time to the phase ``exchange``."""
    if isinstance(channel, ServerChannel):
        return TimedServerChannel(channel, clock)
    return TimedChannel(channel, clock)


class TimedChannel(Forwarding):
    """A channel whose methods add their time to the phase ``exchange``; see ``timed``."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        super().__init__(channel)
        self.clock = clock

    def _call(self, verb: Callable[..., Any], *given: Any) -> Any:
        """Call a method and measure it, without a context manager, whose overhead counts in short
        rounds.
        """
        began = time.perf_counter()
        try:
            return verb(*given)
        finally:
            self.clock.seconds["exchange"] += time.perf_counter() - began


class TimedServerChannel(TimedChannel, ServerForwarding):
    """A channel to a server; work at the server is not counted as ``exchange``."""

    def __init__(self, channel: ServerChannel, clock: Clock) -> None:
        ServerForwarding.__init__(self, channel)
        self.clock = clock

    def among(self, chosen: np.ndarray) -> TimedServerChannel:
        return TimedServerChannel(self.server.among(chosen), self.clock)
