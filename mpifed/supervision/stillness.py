"""Whether a rank stands still, from its signs of life and the time that passes between them."""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.supervision.exit import PATIENCE
from mpifed.supervision.heartbeat import STALL_LIMIT, Signs

STOPPED = 5.0
"""Seconds that a rank may be stopped (SIGSTOP) while its guard is not."""

WAITING = 60.0
"""Seconds that a rank which waits for others has on top of the limit of one that computes."""


@dataclass
class Stillness:
    """What a guard has seen of its rank.

    Attributes
    ----------
    limit : float or None
        Seconds without a step forward that are a fault; None for never.
    ending : bool
        Whether the run is over. What a component does at the exit shows no steps, and has a limit
        of its own.
    stopped : bool
        Whether the process is stopped.
    """

    limit: float | None = STALL_LIMIT
    ending: bool = False
    stopped: bool = False
    _stopped_for: float = 0.0
    _still_for: float = 0.0
    _seen: tuple[int, bool, bool] = (-1, False, False)

    def fault(self, signs: Signs, passed: float) -> str | None:
        """What is wrong after ``passed`` seconds more, in words; None if nothing is."""
        self._stopped_for = self._stopped_for + passed if self.stopped else 0.0
        if self._stopped_for > STOPPED:
            return f"the process has been stopped for {STOPPED:.0f} s"
        seen = (signs.steps, signs.waiting, self.ending)
        self._still_for = self._still_for + passed if seen == self._seen else passed
        self._seen = seen
        if self.limit is None:
            return None
        limit = max(self.limit, 2 * PATIENCE) if self.ending else self.limit
        if signs.waiting and self._still_for > limit + WAITING:
            return f"no other rank answered for {self._still_for:.0f} s"
        if not signs.waiting and self._still_for > limit:
            return f"no step forward for {self._still_for:.0f} s (stall_limit)"
        return None
