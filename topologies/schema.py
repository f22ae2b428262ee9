"""Values of options, which pydantic validates; a wrong one is told in a sentence."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import (
    BeforeValidator,
    ConfigDict,
    JsonValue,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationError,
)

from topologies.errors import InputError, closest, excerpt
from topologies.parameters import LARGEST as LARGEST
from topologies.parameters import UNIONS, Parameter, allowed_values, options_of

# A text is no number, a number no text or truth value, and a number is finite.
RULES = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def check_options(
    component: Callable[..., Any] | Mapping[str, Parameter],
    values: Mapping[str, Any],
    path: str,
    owners: Callable[[str], list[str]] = lambda option: [],
) -> dict[str, Any]:
    """Return all options of a component: its ``values``, checked, the others at their defaults.

    ``owners`` returns the components that have an option, to be named where this one has it not.
    """
    options = component if isinstance(component, Mapping) else options_of(component)
    prefix = f"{path}." if path else ""
    for name in values:
        if name not in options:
            what = "option" if path else "configuration key"
            allowed = closest(str(name), options) if options else f"{path} takes no options"
            if callable(component) and name in inspect.signature(component).parameters:
                allowed = f"options are keyword-only parameters: def ...(..., *, {name})"
            if others := owners(str(name)):
                allowed = f"set {path}={' or '.join(others)}, which has it; {allowed}"
            raise InputError(f"Unknown {what} {excerpt(f'{prefix}{name}')}; {allowed}")
    checked = {}
    for name, option in options.items():
        if name in values:
            checked[name] = check_value(values[name], option.annotation, f"{prefix}{name}")
        elif option.required:
            raise InputError(f"{prefix}{name} is missing; it must be {option.allowed}")
        else:
            default, keeps_tuple = option.default, has_tuple(option.annotation)
            checked[name] = (
                list(default) if isinstance(default, tuple) and not keeps_tuple else default
            )
    return checked


def check_value(value: Any, annotation: Any, field: str) -> Any:
    """Return ``value`` converted to ``annotation``; an ``InputError`` names ``field``."""
    if dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
        section: Any = annotation
        return section(**check_options(section, value, field))
    try:
        return _adapter(annotation).validate_python(value)
    except (ValidationError, RecursionError):
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        if isinstance(value, str) and choices:
            allowed = closest(value, map(str, choices))
        else:
            allowed = f"it must be {allowed_values(annotation)}"
            if isinstance(value, (int, float)) and value > LARGEST:
                allowed += f", at most {LARGEST}"
        raise InputError(f"{field} is {excerpt(value)}; {allowed}") from None


def is_one_list(value: list[Any], annotation: Any) -> bool:
    """Return whether a list is one value of an option, and not several of its values."""
    kinds = get_args(annotation) if get_origin(annotation) in UNIONS else (annotation,)
    lists = [kind for kind in kinds if get_origin(kind) is list]
    if not lists or _depth(value) > max(map(_depth, lists)):
        return False
    if list[str] in lists:  # beside it a string is a list of one
        return True
    return not any(_is_valid(each, annotation) for each in value)


def _is_valid(value: Any, annotation: Any) -> bool:
    try:
        _adapter(annotation).validate_python(value)
    except (ValidationError, RecursionError):
        return False
    return True


def _depth(value: Any) -> int:
    """Return how deeply a list, or a type of lists, is nested."""
    entries = value if isinstance(value, list) else get_args(value)
    is_list = isinstance(value, list) or get_origin(value) is list
    return 1 + max(map(_depth, entries), default=0) if is_list else 0


@functools.lru_cache(maxsize=1024)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    allowed_values(annotation)  # no bound is without words
    return TypeAdapter(_of_words(annotation), config=RULES)


def _whole_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _of_words(annotation: Any) -> Any:
    """Return an annotation as pydantic is to read it, for values from YAML and JSON."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is int:  # 3.0 is a whole number
        return Annotated[int, BeforeValidator(_whole_number), Ge(-LARGEST), Le(LARGEST)]
    if annotation in (Path, PurePath):
        return Annotated[Path, Strict(False)]
    if annotation is Any:
        return JsonValue
    if dataclasses.is_dataclass(annotation):
        return Annotated[Any, PlainValidator(functools.partial(_section, annotation))]
    if origin is Annotated:
        return Annotated[(_of_words(parts[0]), *parts[1:])]
    if origin in (None, Literal, Callable):
        return annotation
    inner = tuple(each if each is ... else _of_words(each) for each in parts)
    if origin in (list, Sequence) and str in (parts[0], *get_args(parts[0])):
        return Annotated[list.__class_getitem__(inner), BeforeValidator(_texts)]
    if origin in UNIONS:
        return functools.reduce(operator.or_, inner)
    if origin is tuple:
        return Annotated[tuple.__class_getitem__(inner), BeforeValidator(_tuple)]
    return {Sequence: list, Mapping: dict}.get(origin, origin)[inner]


def _section(kind: Any, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(kind)
    return check_value(value, kind, kind.__name__)


def has_tuple(annotation: Any) -> bool:
    """Return whether an annotation, or a part of a union, is of a tuple."""
    origin = get_origin(annotation)
    return origin is tuple or (
        origin in (*UNIONS, Annotated) and any(map(has_tuple, get_args(annotation)))
    )
