"""Annotations of options: those that are understood, and what they allow in words.

Understood are ``int``, ``float``, ``bool``, ``str``, ``Path``, ``Literal[...]``, ``X | None``,
``list[X]``, ``Sequence[X]``, ``tuple[X, ...]``, ``dict[str, X]``, a dataclass (a mapping of its
fields), and ``Annotated[X, Ge(1)]`` with ``Ge``, ``Gt``, ``Le`` and ``Lt`` of ``annotated_types``.
"""

from __future__ import annotations

import dataclasses
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from mpifed.components.tables import LISTS
from mpifed.errors import InputError, one_line
from topologies.places import within

PLAIN = (int, float, bool, str, type(None), Any)
"""Kinds of values that are written as one word."""

PATHS = (Path, PurePath)
"""Kinds of paths, which are written as a string."""

ALLOWED = (
    "int, float, bool, str, Path, Literal[...], X | None, list[X], Sequence[X], tuple[X, ...], "
    "dict[str, X], a dataclass, and Annotated[X, Ge(1)]"
)

BOUNDS: Mapping[type, tuple[str, str]] = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "above"),
    Le: ("le", "at most"),
    Lt: ("lt", "below"),
}
"""The bounds that an annotation may have: their operator, and their words in a message."""


@dataclass(frozen=True)
class ComponentOf:
    """Annotates an option that is a component of ``kind`` itself: a name, or a mapping.

    ``kind`` is a key of ``tables.LISTS``; graphs, weights and schedules are completed by the
    component that has the option.
    """

    kind: str


def refuse_unknown(annotation: Any, where: str, component: Any) -> None:
    """Refuse an annotation that would not be checked, or that no value of a file can fit.

    Parameters
    ----------
    annotation : Any
        That of an option of a component, of a user's own or of mpifed.
    where : str
        The option; the beginning of the message.
    component : Any
        The component, whose place is told.

    Raises
    ------
    InputError
        With what is understood.
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for bound in parts[1:]:
            if type(bound) not in (*BOUNDS, ComponentOf):
                raise InputError(
                    f"{where} is annotated with {shown(bound)}, which is not understood; allowed: "
                    f"Ge, Gt, Le and Lt of annotated_types{within(component)}"
                )
        parts = parts[:1]
    elif origin is Literal or annotation in (list, dict, ComponentOf):
        return
    elif origin is tuple:
        parts = parts[:1] if parts[1:] == (...,) else parts
    elif origin in (dict, Mapping) and parts[0] is str:
        parts = parts[1:]
    elif origin is None:
        if not _is_understood(annotation) and _is_of_user(component):
            _refuse(annotation, where, component)
    elif origin not in (list, Sequence, typing.Union, types.UnionType):
        _refuse(annotation, where, component)
    for part in parts:
        refuse_unknown(part, where, component)


def _is_understood(annotation: Any) -> bool:
    return annotation in (*PLAIN, *PATHS) or dataclasses.is_dataclass(annotation)


def _is_of_user(component: Any) -> bool:
    """Return whether a component is not of mpifed, whose sections hold objects of its own."""
    made = component if hasattr(component, "__module__") else type(component)
    return str(made.__module__).partition(".")[0] not in ("mpifed", "topologies")


def _refuse(annotation: Any, where: str, component: Any) -> typing.NoReturn:
    said = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    if get_origin(annotation) is not None:
        said = str(annotation)
    raise InputError(
        f"{where} is annotated with {one_line(said, 80)}, which is not understood; allowed: "
        f"{ALLOWED}{within(component)}"
    )


def has_tuple(annotation: Any) -> bool:
    """Return whether an annotation, or a part of a union, is of a tuple.

    Examples
    --------
    >>> has_tuple(tuple[int, ...] | None), has_tuple(list[int])
    (True, False)
    """
    return get_origin(annotation) is tuple or (
        get_origin(annotation) in (typing.Union, types.UnionType, Annotated)
        and any(map(has_tuple, get_args(annotation)))
    )


def shown(value: Any) -> str:
    """Return ``value`` for a message: short, however large or deep it is."""
    if value is None:
        return "empty"
    try:
        return one_line(_SHORT.repr(value), 200)
    except Exception:
        # Python refuses to write out very long numbers; a user's object may raise anything.
        return f"a {type(value).__name__} that cannot be written out"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


def describe(annotation: Any) -> str:
    """Return ``annotation`` in the words of a message.

    Examples
    --------
    >>> describe(Annotated[int, Ge(1)] | None)
    'a whole number, at least 1, or empty (null)'
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *bounds = get_args(annotation)
        if isinstance(bounds[0], ComponentOf):
            return f"a name or a mapping: see --list {LISTS[bounds[0].kind]}"
        return ", ".join([describe(base), *map(_in_words, bounds)])
    if origin is Literal:
        return "one of " + ", ".join(_word(choice) for choice in get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        *parts, last = (describe(part) for part in get_args(annotation))
        comma = "," if any("," in part for part in parts) else ""
        return f"{', '.join(parts)}{comma} or {last}"
    if origin in (list, Sequence) or (origin is tuple and get_args(annotation)[1:] == (...,)):
        return f"a list [A,B,...] whose entries are each {describe(get_args(annotation)[0])}"
    if origin is tuple:
        each = [describe(part) for part in get_args(annotation)]
        return f"a list of {len(each)} entries: {', '.join(each)}"
    if origin in (dict, Mapping):
        return f"a mapping whose values are each {describe(get_args(annotation)[1])}"
    if dataclasses.is_dataclass(annotation):
        return "a mapping of options"
    names: dict[Any, str] = {
        Any: "made of strings, numbers, true, false, null, lists and mappings",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a string",
        Path: "a path",
        PurePath: "a path",
        list: "a list [A,B,...]",
        dict: "a mapping",
        type(None): "empty (null)",
    }
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _in_words(bound: Any) -> str:
    name, words = BOUNDS[type(bound)]
    limit = getattr(bound, name)
    return f"{words} {limit if isinstance(limit, int) else format(limit, 'g')}"


def _word(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
