"""Calls of a user's own functions: what they must take, and where they fail."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from topologies.parameters import OwnPartError, Part, TopologyError
from topologies.places import raised_at, within

ROUNDS = "; write def function(n, round) for one that returns the matrix of a round"
"""The other form of a user's schedule, for messages."""


def load_object(name: str) -> Callable[..., Any]:
    """Import ``package.module:object``.

    Parameters
    ----------
    name : str
        The module and the object.

    Returns
    -------
    callable
        The object.

    Raises
    ------
    TopologyError
        If the module or the object does not exist, or cannot be called.

    Examples
    --------
    >>> load_object("math:sqrt")(4.0)
    2.0
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a user's own module may fail to import in any way
        known = isinstance(error, (ImportError, AttributeError, ValueError))
        kind = "" if known and str(error) else f"{type(error).__name__}: "
        raise TopologyError(
            f"{name!r} cannot be imported as package.module:object: {kind}{error}{raised_at(error)}"
        ) from error
    if not callable(found):
        raise TopologyError(f"{name!r} is {found!r}; it must be a function or a class")
    return found


def call_own(
    name: str,
    function: Callable[..., Any],
    part: Part,
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    """Call a user's function, and tell a wrong signature and a failure in one sentence.

    Parameters
    ----------
    name : str
        The function, ``package.module:object``.
    function : Callable[..., Any]
        The function.
    part : {'topology', 'weights', 'schedule'}
        What it is.
    arguments : Mapping[str, Any]
        What it is called with by position, under the names for messages.
    options : Mapping[str, Any]
        What it is called with by name.

    Returns
    -------
    Any
        What it returns.

    Raises
    ------
    OwnPartError
        If it does not take these arguments, or raises an exception.

    Examples
    --------
    >>> def wheel(nodes): ...
    >>> call_own("mine:wheel", wheel, "topology", {}, {"n": 4})
    Traceback (most recent call last):
    topologies.parameters.OwnPartError: mine:wheel is wheel(nodes), but is called as wheel(n=...)
    """
    call = check_call(name, function, part, arguments, options)
    try:
        return function(*arguments.values(), **options)
    except (TopologyError, MemoryError):
        raise
    except Exception as error:
        said = f"{name}, called as {call}, fails: {type(error).__name__}: {error}"
        raise OwnPartError(f"{said}{raised_at(error)}", part) from error


def check_call(
    name: str,
    function: Callable[..., Any],
    part: Part,
    arguments: Iterable[str],
    options: Iterable[str],
) -> str:
    """Return how a user's function is called, if it can be called so.

    Parameters
    ----------
    name, function, part
        As for :func:`call_own`.
    arguments, options : Iterable[str]
        The names of what it is called with by position, and by name.

    Returns
    -------
    str
        The call, for messages.

    Raises
    ------
    OwnPartError
        If it does not take these arguments.
    """
    short = name.rpartition(":")[2]
    call = f"{short}({', '.join([*arguments, *(f'{key}=...' for key in options)])})"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable whose parameters Python cannot tell
        return call
    try:
        signature.bind(*arguments, **dict.fromkeys(options))
    except TypeError:
        bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        hint = ROUNDS if part == "schedule" and "round" not in options else ""
        raise OwnPartError(
            f"{name} is {short}({', '.join(map(str, bare))}), but is called as {call}{hint}"
            f"{within(function)}",
            part,
        ) from None
    return call


def kind_of(found: Any) -> str:
    """Return what a function has returned, for messages.

    Examples
    --------
    >>> kind_of(None), kind_of([1]), kind_of(1)
    ('None', 'a list', 'an int')
    """
    name = type(found).__name__
    return "None" if found is None else f"a{'n' * (name[0] in 'AEIOUaeiou')} {name}"
