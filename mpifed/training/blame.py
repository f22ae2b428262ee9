"""The error of code that has failed: which component it belongs to, which client, which round."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

from mpifed.components.registry import Section
from mpifed.config.configuration import Configuration
from mpifed.errors import CodeError, in_words


def code_error(error: BaseException, configuration: Configuration, on_round: Any) -> CodeError:
    """Return the error that names component, client and round; its cause is to be ``error``.

    Parameters
    ----------
    error : BaseException
        What code has raised. What called the user's code is cut from its traceback.
    configuration : Configuration
        Names the components of the run.
    on_round : callable, str or None
        The function that is called after recorded rounds.

    Returns
    -------
    CodeError
        Its message is one line.
    """
    function = _imported(on_round) if isinstance(on_round, str) else on_round
    components = {f"{key} '{name}'": _imported(name) for key, name in _named(configuration)}
    components[f"on_round {getattr(function, '__qualname__', function)}"] = function
    defined = {n: _definition(each) for n, each in components.items() if each is not None}
    names, first = _running(error.__traceback__, defined)
    error.__traceback__ = first or error.__traceback__
    where = dict.fromkeys([*names, *error.__dict__.pop("__notes__", [])])
    return CodeError(": ".join([", ".join(where), in_words(error)][not where :]))


def _named(section: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield keys and names of the components in a configuration or a section."""
    inner = section.options if isinstance(section, Section) else vars(section)
    for key, value in inner.items():
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, Section):
                yield f"{path}{key}", each.name
                yield from _named(each, f"{path}{key}.")


def _imported(name: str) -> Any:
    """Return the user's object ``package.module:object``; None for a shipped component."""
    module, _, attribute = name.partition(":")
    return getattr(sys.modules.get(module), attribute, None)


def _definition(component: Any) -> Any:
    """Return the class or the function that a component is, or is made from."""
    if isinstance(component, functools.partial):
        component = component.func
    component = inspect.unwrap(component)
    return component if hasattr(component, "__qualname__") else type(component)


def _running(
    traceback: TracebackType | None, components: Mapping[str, Any]
) -> tuple[list[str], TracebackType | None]:
    """Return whose code ran in the last frame of users' modules, and the first such frame."""
    names, first, calls_directly = list[str](), None, False
    while traceback is not None:
        module = traceback.tb_frame.f_globals.get("__name__")
        nearby = {n: each for n, each in components.items() if each.__module__ == module}
        owners = [name for name, each in nearby.items() if _runs(traceback.tb_frame, each)]
        if owners:  # of a class and one derived from it, the latter
            names = [max(owners, key=lambda name: len(getattr(nearby[name], "__mro__", ())))]
        elif nearby and not calls_directly:  # such as a class whose object a function has returned
            functions = [name for name, each in nearby.items() if not inspect.isclass(each)]
            names = [" or ".join(functions or nearby)]
        calls_directly = bool(nearby)
        first = first or (traceback if nearby else None)
        traceback = traceback.tb_next
    return names, first


def _runs(frame: FrameType, component: Any) -> bool:
    """Return whether a frame runs a method of a class, or a function."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if inspect.isclass(component) and isinstance(first, component):
        return True
    return f"{code.co_qualname}.".startswith(f"{component.__qualname__}.")
