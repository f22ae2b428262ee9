"""Looking for messages where ranks share cores: a rank that spins takes the core from another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

# Seconds between two looks for a message.
SHORTEST_PAUSE, LONGEST_PAUSE = 1e-4, 3e-3

# As ``LONGEST_PAUSE``, for a second thread while the run computes.
PATIENT_PAUSE = 2e-2

# From how many bytes, and for how many seconds, a rank looks without pauses.
LARGE, BUSY = 1 << 16, 5e-2


def poll(complete: Callable[[], bool], busy: float, longest: float) -> None:
    """Call ``complete`` until it says so."""
    pause, until = SHORTEST_PAUSE, time.monotonic() + busy
    while not complete():
        if busy and time.monotonic() < until:
            os.sched_yield()
        else:
            time.sleep(pause)
            pause = min(2 * pause, longest)
