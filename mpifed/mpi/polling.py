"""Looking for messages where ranks share cores: a rank that spins takes the core from another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SHORTEST_PAUSE, LONGEST_PAUSE = 1e-4, 3e-3
"""Seconds between two looks for a message."""

PATIENT_PAUSE = 2e-2
"""As ``LONGEST_PAUSE``, for a second thread while the run computes."""

LARGE, BUSY = 1 << 16, 5e-2
"""From how many bytes, and for how many seconds, a rank looks without pauses.

Each look moves a part of a large message. Late ranks are waited for in a reduction of few numbers
before it.
"""


def poll(complete: Callable[[], bool], busy: float, longest: float) -> None:
    """Call ``complete`` until it says so.

    Parameters
    ----------
    complete : callable
        Looks for messages.
    busy : float
        Seconds in which other processes may run between two looks, but this one does not sleep.
    longest : float
        The longest pause afterwards, in seconds; pauses double from ``SHORTEST_PAUSE``.
    """
    pause, until = SHORTEST_PAUSE, time.monotonic() + busy
    while not complete():
        if busy and time.monotonic() < until:
            os.sched_yield()
        else:
            time.sleep(pause)
            pause = min(2 * pause, longest)
