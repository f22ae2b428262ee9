"""Standard output of a command, whose reader may have left."""

from __future__ import annotations

import io
import os
import sys


def say(text: str) -> None:
    """Print whole lines on standard output.

    Where the reader has closed the pipe, as ``head`` does, nothing is printed and nothing raised.

    Parameters
    ----------
    text : str
        The lines, without the last newline. Bytes of a path that are not UTF-8 are escaped.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Send standard output nowhere: Python flushes once more at its end, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
