"""What a user's program is told while a run goes on: ``mpifed.run(..., on_round=function)``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpifed.components.registry import load, name_of
from mpifed.components.schema import shown
from mpifed.errors import InputError, RunError, in_words
from mpifed.mpi.communicator import Communicator
from mpifed.results.results import DIGEST

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
