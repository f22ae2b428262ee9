"""Options are read off signatures.

A component (a model, an algorithm, a data set, ...) is any callable whose keyword-only parameters
are its options. Their annotations say what is allowed: ``int``, ``float``, ``bool``, ``str``,
``Literal[...]``, ``X | None``, ``list[X]``, and ``Annotated[X, AtLeast(1)]`` with the limits below.
The same rules check a dataclass, and a user's own component named ``package.module:object``.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from mpifed.errors import InputError, closest, one_line, text_of


@dataclass(frozen=True)
class AtLeast:
    """``value >= limit``."""

    limit: float

    def admits(self, value: float) -> bool:
        return value >= self.limit

    def __str__(self) -> str:
        return f"at least {_number(self.limit)}"


@dataclass(frozen=True)
class Above:
    """``value > limit``."""

    limit: float

    def admits(self, value: float) -> bool:
        return value > self.limit

    def __str__(self) -> str:
        return f"above {_number(self.limit)}"


@dataclass(frozen=True)
class AtMost:
    """``value <= limit``."""

    limit: float

    def admits(self, value: float) -> bool:
        return value <= self.limit

    def __str__(self) -> str:
        return f"at most {_number(self.limit)}"


@dataclass(frozen=True)
class Below:
    """``value < limit``."""

    limit: float

    def admits(self, value: float) -> bool:
        return value < self.limit

    def __str__(self) -> str:
        return f"below {_number(self.limit)}"


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


@dataclass(frozen=True)
class Option:
    """One option of a component: name, annotation and default (``inspect._empty`` if required)."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


def options_of(component: Callable[..., Any]) -> dict[str, Option]:
    """The options of ``component``: its keyword-only parameters, in order.

    A class that takes ``**options`` has those of its base class too.

    Raises ``InputError`` for a component whose parameters or annotations cannot be read.
    """
    annotated: Any = component
    if inspect.isclass(component) and not dataclasses.is_dataclass(component):
        annotated = component.__init__
    elif not inspect.isclass(component) and not inspect.isroutine(component):
        annotated = type(component).__call__
    try:
        hints = typing.get_type_hints(annotated, include_extras=True)
        parameters = inspect.signature(component).parameters
    except Exception as error:
        # A user's own class may fail in any way where it is looked at.
        name = getattr(component, "__name__", type(component).__name__)
        raise InputError(
            f"'{name}' is no component: its parameters cannot be read ({text_of(error)})"
        ) from error
    own = {
        name: Option(name, hints.get(name, Any), parameter.default)
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    passes_on = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    base = component.__base__ if inspect.isclass(component) else None
    if passes_on and base is not None and base is not object:
        return {**options_of(base), **own}
    return own


def check_options(
    component: Callable[..., Any], given: Mapping[str, Any], path: str
) -> dict[str, Any]:
    """The complete, checked options of ``component`` for the values ``given``.

    ``path`` is the dotted place in the configuration, for messages. Raises ``InputError`` for an
    unknown option, a missing one, a wrong type or a value out of its range.
    """
    options = options_of(component)
    prefix = f"{path}." if path else ""
    for name in given:
        if name not in options:
            allowed = closest(name, options) if options else "it takes no options"
            raise InputError(f"{prefix}{name} is no option here; {allowed}")
    checked = {}
    for name, option in options.items():
        if name in given:
            checked[name] = check_value(given[name], option.annotation, f"{prefix}{name}")
        elif option.required:
            wanted = describe(option.annotation)
            raise InputError(f"{prefix}{name} is missing; it must be {wanted}")
        else:
            # A default may be a tuple, which a configuration that was stored and read is not.
            default = option.default
            checked[name] = list(default) if isinstance(default, tuple) else default
    return checked


def check_value(value: Any, annotation: Any, field: str) -> Any:
    """``value`` converted to ``annotation``; raises ``InputError`` that names ``field``."""
    try:
        return _convert(value, annotation)
    except (TypeError, ValueError, OverflowError, RecursionError):
        message = f"{field} is {shown(value)}; it must be {describe(annotation)}"
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        if isinstance(value, str) and choices:
            message = f"{field} is {shown(value)}; {closest(value, map(str, choices))}"
        raise InputError(message) from None


def shown(value: Any) -> str:
    """``value`` for a message: never long, however large or deep it is."""
    if value is None:
        return "empty"
    try:
        return one_line(_SHORT.repr(value), 200)
    except Exception:
        # Python refuses to write out a number of very many digits, and a user's object anything.
        return f"a {type(value).__name__} that cannot be written out"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


def describe(annotation: Any) -> str:
    """``annotation`` in the words of a message: 'a whole number, at least 1'."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        base, *limits = get_args(annotation)
        return ", ".join([describe(base), *(str(limit) for limit in limits)])
    if origin is Literal:
        return "one of " + ", ".join(_word(choice) for choice in get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        *parts, last = (describe(part) for part in get_args(annotation))
        comma = "," if any("," in part for part in parts) else ""
        return f"{', '.join(parts)}{comma} or {last}"
    if origin is list:
        return f"a list of entries that are each {describe(get_args(annotation)[0])}"
    names = {
        Any: "made of texts, numbers, true, false, null, lists and mappings",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        type(None): "empty (null)",
    }
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _word(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _convert(value: Any, annotation: Any) -> Any:
    origin = get_origin(annotation)
    if annotation is Any:
        return _plain(value)
    if origin is typing.Annotated:
        base, *limits = get_args(annotation)
        converted = _convert(value, base)
        if converted is not None and not all(limit.admits(converted) for limit in limits):
            raise ValueError
        return converted
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in get_args(annotation)):
            return value
        raise ValueError
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, get_args(annotation))
    if origin is list:
        if not isinstance(value, (list, tuple)):
            raise TypeError
        return [_convert(item, get_args(annotation)[0]) for item in value]
    return _convert_plain(value, annotation)


def _convert_union(value: Any, parts: tuple[Any, ...]) -> Any:
    for part in parts:
        try:
            return _convert(value, part)
        except (TypeError, ValueError, OverflowError):
            continue
    raise ValueError


def _plain(value: Any) -> Any:
    """``value`` if it reads back as it was stored; YAML also knows dates, sets and bytes."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, (bool, int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise TypeError


def _text(value: str) -> str:
    """``value`` if a file can hold it: of lone surrogates UTF-8 has none."""
    value.encode()
    return value


def _convert_plain(value: Any, kind: type) -> Any:
    if kind is type(None):
        if value is None:
            return None
        raise TypeError
    if kind is float:
        # YAML 1.1 reads "1e-3" as text; a user who types it means the number.
        number = float(value) if isinstance(value, (int, float, str)) else None
        if number is None or isinstance(value, bool) or not math.isfinite(number):
            raise TypeError
        if isinstance(value, str) and (not value.isascii() or "_" in value):
            raise ValueError  # a number to Python alone
        return number
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
            raise TypeError
        return int(value)
    if isinstance(value, kind):
        return _text(value) if isinstance(value, str) else value
    raise TypeError
