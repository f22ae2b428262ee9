"""Standard output of a command, whose reader may have left."""

from __future__ import annotations

import io
import os
import sys


def say(text: str) -> None:
    """Print whole lines on standard output."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Send standard output nowhere: Python flushes once more at its end, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
