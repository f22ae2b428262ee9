"""Wall seconds by phase, and a channel that books its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from mpifed.exchange.base import Channel

PHASES = ("startup", "data", "local", "exchange", "evaluation", "checkpoint", "total")


@dataclass
class Clock:
    """Wall seconds by phase, on this rank, of this run and of the parts it resumes."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - began


@dataclass(frozen=True)
class TimedChannel:
    """A channel whose verbs count as ``exchange``."""

    channel: Channel
    clock: Clock

    @property
    def shared_is_rows(self) -> bool:
        return self.channel.shared_is_rows

    @property
    def compressor(self) -> Any:
        return self.channel.compressor

    @property
    def memory(self) -> Any:
        return self.channel.memory

    def broadcast(self, shared: Tensor) -> Tensor:
        with self.clock.measure("exchange"):
            return self.channel.broadcast(shared)

    def average(self, rows: Tensor, weights: Tensor, before: Tensor) -> Tensor:
        with self.clock.measure("exchange"):
            return self.channel.average(rows, weights, before)

    def send(self, rows: Tensor, whole: bool = False) -> Tensor:
        with self.clock.measure("exchange"):
            return self.channel.send(rows, whole)

    def sum(self, rows: Tensor, weights: Tensor) -> Tensor:
        with self.clock.measure("exchange"):
            return self.channel.sum(rows, weights)

    def among(self, chosen: np.ndarray) -> TimedChannel:
        return TimedChannel(self.channel.among(chosen), self.clock)

    def at_server(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        return self.channel.at_server(make)
