"""What rank 0's guard says while the ranks of a job start, which may take long on many nodes."""

from __future__ import annotations

import contextlib
import sys
import time

from mpifed.watchdog.launcher import Launch
from mpifed.watchdog.rendezvous import count_present

# Seconds before the first line, and between two lines at most.
FIRST, LONGEST = 1.3, 60.0


class Starting:
    """The lines of one start."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.began = launch, time.monotonic()
        self._next = FIRST

    def line(self, importing: bool, waiting: bool) -> str | None:
        """Return a line if one is due."""
        waited = time.monotonic() - self.began
        if waited < self._next:
            return None
        self._next = waited + min(LONGEST, max(waited, 2 * FIRST))
        place, size = "here", self.launch.here or self.launch.size
        come = count_present(self.launch)
        if size < self.launch.size:
            place = f"on this node, of {self.launch.size} in all"
        what = "one process imports torch for all ranks of this node"
        if not importing:
            what = "rank 0 waits for the others in MPI_Init" if waiting else "rank 0 imports torch"
        return f"starting: {come} of {size} ranks are {place}; {what} ({waited:.0f} s)"

    def say(self, importing: bool, waiting: bool) -> None:
        """Print the :meth:`line` that is due on standard error, which no program reads."""
        line = self.line(importing, waiting)
        if line is not None:
            with contextlib.suppress(OSError, ValueError):
                print(line, file=sys.stderr, flush=True)
