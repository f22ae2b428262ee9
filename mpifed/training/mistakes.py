"""Sentences about failures in a user's own components: what was called, and where it failed."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch import nn

from mpifed.components.base import Contract
from mpifed.components.declared import call_of
from mpifed.components.own import call_of_class
from mpifed.components.results import WrongResult, defined_in
from mpifed.errors import (
    Diverged,
    InputError,
    PeerFailure,
    RunError,
    StopRequested,
    in_words,
    one_line,
    text_of,
)
from topologies.inputs import frames, is_ours, is_users, name_of, passed_at

# Characters of what an exception says, at most.
LONGEST = 240

# What Python says of a call with wrong arguments begins so.
CALL = re.compile(r"TypeError: ([\w.<>]+)\(\) ")

# Keys of the tables of components that are not what a class is called.
KINDS = {"data set": "data"}

# What is told by itself.
NOT_MISTAKES = (KeyboardInterrupt, MemoryError, PeerFailure, StopRequested, InputError, Diverged)


@contextmanager
def told_as_input() -> Iterator[None]:
    """Refuse what goes wrong in a user's components as bad input; all else is raised as it is."""
    try:
        yield
    except NOT_MISTAKES:
        raise
    except Exception as error:
        if isinstance(error, WrongResult) or _of_users(error):
            raise InputError(in_own_words(error)) from error
        raise


def with_place(error: BaseException) -> str:
    """Return what an exception says, and where in a user's files it was raised."""
    said = text_of(error) if isinstance(error, RunError) else in_words(error)
    user, where = _of_users(error), ""
    if user:
        said, remedy = _as_written(said, error, user[-1][0])
        where = f"{passed_at(*user[-1])}{remedy}"
    return f"{one_line(said, LONGEST)}{where}"


def in_own_words(error: BaseException) -> str:
    """Return why a component fails: class, method, file and line, and how mpifed calls the
    method.
    """
    if isinstance(error, WrongResult):
        return text_of(error)
    passed, user = list(frames(error)), _of_users(error)
    own = [(frame, line) for frame, line in passed if not is_ours(frame.f_code.co_filename)]
    for frame, _ in own if user else passed:
        called = _called(frame) or _forward(frame)
        if called is not None:
            return f"{called[0]} raised {with_place(error)} (mpifed calls {called[1]})"
    name = name_of(user[0][0].f_code) if user else "the first round"
    return f"{name} raised {with_place(error)}"


def in_later_round(error: BaseException) -> str:
    """Return why a round fails: as ``in_own_words`` in a user's code, else what was raised."""
    return in_own_words(error) if _of_users(error) else with_place(error)


def _of_users(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames of a user's code that an exception came through, with their lines."""
    return [each for each in frames(error) if _is_users(each[0])]


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame is of a user's code: a component, or a file of no package."""
    file = frame.f_code.co_filename
    return is_users(file) or (not is_ours(file) and _called(frame) is not None)


def _called(frame: FrameType) -> tuple[str, str] | None:
    """Return the method and how it is called, where a frame is a method of a component."""
    code = frame.f_code
    made: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if not isinstance(made, Contract):
        return None
    kind, name = made._kind, type(made).__name__
    if code.co_name == "__init__":
        return f"{kind} '{name}': __init__", call_of_class(KINDS.get(kind, kind), type(made))
    base = defined_in(type(made), code.co_name)
    if base is None:
        return None
    return f"{kind} '{name}': {code.co_name}", call_of(base, code.co_name)


def _forward(frame: FrameType) -> tuple[str, str] | None:
    """Return the method and how it is called, where a frame is ``forward`` of a user's module."""
    code = frame.f_code
    if code.co_name != "forward" or not code.co_argcount or not is_users(code.co_filename):
        return None
    made = frame.f_locals.get(code.co_varnames[0])
    if not isinstance(made, nn.Module):
        return None
    return f"model '{type(made).__name__}': forward", "forward(x) with x of shape (B, ...)"


def _as_written(said: str, error: BaseException, frame: FrameType) -> tuple[str, str]:
    """Return what an exception says in the words of the code that raised it, and the remedy."""
    if isinstance(error, AttributeError) and _is_of_mpifed(type(error.obj)):
        for name, value in _named(frame):
            if value is error.obj:
                return said.replace(f"'{type(value).__name__}' object", name, 1), ""
    match = CALL.match(said)
    if match is None:
        return said, ""
    whole, method = match[1], match[1].rpartition(".")[2]
    known = {**frame.f_globals, **frame.f_locals}.get(whole)
    if inspect.isclass(known) and _lacks_decorator(known):
        return said, f"; write @dataclasses.dataclass(frozen=True) above class {whole}"
    for name, value in _named(frame):
        function = getattr(type(value), method, None)
        if _is_of_mpifed(type(value)) and getattr(function, "__qualname__", None) == whole:
            call = name if method == "__call__" else f"{name}.{method}"
            bare = call_of(type(value), method).removeprefix(method)
            return said.replace(f"{whole}()", f"{call}()", 1), f"; write {call}{bare}"
    return said, ""


def _lacks_decorator(kind: type) -> bool:
    """Return whether a class has fields of a dataclass, and is none."""
    has_fields = any(isinstance(value, dataclasses.Field) for value in vars(kind).values())
    return has_fields and not dataclasses.is_dataclass(kind)


def _is_of_mpifed(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "mpifed"


def _named(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a frame and the attributes of its first argument, with their names."""
    yield from frame.f_locals.items()
    code = frame.f_code
    first = code.co_varnames[0] if code.co_argcount else ""
    attributes = getattr(frame.f_locals.get(first), "__dict__", {})
    yield from ((f"{first}.{name}", value) for name, value in attributes.items())
