"""Options of components, read from their signatures.

A component is any callable whose keyword-only parameters are its options. Annotations define the
allowed values, as ``annotations`` says. The same rules check a dataclass, and a user's own
component.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from mpifed.components.annotations import (
    BOUNDS,
    PATHS,
    ComponentOf,
    describe,
    has_tuple,
    refuse_unknown,
    shown,
)
from mpifed.components.values import LARGEST, plain_value, storable
from mpifed.errors import InputError, closest, text_of

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
