"""Detection of a rank that makes no progress, from its signs of life and the time between them."""

from __future__ import annotations

from mpifed.watchdog.exit import PATIENCE
from mpifed.watchdog.heartbeat import STALL_LIMIT, Signs

# Seconds that a rank may be stopped (SIGSTOP) while its guard is not.
STOPPED = 5.0

# Seconds that a rank which waits for others has on top of the limit of one that computes.
WAITING = 60.0


class Stillness:
    """How long a rank has made no progress."""

    def __init__(self, limit: float | None = STALL_LIMIT, ending: bool = False) -> None:
        self.limit, self.ending, self.stopped = limit, ending, False
        self._stopped_for = self._still_for = 0.0
        self._seen = (-1, False, False)

    def fault(self, signs: Signs, passed: float) -> str | None:
        """Add the time that has passed and decide whether there is a fault."""
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
