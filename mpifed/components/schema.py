"""Options of components, read from their signatures.

A component is any callable whose keyword-only parameters are its options. Annotations define the
allowed values: ``int``, ``float``, ``bool``, ``str``, ``Literal[...]``, ``X | None``, ``list[X]``,
a dataclass (a mapping of its fields), and ``Annotated[X, Ge(1)]`` with ``Ge``, ``Gt``, ``Le`` and
``Lt`` of ``annotated_types``. The same rules check a dataclass, and a user's own component.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from mpifed.components.tables import LISTS
from mpifed.components.values import LARGEST, plain_value, storable
from mpifed.errors import InputError, closest, one_line, text_of

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
    """Return the options of ``component``: its keyword-only parameters, in order.

    A class that takes ``**options`` has those of its base class too.

    Raises
    ------
    InputError
        If the parameters or annotations cannot be read, or have a bound that is not understood.
    """
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
        _check_bounds(option.annotation, f"option '{option.name}' of '{_name(component)}'")
    passes_on = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    base = component.__base__ if inspect.isclass(component) else None
    if passes_on and base is not None and base is not object:
        return {**options_of(base), **own}
    return own


def _name(component: Callable[..., Any]) -> str:
    return getattr(component, "__name__", type(component).__name__)


def _check_bounds(annotation: Any, where: str) -> None:
    """Refuse a bound that would not be checked."""
    parts = () if get_origin(annotation) is Literal else get_args(annotation)
    if get_origin(annotation) is Annotated:
        parts, bounds = parts[:1], parts[1:]
        for bound in bounds:
            if type(bound) not in (*BOUNDS, ComponentOf):
                raise InputError(
                    f"{where} is annotated with {shown(bound)}, which is not understood; allowed: "
                    "Ge, Gt, Le and Lt of annotated_types"
                )
    for part in parts:
        _check_bounds(part, where)


def check_options(
    component: Callable[..., Any],
    given: Mapping[str, Any],
    path: str,
    elsewhere: Callable[[str], str] = lambda option: "",
) -> dict[str, Any]:
    """Return the complete, checked options of a component.

    Parameters
    ----------
    component : callable
        Its keyword-only parameters are the options.
    given : mapping of str to Any
        Values by option; options left out have their defaults.
    path : str
        Dotted place in the configuration, for messages; empty at its top.
    elsewhere : callable
        Returns what to say of an unknown option before those that are allowed.

    Raises
    ------
    InputError
        For an unknown option, a missing one, a wrong type or a value out of its range.
    """
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
            # A default may be a tuple, which a stored configuration cannot hold.
            default = option.default
            checked[name] = list(default) if isinstance(default, tuple) else default
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
    if origin is list:
        return f"a list [A,B,...] whose entries are each {describe(get_args(annotation)[0])}"
    if dataclasses.is_dataclass(annotation):
        return "a mapping of options"
    names = {
        Any: "made of strings, numbers, true, false, null, lists and mappings",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a string",
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
    if origin is list:
        if not isinstance(value, (list, tuple)):
            raise TypeError
        return [_convert(item, get_args(annotation)[0], field) for item in value]
    if dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
        section: Any = annotation
        return section(**check_options(section, value, field))
    return plain_value(value, annotation)


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
