"""Who receives recorded rounds: ``mpifed.run(..., on_round=function)``, and a tracker."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mpifed.components.registry import load, name_of
from mpifed.components.schema import shown
from mpifed.config.configuration import to_mapping
from mpifed.errors import InputError, RunError, in_words
from mpifed.io.atomic import replace_bytes
from mpifed.io.text import damaged, read_json
from mpifed.mpi.communicator import Communicator
from mpifed.results.results import DIGEST
from mpifed.tracking import TRACKERS, About, Sending
from mpifed.training.build import Setup
from mpifed.training.request import Request, Task

FORM = "def function(recorded): ..."


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
            f"on_round is {shown(given)}; it must be a function of one argument, {FORM}, or its "
            "name, package.module:function"
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise InputError(
            f"on_round is {called(function)}, which cannot be called with one argument: {error}; "
            f"it must be {FORM}"
        ) from None
    except ValueError:
        pass  # some functions in C do not say what they take
    return function


def called(function: Any) -> str:
    """Return the name of a function, for messages."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"'{getattr(function, '__module__', None)}:{name}'"


def importable_name(given: Any) -> str:
    """Return the name by which ranks of their own can import what ``on_round`` is."""
    function = callback(given)
    if isinstance(given, str):
        return given
    instead = "put the function at the top level of a file that can be imported, or leave ranks out"
    try:
        name = name_of(function, "on_round")
    except InputError:
        raise InputError(
            f"on_round is {called(function)}, which ranks of their own cannot import; {instead}"
        ) from None
    if name.startswith("__main__:"):
        raise InputError(
            f"on_round is '{name}', which ranks of their own cannot import from this program; "
            f"{instead}"
        )
    return name


def telling(
    communicator: Communicator, function: Callback | None
) -> Callable[[RecordedRound | None], None]:
    """Return what calls a function on rank 0, and fails on all ranks where it does; collective."""
    if not communicator.broadcast_object(function is not None):
        return lambda heard: None

    def tell(heard: RecordedRound | None) -> None:
        failure = None
        if heard is not None and function is not None:
            try:
                function(heard)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a user's function may raise anything
                failure = f"on_round, {called(function)}, raised {in_words(error)}"
        failure = communicator.broadcast_object(failure)
        if failure is not None:
            raise RunError(f"{failure} (MPIFED_DEBUG=1 shows the traceback)")

    return tell


# What trackers call the run, in the run directory; a resumed run continues it.
FILE = "tracking.json"

NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True)
class Listeners:
    """Who is told of recorded rounds; all methods are collective."""

    tell: Callable[[RecordedRound | None], None]
    sending: Sending | None
    rounds: int

    def __call__(self, scores: Mapping[str, Any]) -> None:
        """Tell all of a row of metrics.csv, which is empty on all ranks but rank 0."""
        heard = recorded(scores, self.rounds) if scores else None
        if heard is not None and self.sending is not None:
            self.sending.row(heard.round, heard.row)
        self.tell(heard)

    def close(self, status: str) -> None:
        """Wait for a tracker, for a bounded time, after the last round."""
        if self.sending is not None:
            self.sending.close(status)


def listeners_of(setup: Setup, task: Task, request: Request, round: int) -> Listeners:
    """Return who is told of a run; collective."""
    communicator, configuration = setup.federation.communicator, setup.configuration
    first = communicator.rank == 0
    tell = telling(communicator, callback(request.on_round) if first else None)
    sending = None
    if first and request.track is not None:
        about = About(
            task.output,
            task.output.resolve().name,
            to_mapping(configuration),
            round + 1 if task.point is not None else 0,
            _known(task.output / FILE).get(request.track),
            partial(_remember, task.output / FILE, request.track),
        )
        sending = Sending(request.track, partial(TRACKERS[request.track][0], about))
    return Listeners(tell, sending, configuration.rounds)


def _known(path: Path) -> dict[str, str]:
    """Return what trackers call the run; nothing, with a warning, for a damaged file."""
    if not path.exists():
        return {}
    try:
        found = read_json(path)
        if not isinstance(found, dict) or not all(
            name in TRACKERS and isinstance(value, str) and NAME.fullmatch(value)
            for name, value in found.items()
        ):
            raise damaged(path, "it does not hold names of runs by tracker")
        return found
    except InputError as error:
        logging.getLogger("mpifed").warning(f"{error}; the tracker begins a new run")
        return {}


def _remember(path: Path, tracker: str, name: str) -> None:
    import json

    with contextlib.suppress(InputError):
        found = {**_known(path), tracker: name}
        replace_bytes(path, (json.dumps(found) + "\n").encode())
