"""Functions that runs of several ranks import and call after each recorded round."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def write(recorded) -> None:
    """Appends the round to the file that the environment names."""
    with Path(os.environ["HEARD"]).open("a") as file:
        file.write(f"{recorded.round} {recorded.row['test_accuracy']!r} {recorded.last}\n")


def fail_at_two(recorded) -> None:
    if recorded.round == 2:
        raise ValueError("the plot window was closed")


def interrupt(recorded) -> None:
    """Presses Ctrl-C in round 2, as often as the environment says."""
    for _ in range(int(os.environ["TIMES"]) if recorded.round == 2 else 0):
        os.kill(os.getpid(), signal.SIGINT)


def stop_at_two(recorded) -> bool:
    return recorded.round == 2
