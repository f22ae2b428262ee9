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
from mpifed.sparse_rows import SparseRows

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
        return self._timed(self.channel.broadcast, shared)

    def average(self, rows: Tensor, weights: Tensor, before: Tensor) -> Tensor:
        return self._timed(self.channel.average, rows, weights, before)

    def send(self, rows: Tensor, whole: bool = False) -> Tensor:
        return self._timed(self.channel.send, rows, whole)

    def coordinates(self, size: int) -> np.ndarray | None:
        return self._timed(self.channel.coordinates, size)

    def send_chosen(self, rows: SparseRows) -> SparseRows:
        return self._timed(self.channel.send_chosen, rows)

    def sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        return self._timed(self.channel.sum, rows, weights)

    def _timed(self, verb: Callable[..., Any], *given: Any) -> Any:
        """What the verb returns. Without a context manager: a round has few verbs, but may be
        short.
        """
        began = time.perf_counter()
        try:
            return verb(*given)
        finally:
            self.clock.seconds["exchange"] += time.perf_counter() - began

    def among(self, chosen: np.ndarray) -> TimedChannel:
        return TimedChannel(self.channel.among(chosen), self.clock)

    def at_server(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        return self.channel.at_server(make)
