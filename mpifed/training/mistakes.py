"""Sentences about failures in a user's own components: what was called, and where it failed."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

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

LONGEST = 240
"""Characters of what an exception says, at most."""

PACKAGE, LIBRARY = Path(__file__).parents[1], Path(os.__file__).parent
OURS = (PACKAGE, PACKAGE.parent / "topologies")

KINDS = {"data set": "data"}
"""Keys of the tables of components that are not what a class is called."""

NOT_MISTAKES = (KeyboardInterrupt, MemoryError, PeerFailure, StopRequested, InputError, Diverged)
"""What is told by itself."""


@contextmanager
def told_as_input() -> Iterator[None]:
    """Refuse what goes wrong in a user's components as bad input; all else is raised as it is.

    Raises
    ------
    InputError
        For what a component's method raises in a user's file, or returns and must not.
    """
    try:
        yield
    except NOT_MISTAKES:
        raise
    except Exception as error:
        if isinstance(error, WrongResult) or any(_is_users(frame) for frame, _ in _frames(error)):
            raise InputError(in_own_words(error)) from error
        raise


def in_own_words(error: BaseException) -> str:
    """Return why a component fails: class, method, file and line, and how mpifed calls the method.

    Parameters
    ----------
    error : BaseException
        What was raised.

    Examples
    --------
    >>> in_own_words(WrongResult("round returned None"))
    'round returned None'
    """
    if isinstance(error, WrongResult):
        return text_of(error)
    said = text_of(error) if isinstance(error, RunError) else in_words(error)
    said = one_line(said, LONGEST)
    frames = list(_frames(error))
    own = [(frame, line) for frame, line in frames if not _is_ours(frame.f_code)]
    user = [(frame, line) for frame, line in own if _is_users(frame)]
    where = _place(*user[-1]) if user else ""
    for frame, _ in own if user else frames:
        called = _called(frame)
        if called is not None:
            return f"{called[0]} raised {said}{where} (mpifed calls {called[1]})"
    name = _name(user[0][0].f_code) if user else "the first round"
    return f"{name} raised {said}{where}"


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield where an exception came through, from the outermost call on."""
    yield from traceback.walk_tb(error.__traceback__)


def _is_ours(code: CodeType) -> bool:
    return any(Path(code.co_filename).is_relative_to(folder) for folder in OURS)


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame is of a user's code: a component, or a file of no package."""
    path = Path(frame.f_code.co_filename)
    if _is_ours(frame.f_code):
        return False
    installed = {"site-packages", "dist-packages"}.intersection(path.parts)
    foreign = installed or path.is_relative_to(LIBRARY) or str(path).startswith("<")
    return not foreign or _called(frame) is not None


def _name(code: CodeType) -> str:
    """Return the name of a function, with that of its class where Python knows it."""
    return str(getattr(code, "co_qualname", code.co_name))  # new in Python 3.11


def _place(frame: FrameType, line: int) -> str:
    path = Path(frame.f_code.co_filename)
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f" in {shown}, line {line} ({_name(frame.f_code)})"


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
