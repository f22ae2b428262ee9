"""Where a user's own code is: the file and the line of a definition, and of what it raised."""

from __future__ import annotations

import functools
import inspect
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# The folders of the packages that call a user's code, which lie side by side.
OURS = tuple(Path(__file__).parents[1] / name for name in ("topologies", "mpifed"))

LIBRARY = Path(os.__file__).parent
INSTALLED = {"site-packages", "dist-packages"}


def is_ours(file: str) -> bool:
    """Return whether a file belongs to the packages that call a user's code."""
    return any(Path(file).is_relative_to(folder) for folder in OURS)


def is_users(file: str) -> bool:
    """Return whether a file is a user's: of no package that is installed, nor of Python's own."""
    path = Path(file)
    foreign = INSTALLED.intersection(path.parts) or path.is_relative_to(LIBRARY)
    return not (foreign or file.startswith("<") or is_ours(file))


def place(file: str, line: int) -> str:
    """Return a file, as seen from the working directory, and a line of it."""
    path, here = Path(file), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}, line {line}"


def defined_at(made: Any) -> str:
    """Return where a user's function, method or class is defined."""
    while isinstance(made, functools.partial):
        made = made.func
    made = inspect.unwrap(made) if callable(made) else made
    code = getattr(getattr(made, "__func__", made), "__code__", None)
    if isinstance(code, CodeType):
        return place(code.co_filename, code.co_firstlineno) if is_users(code.co_filename) else ""
    if not inspect.isclass(made):
        return ""
    try:
        file = inspect.getfile(made)
        if not is_users(file):
            return ""
        return place(file, inspect.getsourcelines(made)[1])
    except (OSError, TypeError):  # of a module without a file, as in a notebook
        return ""


def within(made: Any) -> str:
    """Return ``defined_at`` as the end of a sentence; empty where there is no such place."""
    where = defined_at(made)
    return f" (in {where})" if where else ""


def frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield where an exception came through, from the outermost call on."""
    yield from traceback.walk_tb(error.__traceback__)


def name_of(code: CodeType) -> str:
    """Return the name of a function, with that of its class where Python knows it."""
    return str(getattr(code, "co_qualname", code.co_name))  # new in Python 3.11


def passed_at(frame: FrameType, line: int) -> str:
    """Return a place that an exception came through, as the continuation of a sentence."""
    name = name_of(frame.f_code)
    function = f" ({name})" if name != "<module>" else ""
    return f" in {place(frame.f_code.co_filename, line)}{function}"


def raised_at(error: BaseException) -> str:
    """Return the last place in a user's files that an exception came through."""
    users = [each for each in frames(error) if is_users(each[0].f_code.co_filename)]
    return passed_at(*users[-1]) if users else ""
