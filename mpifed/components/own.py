"""Checks of a user's own components as they are found: their base classes and parameters."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from mpifed.components.base import Contract
from mpifed.components.declared import calls_of
from mpifed.components.tables import ADOPTED, BASES, MADE_WITH
from mpifed.errors import InputError, in_words
from topologies.inputs import raised_at, within

BOTH = inspect.Parameter.POSITIONAL_OR_KEYWORD


def checked_own(kind: str, found: Callable[..., Any], said: str) -> Callable[..., Any]:
    """Return a user's component, which derives from its base class and can be made."""
    if kind in BASES:
        _check_base(kind, found, said)
        _check_call(kind, found, said)
    is_plain = inspect.isfunction(found) or _is_plain(found)
    makes = kind == "model" or (kind in ADOPTED and is_plain)
    return _refusing(kind, found, said) if makes else found


def _is_plain(found: Any) -> bool:
    """Return whether a class is not derived from one of mpifed, which knows its own kind."""
    return inspect.isclass(found) and not issubclass(found, Contract)


def _refusing(kind: str, function: Callable[..., Any], said: str) -> Callable[..., Any]:
    """Return a user's function whose failures are ``InputError``, which begin with ``said``."""

    @functools.wraps(function, updated=())
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except (InputError, MemoryError):
            raise
        except Exception as error:
            fails = "fails for these data" if "data" in MADE_WITH.get(kind, ()) else "fails"
            raise InputError(
                f"{said}, which {fails}: {in_words(error)}{raised_at(error)} (mpifed calls "
                f"{call_of_class(kind, function)})"
            ) from error

    return call


def call_of_class(kind: str, made: Callable[..., Any]) -> str:
    """Return how mpifed makes an object of a component's class, or calls its function."""
    name = getattr(made, "__name__", "it")
    return f"{name}({', '.join([*MADE_WITH.get(kind, ()), '**options'])})"


def _check_call(kind: str, found: Callable[..., Any], said: str) -> None:
    """Raise ``InputError`` unless a component can be made with what mpifed gives to its kind."""
    given = len(MADE_WITH.get(kind, ()))
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # a callable whose parameters Python cannot tell
        return
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, BOTH)]
    required = [each for each in places if each.default is each.empty]
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if len(required) > given or (len(places) < given and not takes_any):
        own = ", ".join(str(each.replace(annotation=each.empty)) for each in parameters)
        (base,) = _bases(kind) if kind in ADOPTED else (None,)
        wanted = f" for an object with {calls_of(base, base.required())}" if base else ""
        raise InputError(
            f"{said}, which is made as ({own}), but mpifed calls {call_of_class(kind, found)}"
            f"{wanted if not inspect.isclass(found) else ''}; options are keyword-only parameters"
            f"{within(found)}"
        )


def _check_base(kind: str, found: Callable[..., Any], said: str) -> None:
    """Raise ``InputError`` unless ``found`` is a complete subclass of a base class of its kind."""
    bases = _bases(kind)
    if not (inspect.isclass(found) and issubclass(found, bases)):
        if kind in ADOPTED:
            return
        named = " or ".join(f"{base.__module__}.{base.__name__}" for base in bases)
        name, made = getattr(found, "__name__", "Name"), call_of_class(kind, found)
        forms = [_form(base, name) for base in bases]
        raise InputError(
            f"{said}, which is not derived from {named}; write {' or '.join(forms)}, made as {made}"
            f"{within(found)}"
        )
    missing: Iterable[str] = found.__abstractmethods__
    if missing:
        raise InputError(
            f"{said}, which lacks the methods {calls_of(found, missing)}{within(found)}"
        )


def _form(base: type[Contract], name: str) -> str:
    methods = calls_of(base, base.__abstractmethods__)
    return f"class {name}({base.__name__})" + (f" with {methods}" if methods else "")


def _bases(kind: str) -> tuple[type[Contract], ...]:
    """Return the base classes of the components of a kind."""
    places = [place.partition(":") for place in BASES[kind]]
    return tuple(getattr(importlib.import_module(module), name) for module, _, name in places)
