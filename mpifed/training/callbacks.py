"""Who receives recorded rounds: ``mpifed.run(..., on_round=function)``, and a tracker."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from mpifed.components.registry import load
from mpifed.components.schema import shown
from mpifed.config.configuration import to_mapping
from mpifed.errors import InputError, note
from mpifed.io.atomic import replace_bytes
from mpifed.io.text import read_json
from mpifed.results.results import DIGEST
from mpifed.tracking import TRACKERS, About, Sending
from mpifed.training.build import Setup
from mpifed.training.request import Request, Task


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


def callback(given: Any) -> Callback | None:
    """Return the function that ``on_round`` names or is."""
    if given is None:
        return None
    function = load(given, "on_round") if isinstance(given, str) and ":" in given else given
    if not callable(function):
        raise InputError(
            f"on_round is {shown(given)}; it must be a function of one argument, or its name, "
            "package.module:function"
        )
    return cast(Callback, function)


# What trackers call the run, in the run directory; a resumed run continues it.
FILE = "tracking.json"


@dataclass(frozen=True)
class Listeners:
    """Who is told of recorded rounds, on rank 0."""

    function: Callback | None
    sending: Sending | None
    rounds: int

    def __call__(self, scores: Mapping[str, Any]) -> None:
        """Tell all of a row of metrics.csv, which is empty on all ranks but rank 0."""
        if not scores:
            return
        heard = recorded(scores, self.rounds)
        if self.sending is not None:
            self.sending.row(heard.round, heard.row)
        if self.function is not None:
            try:
                self.function(heard)
            except Exception as error:
                note(error, f"on_round {getattr(self.function, '__qualname__', self.function)}")
                raise

    def close(self, status: str) -> None:
        """Wait for a tracker, for a bounded time, after the last round."""
        if self.sending is not None:
            self.sending.close(status)


def listeners_of(setup: Setup, task: Task, request: Request, round: int) -> Listeners:
    """Return who is told of a run."""
    configuration, sending = setup.configuration, None
    first = setup.federation.communicator.rank == 0
    if first and request.track is not None:
        path = task.output / FILE
        about = About(
            task.output,
            task.output.resolve().name,
            to_mapping(configuration),
            round + 1 if task.point is not None else 0,
            _known(path).get(request.track),
            partial(_remember, path, request.track),
        )
        sending = Sending(request.track, partial(TRACKERS[request.track][0], about))
    return Listeners(callback(request.on_round) if first else None, sending, configuration.rounds)


def _known(path: Path) -> dict[str, str]:
    """Return what trackers call the run."""
    return dict(read_json(path)) if path.exists() else {}


def _remember(path: Path, tracker: str, name: str) -> None:
    replace_bytes(path, (json.dumps({**_known(path), tracker: name}) + "\n").encode())
