"""What the command prints: whole lines to whoever still reads, one line of what is wrong."""

from __future__ import annotations

import io
import os
import sys

LONGEST = 500
"""Characters of a message."""


def say(text: str) -> None:
    """Print ``text``; where the reader has left, as ``head`` does, the work is done in silence."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may be no UTF-8
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(error: Exception) -> None:
    """Print what is wrong on standard error."""
    print(one_line(f"mpifed.jobs: {error}"), file=sys.stderr)


def one_line(text: str) -> str:
    r"""Return ``text`` as one printable line of at most ``LONGEST`` characters.

    >>> one_line("round 3\n\x1b[31mkilled")
    'round 3 ?[31mkilled'
    """
    words = " ".join(text[: 2 * LONGEST].split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 3]}..."
