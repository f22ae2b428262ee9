"""Signals in processes that a user's component forks from a rank, such as
``multiprocessing``'s.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from signal import SIG_BLOCK, SIG_DFL, SIG_SETMASK, pthread_sigmask


@functools.cache
def end_children_by(*held: int) -> None:
    """Let signals end processes that are forked from now on, as they end any other process."""
    before = threading.local()

    def hold() -> None:
        before.mask = pthread_sigmask(SIG_BLOCK, held)

    def release() -> None:
        pthread_sigmask(SIG_SETMASK, before.mask)

    def forget() -> None:
        for number in held:
            signal.signal(number, SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=forget)
