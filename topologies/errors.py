"""Errors of input, each in one sentence, and the allowed names that are nearest to a wrong one."""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """A wrong configuration or input: the field, the value given, and what is allowed."""


class RunError(RuntimeError):
    """A failure while running that the input did not cause (a full disk, a diverged client)."""


# What the functions of this package raise where a graph, a matrix or a schedule cannot be made.
TopologyError = InputError


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the allowed name that ``name`` was likely meant to be; None if none is alike."""
    import difflib  # here, since every guard would import it

    return next(iter(difflib.get_close_matches(name, list(names), 1)), None)


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return the allowed names as the end of a message, after the one that was likely meant."""
    names = list(allowed)
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else ""
    return f"{hint}allowed: {', '.join(names)}"
