"""Options read from signatures: keyword-only parameters, and in words what they may be."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NewType, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from topologies.docstrings import summaries

UNIONS = (typing.Union, types.UnionType)

# The largest whole number of an option: arrays of counts are int64.
LARGEST = 2**63 - 1

# The bounds that an annotation may have: their attribute, and their words in a message.
BOUNDS: Mapping[type, tuple[str, str]] = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "above"),
    Le: ("le", "at most"),
    Lt: ("lt", "below"),
}

# A path that stays the text it is.
FileName = NewType("FileName", str)

NAMES: Mapping[Any, str] = {
    Any: "made of strings, numbers, true, false, null, lists and mappings",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
    PurePath: "a path",
    FileName: "the path of a file",
    list: "a list [A,B,...]",
    dict: "a mapping",
    type(None): "empty (null)",
}


@dataclass(frozen=True)
class ComponentOf:
    """Annotates an option that is a component of ``kind`` itself: a name, or a mapping."""

    kind: str


@dataclass(frozen=True)
class Parameter:
    """An option: a keyword-only parameter of a function or a class.

    Attributes
    ----------
    name : str
        Its name.
    annotation : Any
        What its values may be.
    default : Any
        Its default; ``inspect.Parameter.empty`` if it has none.
    summary : str
        A line about it, from the numpydoc section ``Parameters``.

    Examples
    --------
    >>> def torus(n, *, rows: Annotated[int, Ge(1)] = 4): ...
    >>> options_of(torus)["rows"].allowed
    'a whole number, at least 1'
    """

    name: str
    annotation: Any
    default: Any
    summary: str = ""

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def allowed(self) -> str:
        """What its values may be, in words."""
        return allowed_values(self.annotation)


def options_of(component: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the options of ``component``: its keyword-only parameters, in order."""
    # A function under a decorator has its own options.
    inner: Any = inspect.unwrap(component)
    return dict(_read(inner))


@functools.lru_cache(maxsize=512)  # a command asks several times, and annotations take long
def _read(component: Callable[..., Any]) -> dict[str, Parameter]:
    annotated: Any = component
    if inspect.isclass(component) and not dataclasses.is_dataclass(component):
        annotated = component.__init__
    elif not inspect.isclass(component) and not inspect.isroutine(component):
        annotated = type(component).__call__
    hints = typing.get_type_hints(annotated, include_extras=True)
    parameters, lines = inspect.signature(component).parameters, summaries(component)
    declared = {
        name: Parameter(name, hints.get(name, Any), each.default, lines.get(name, ""))
        for name, each in parameters.items()
        if each.kind is each.KEYWORD_ONLY
    }
    passes_on = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    options: dict[str, Parameter] = {}
    for base in component.__bases__ if passes_on and inspect.isclass(component) else ():
        options |= options_of(base) if base is not object else {}
    return options | declared


def allowed_values(annotation: Any) -> str:
    """Return ``annotation`` in the words of a message."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if isinstance(parts[1], ComponentOf):
            return f"a name or a mapping: see --list {parts[1].kind}"
        bounds = [
            bound for bound in parts[1:] if bound != Le(LARGEST)
        ]  # which tells nobody a thing
        return ", ".join([allowed_values(parts[0]), *map(_in_words, bounds)])
    if origin is Literal:
        return "one of " * (len(parts) > 1) + ", ".join(map(_word, parts))
    if origin in UNIONS:
        *others, last = map(allowed_values, parts)
        comma = "," if any("," in part for part in (*others, last)) else ""
        return f"{', '.join(others)}{comma} or {last}"
    if origin in (list, Sequence) or (origin is tuple and parts[1:] == (...,)):
        return f"a list [A,B,...] whose entries are each {allowed_values(parts[0])}"
    if origin is tuple:
        return f"a list of {len(parts)} entries: {', '.join(map(allowed_values, parts))}"
    if origin in (dict, Mapping):
        return f"a mapping whose values are each {allowed_values(parts[1])}"
    if dataclasses.is_dataclass(annotation):
        return "a mapping of options"
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _in_words(bound: Any) -> str:
    if type(bound) not in BOUNDS:
        raise NotImplementedError(f"{bound!r} is not checked; allowed: Ge, Gt, Le and Lt")
    name, words = BOUNDS[type(bound)]
    limit = getattr(bound, name)
    return f"{words} {limit if isinstance(limit, int) else format(limit, 'g')}"


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
