"""Progress of a run: a live line in a terminal, plain lines anywhere else, or one line alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

# Seconds between two texts at least.
EVERY = 0.1


class OutputLine:
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


class Progress:
    """Prints round, scores, seconds per round and time left; on rank 0 only."""

    def __init__(
        self,
        first: int,
        last: int,
        quiet: bool,
        log: Callable[[str], None],
        one_line: bool = False,
    ) -> None:
        """Start the live line where there is a terminal."""
        self._first, self._last, self._quiet, self._log = first, last, quiet, log
        self._console = Console(highlight=False, soft_wrap=True)
        self._scores: Mapping[str, Any] = {}
        self._began = time.monotonic()
        self._live: Live | None = None
        self._rewritten = OutputLine() if quiet and one_line else None
        if not quiet and _has_terminal(self._console):
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def say(self, line: str) -> None:
        """Log a line, and print it unless the run is quiet."""
        self._log(line)
        if self._live is not None:
            self._console.print(line, markup=False)
        elif not self._quiet:
            print(line, flush=True)

    def round(self, number: int) -> None:
        """Show that round ``number`` is complete."""
        if self._live is not None:
            self._live.update(Text(self._line(number), overflow="ellipsis", no_wrap=True))
        if self._rewritten is not None:
            self._rewritten.show(self._line(number))

    def scores(self, number: int, scores: Mapping[str, Any]) -> None:
        """Print the evaluation of a round."""
        self._scores = scores
        self.say(self._line(number))
        if self._rewritten is not None:
            self._rewritten.show(self._line(number), keep=True)

    def close(self) -> None:
        """End the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._rewritten is not None:
            self._rewritten.close()

    def _line(self, number: int) -> str:
        parts = [f"round {number:>{len(str(self._last))}}/{self._last}"]
        for label, column in (
            ("train loss", "train_loss"),
            ("test accuracy", "test_accuracy"),
            ("bottom decile", "test_accuracy_p10"),
            ("objective", "objective"),
            ("L2-UVP %", "l2_uvp"),
        ):
            value = self._scores.get(column)
            if value is not None:
                parts.append(f"{label} {value:.4f}")
        done = number - self._first + 1
        if done > 0:
            each = (time.monotonic() - self._began) / done
            parts.append(f"{each:.3f} s/round")
            parts.append(f"{duration(each * (self._last - number))} left")
        return "  ".join(parts)


def _has_terminal(console: Console) -> bool:
    """Return whether there is a terminal of some width; under Open MPI that of rank 0 has none."""
    if not console.is_terminal:
        return False
    try:
        return os.get_terminal_size(console.file.fileno()).columns > 0
    except (OSError, ValueError):
        return True  # not a terminal itself, but rich was set to write for one


def duration(seconds: float) -> str:
    """Return a time as minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
