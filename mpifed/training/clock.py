"""Wall seconds by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
