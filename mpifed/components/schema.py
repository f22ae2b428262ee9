"""Options of components, read from their signatures."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from mpifed.components.tables import LISTS
from mpifed.errors import InputError, closest, one_line, text_of
from topologies.places import within

# Kinds of values that are written as one word.
PLAIN = (int, float, bool, str, type(None), Any)

# Kinds of paths, which are written as a string.
PATHS = (Path, PurePath)

ALLOWED = (
    "int, float, bool, str, Path, Literal[...], X | None, list[X], Sequence[X], tuple[X, ...], "
    "dict[str, X], a dataclass, and Annotated[X, Ge(1)]"
)

# The bounds that an annotation may have: their operator, and their words in a message.
BOUNDS: Mapping[type, tuple[str, str]] = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "above"),
    Le: ("le", "at most"),
    Lt: ("lt", "below"),
}


@dataclass(frozen=True)
class ComponentOf:
    """Annotates an option that is a component of ``kind`` itself: a name, or a mapping."""

    kind: str


def refuse_unknown(annotation: Any, where: str, component: Any) -> None:
    """Refuse an annotation that would not be checked, or that no value of a file can fit."""
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
    """Return whether an annotation, or a part of a union, is of a tuple."""
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
    """Return ``annotation`` in the words of a message."""
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


# The largest whole number of an option: arrays of counts are int64.
LARGEST = 2**63 - 1


def storable(value: Any) -> Any:
    """Return ``value`` if it reads back as stored; YAML also has dates, sets and bytes."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, (bool, int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        return value
    if isinstance(value, (list, tuple)):
        return [storable(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: storable(item) for key, item in value.items()}
    raise TypeError


def _text(value: str) -> str:
    """Return ``value`` if a file can hold it: UTF-8 has no lone surrogates."""
    value.encode()
    return value


def plain_value(value: Any, kind: type) -> Any:
    """Return ``value`` as None, a float, an int, a bool or a string, where it means the same."""
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
        if abs(value) > LARGEST:
            raise OverflowError
        return int(value)
    if isinstance(value, kind):
        return _text(value) if isinstance(value, str) else value
    raise TypeError


__all__ = [
    "ComponentOf",
    "Option",
    "check_options",
    "check_value",
    "describe",
    "options_of",
    "shown",
]


@dataclass(frozen=True)
class Option:
    """One option of a component: name, annotation and default (``inspect._empty`` if required)."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether the option has no default."""
        return self.default is inspect.Parameter.empty


def options_of(component: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of ``component``: its keyword-only parameters, in order."""
    # A function under a decorator has its own options.
    inner: Any = inspect.unwrap(component)
    once = inspect.isclass(inner) or inspect.isfunction(inner)
    return dict(_read_once(inner)) if once else _options_of(inner)


@functools.lru_cache(maxsize=512)
def _read_once(component: Callable[..., Any]) -> dict[str, Option]:
    """A command asks several times, and annotations written as text take long to evaluate."""
    return _options_of(component)


def _options_of(component: Callable[..., Any]) -> dict[str, Option]:
    annotated: Any = component
    if inspect.isclass(component) and not dataclasses.is_dataclass(component):
        annotated = component.__init__
    elif not inspect.isclass(component) and not inspect.isroutine(component):
        annotated = type(component).__call__
    try:
        hints = typing.get_type_hints(annotated, include_extras=True)
        parameters = inspect.signature(component).parameters
    except Exception as error:
        # A user's own class may raise anything here.
        raise InputError(
            f"'{_name(component)}' cannot be used as a component: its parameters cannot be read "
            f"({text_of(error)})"
        ) from error
    own = {
        name: Option(name, hints.get(name, Any), parameter.default)
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for option in own.values():
        where = f"option '{option.name}' of '{_name(component)}'"
        refuse_unknown(option.annotation, where, component)
    passes_on = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    base = component.__base__ if inspect.isclass(component) else None
    if passes_on and base is not None and base is not object:
        return {**options_of(base), **own}
    return own


def _name(component: Callable[..., Any]) -> str:
    return getattr(component, "__name__", type(component).__name__)


def check_options(
    component: Callable[..., Any],
    given: Mapping[str, Any],
    path: str,
    elsewhere: Callable[[str], str] = lambda option: "",
) -> dict[str, Any]:
    """Return the complete, checked options of a component."""
    options = options_of(component)
    prefix = f"{path}." if path else ""
    for name in given:
        if name not in options:
            what = "option" if path else "configuration key"
            allowed = closest(str(name), options) if options else f"{path} takes no options"
            if name in inspect.signature(inspect.unwrap(component)).parameters:
                allowed = f"options are keyword-only parameters: def ...(..., *, {name})"
            else:
                allowed = elsewhere(str(name)) + allowed
            raise InputError(f"Unknown {what} {shown(f'{prefix}{name}')}; {allowed}")
    checked = {}
    for name, option in options.items():
        if name in given:
            checked[name] = check_value(given[name], option.annotation, f"{prefix}{name}")
        elif option.required:
            wanted = describe(option.annotation)
            raise InputError(f"{prefix}{name} is missing; it must be {wanted}")
        else:
            default, kept = option.default, has_tuple(option.annotation)
            checked[name] = list(default) if isinstance(default, tuple) and not kept else default
    return checked


def check_value(value: Any, annotation: Any, field: str) -> Any:
    """Return ``value`` converted to ``annotation``; raise ``InputError`` that names ``field``."""
    try:
        return _convert(value, annotation, field)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError):
        message = f"{field} is {shown(value)}; it must be {describe(annotation)}"
        if isinstance(value, (int, float)) and abs(value) > LARGEST and "whole" in message:
            message += f", at most {LARGEST}"
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        if isinstance(value, str) and choices:
            message = f"{field} is {shown(value)}; {closest(value, map(str, choices))}"
        raise InputError(message) from None


def _convert(value: Any, annotation: Any, field: str) -> Any:
    origin = get_origin(annotation)
    if annotation is Any:
        return storable(value)
    if origin is Annotated:
        base, *bounds = get_args(annotation)
        converted = _convert(value, base, field)
        if converted is not None and not all(_holds(bound, converted) for bound in bounds):
            raise ValueError
        return converted
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in get_args(annotation)):
            return value
        raise ValueError
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, get_args(annotation), field)
    if origin in (list, tuple, Sequence):
        return _convert_items(value, annotation, field)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise TypeError
        inner = get_args(annotation)[1]
        return {plain_value(k, str): _convert(item, inner, field) for k, item in value.items()}
    if annotation in PATHS:
        return Path(plain_value(value, str) if isinstance(value, str) else value)
    if dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
        section: Any = annotation
        return section(**check_options(section, value, field))
    return plain_value(value, annotation)


def _convert_items(value: Any, annotation: Any, field: str) -> Any:
    """Return a value as the list or tuple that it is annotated to be."""
    if not isinstance(value, (list, tuple)):
        raise TypeError
    kinds = get_args(annotation)
    if get_origin(annotation) is not tuple:
        return [_convert(item, kinds[0], field) for item in value]
    if kinds[1:] == (...,):
        kinds = kinds[:1] * len(value)
    return tuple(_convert(item, kind, field) for item, kind in zip(value, kinds, strict=True))


def _holds(bound: Any, value: Any) -> bool:
    if isinstance(bound, ComponentOf):
        return True  # looked up later, where names are known
    name, _ = BOUNDS[type(bound)]
    return bool(getattr(operator, name)(value, getattr(bound, name)))


def _convert_union(value: Any, parts: tuple[Any, ...], field: str) -> Any:
    for part in parts:
        try:
            return _convert(value, part, field)
        except (TypeError, ValueError, OverflowError):
            continue
    raise ValueError
