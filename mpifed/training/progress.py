"""Progress of a run: a line that is replaced in a terminal or a notebook, lines anywhere else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

# Seconds between two texts at least.
EVERY = 0.1

# Columns of metrics.csv that are shown, with their labels.
SHOWN = {
    "train_loss": "train loss",
    "test_accuracy": "test accuracy",
    "test_accuracy_p10": "bottom decile",
    "objective": "objective",
    "l2_uvp": "L2-UVP %",
}


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
        self._first, self._last, self._quiet, self._log = first, last, quiet, log
        self._one_line = quiet and one_line
        self._replaces = (one_line or not quiet) and (_columns() > 0 or _in_notebook())
        self._scores: Mapping[str, Any] = {}
        self._began, self._shown = time.monotonic(), -EVERY
        self._width = 0
        """Characters of the line that is to be replaced."""

    def say(self, line: str) -> None:
        """Log a line, and print it unless the run is quiet."""
        self._log(line)
        if not self._quiet:
            self._clear()
            print(line, flush=True)

    def round(self, number: int) -> None:
        """Show that round ``number`` is complete."""
        if self._replaces and time.monotonic() - self._shown >= EVERY:
            self._replace(self._line(number))

    def scores(self, number: int, scores: Mapping[str, Any]) -> None:
        """Print the evaluation of a round."""
        self._scores = scores
        self.say(self._line(number))
        if self._one_line and self._replaces:
            self._replace(self._line(number))
        elif self._one_line:
            print(self._line(number), flush=True)

    def close(self) -> None:
        """End the line: with its last text where it is all that is shown."""
        if self._one_line and self._width:
            print(flush=True)
            self._width = 0
        self._clear()

    def _replace(self, text: str) -> None:
        # A line that is longer than the terminal could not be replaced.
        if width := _columns():
            text = text[: max(1, width - 1)]
        print(f"\r{text.ljust(self._width)}", end="", flush=True)
        self._width, self._shown = len(text), time.monotonic()

    def _clear(self) -> None:
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", flush=True)
            self._width = 0

    def _line(self, number: int) -> str:
        parts = [f"round {number:>{len(str(self._last))}}/{self._last}"]
        for column, label in SHOWN.items():
            value = self._scores.get(column)
            if value is not None:
                parts.append(f"{label} {value:.4f}")
        done = number - self._first + 1
        if done > 0:
            each = (time.monotonic() - self._began) / done
            parts.append(f"{each:.3f} s/round")
            parts.append(f"{duration(each * (self._last - number))} left")
        return "  ".join(parts)


def _columns() -> int:
    """Return the width of the terminal; 0 where there is none, as for rank 0 of Open MPI."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    except (AttributeError, OSError, ValueError):
        return 0


def _in_notebook() -> bool:
    """Return whether a notebook shows the output, which obeys carriage returns."""
    return type(sys.stdout).__module__.partition(".")[0] == "ipykernel"


def duration(seconds: float) -> str:
    """Return a time as minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
