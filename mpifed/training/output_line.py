"""One line that is replaced, in a terminal or a notebook; elsewhere a line for each text."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

# Seconds between two texts at least.
EVERY = 0.1


class RewrittenLine:
    """Shows the newest of many texts."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.rewrites = is_terminal(self._stream) or is_notebook(self._stream)
        self._text, self._width, self._shown = "", 0, -EVERY

    def show(self, text: str, keep: bool = False) -> None:
        """Show a text in place of the last one."""
        if not self.rewrites:
            if keep:
                print(text, file=self._stream, flush=True)
            return
        self._text = text
        if time.monotonic() - self._shown >= EVERY:
            self._write()

    def close(self) -> None:
        """Show the newest text, and end the line."""
        if self._text:
            self._write()
            print(file=self._stream, flush=True)
            self._text = ""

    def _write(self) -> None:
        text = self._text
        if is_terminal(self._stream):
            # A line that is longer than the terminal could not be replaced.
            text = text[: max(1, os.get_terminal_size(self._stream.fileno()).columns - 1)]
        print(f"\r{text.ljust(self._width)}", end="", file=self._stream, flush=True)
        self._width, self._shown = len(text), time.monotonic()


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal of some width."""
    try:
        return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0
    except (AttributeError, OSError, ValueError):
        return False


def is_notebook(stream: TextIO) -> bool:
    """Return whether a stream shows its text in a notebook, which obeys carriage returns."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"
