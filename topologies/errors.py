"""Errors of input, each in one sentence, with the value and the allowed names nearest to it."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:  # ``typing`` would cost every guard 5 ms
    from typing import Any

# Characters of a value that a message shows.
SHOWN = 200

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


class InputError(ValueError):
    """A wrong configuration or input: the field, the value given, and what is allowed."""


class RunError(RuntimeError):
    """A failure while running that the input did not cause (a full disk, a diverged client)."""


# What the functions of this package raise where a graph, a matrix or a schedule cannot be made.
TopologyError = InputError


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the allowed name that ``name`` was likely meant to be; None if none is alike.

    Of dotted names the last part alone counts as well, and any word of one: ``alpha`` is meant to
    be ``data.dirichlet_alpha``.
    """
    import difflib  # here, since every guard would import it

    names = list(names)
    full = {each.rpartition(".")[2]: each for each in reversed(names)} | {n: n for n in names}
    words = set(name.split("_"))
    within = [each for each in names if words <= set(each.rpartition(".")[2].split("_"))]
    alike = [full[end] for end in difflib.get_close_matches(name, full, 1)]
    return next(iter(alike + within), None)


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return the allowed names as the end of a message, after the one that was likely meant."""
    names = list(allowed)
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else ""
    if "," in name and {part.strip() for part in name.split(",")} <= {*names}:
        hint = f"did you mean '[{name}]', the list of a sweep? "
    return f"{hint}allowed: {', '.join(names)}"


def excerpt(value: Any) -> str:
    """Return the first 200 characters of a value's text, for a message."""
    if value is None:
        return "empty"
    try:
        return " ".join(_SHORT.repr(value).split())[:SHOWN]
    except Exception:
        # Python refuses to write out very long numbers; a user's object may raise anything.
        return f"a {type(value).__name__} that cannot be written out"
