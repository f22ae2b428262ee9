"""Who is told of recorded rounds: the terminal, functions of a user, trackers."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from mpifed.command import say
from mpifed.components.registry import load
from mpifed.errors import InputError, note
from mpifed.io.atomic import replace_bytes
from mpifed.io.text import read_json
from mpifed.results.results import DIGEST
from mpifed.trackers import TrackedRun
from mpifed.tracking import TRACKERS, Sending
from mpifed.training.run_directory import Recorder
from topologies.errors import excerpt

# What trackers call the run, in the run directory; a resumed run continues it.
TRACKING_FILE = "tracking.json"

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


@dataclass(frozen=True)
class RecordedRound:
    """A round that was evaluated and recorded."""

    round: int
    row: Mapping[str, float]
    last: bool


Callback = Callable[[RecordedRound], object]


def recorded(scores: Mapping[str, Any], rounds: int) -> RecordedRound:
    """Return a row of metrics.csv as a program gets it."""
    row = {
        name: math.nan if value is None else float(value)
        for name, value in scores.items()
        if name != DIGEST
    }
    return RecordedRound(int(scores["round"]), row, int(scores["round"]) == rounds)


def callback(on_round: Any) -> Callback | None:
    """Return the function that ``on_round`` names or is."""
    if on_round is None:
        return None
    function = (
        load(on_round, "on_round") if isinstance(on_round, str) and ":" in on_round else on_round
    )
    if not callable(function):
        raise InputError(
            f"on_round is {excerpt(on_round)}; it must be a function of one argument, or its name, "
            "package.module:function"
        )
    return cast(Callback, function)


@dataclass(frozen=True)
class Listeners:
    """Who is told of recorded rounds, on rank 0."""

    function: Callback | None
    sending: Sending | None
    rounds: int

    def __call__(self, scores: Mapping[str, Any]) -> bool:
        """Tell all of a row of metrics.csv, which is empty on all ranks but rank 0.

        Returns whether the function returned True, which asks the run to stop.
        """
        if not scores:
            return False
        record = recorded(scores, self.rounds)
        if self.sending is not None:
            self.sending.row(record.round, record.row)
        answer: object = None
        if self.function is not None:
            try:
                answer = self.function(record)
            except Exception as error:
                note(error, f"on_round {getattr(self.function, '__qualname__', self.function)}")
                raise
        return isinstance(answer, (bool, np.bool_)) and bool(answer)

    def close(self, status: str) -> None:
        """Wait for a tracker, for a bounded time, after the last round."""
        if self.sending is not None:
            self.sending.close(status)


def listeners_of(
    recorder: Recorder | None,
    first: int,
    rounds: int,
    on_round: Callback | str | None,
    track: str | None,
) -> Listeners:
    """Return who is told of a run from its round ``first`` on: on rank 0, which records it."""
    if recorder is None:
        return Listeners(None, None, rounds)
    sending, directory = None, recorder.directory
    if track is not None:
        path = directory / TRACKING_FILE
        context = TrackedRun(
            directory,
            directory.resolve().name,
            recorder.configuration,
            first,
            _names_in(path).get(track),
            partial(_remember, path, track),
        )
        sending = Sending(track, partial(TRACKERS[track][0], context))
    return Listeners(callback(on_round), sending, rounds)


def _names_in(path: Path) -> dict[str, str]:
    """Return what trackers call the run."""
    return dict(read_json(path)) if path.exists() else {}


def _remember(path: Path, tracker: str, name: str) -> None:
    replace_bytes(path, (json.dumps({**_names_in(path), tracker: name}) + "\n").encode())


class Progress:
    """Prints round, scores, seconds per round and time left; on rank 0 only."""

    def __init__(
        self, first: int, last: int, quiet: bool, log: Callable[[str], None], one_line: bool = False
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
            say(line)

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
            say(self._line(number))

    def close(self) -> None:
        """End the line: with its last text where it is all that is shown."""
        if self._one_line and self._width:
            say("")
            self._width = 0
        self._clear()

    def _replace(self, text: str) -> None:
        # A line that is longer than the terminal could not be replaced.
        if width := _columns():
            text = text[: max(1, width - 1)]
        say(f"\r{text.ljust(self._width)}", end="")
        self._width, self._shown = len(text), time.monotonic()

    def _clear(self) -> None:
        if self._width:
            say(f"\r{' ' * self._width}\r", end="")
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
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes}:{remainder:02d}"
