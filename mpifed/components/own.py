"""Checks of a user's own components as they are found: their base classes and parameters."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from mpifed.components.base import Component
from mpifed.components.tables import MADE_WITH
from mpifed.errors import InputError, in_words

BOTH = inspect.Parameter.POSITIONAL_OR_KEYWORD


def refusing(function: Callable[..., Any], said: str) -> Callable[..., Any]:
    """Return a user's function whose failures are ``InputError``, which begin with ``said``."""

    @functools.wraps(function, updated=())
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except (InputError, MemoryError):
            raise
        except Exception as error:
            call = f"mpifed calls {getattr(function, '__name__', 'it')}(data, **options)"
            raise InputError(
                f"{said}, which fails for these data: {in_words(error)} ({call})"
            ) from error

    return call


def call_of_class(kind: str, made: Callable[..., Any]) -> str:
    """Return how mpifed makes an object of a component's class.

    Parameters
    ----------
    kind : str
        A key of ``TABLES``.
    made : class
        The class.

    Examples
    --------
    >>> call_of_class("algorithm", Component)
    'Component(model, local, **options)'
    """
    return f"{made.__name__}({', '.join([*MADE_WITH.get(kind, ()), '**options'])})"


def check_call(kind: str, found: Callable[..., Any], said: str) -> None:
    """Raise ``InputError`` unless a class can be made with what mpifed gives to those of a kind."""
    given = len(MADE_WITH.get(kind, ()))
    parameters = inspect.signature(found).parameters.values()
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, BOTH)]
    required = [each for each in places if each.default is each.empty]
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if len(required) > given or (len(places) < given and not takes_any):
        own = ", ".join(str(each.replace(annotation=each.empty)) for each in parameters)
        raise InputError(
            f"{said}, which is made as ({own}), but mpifed calls {call_of_class(kind, found)}, "
            "whose options are keyword-only parameters"
        )


def check_base(found: Callable[..., Any], place: str, said: str) -> None:
    """Raise ``InputError`` unless ``found`` is a complete subclass of the class at ``place``."""
    module, _, name = place.partition(":")
    base: type[Component] = getattr(importlib.import_module(module), name)
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise InputError(f"{said}, which is not derived from {module}.{name}")
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise InputError(f"{said}, which lacks the methods {', '.join(missing)}")
