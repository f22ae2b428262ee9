"""What methods of components return, which may be a user's own, and how mpifed calls them."""

from __future__ import annotations

from typing import Any, TypeVar

from mpifed.components.declared import call_of
from mpifed.errors import InputError
from topologies.inputs import defined_at

Result = TypeVar("Result")


class WrongResult(InputError):
    """A method of a component returned what it must not; the message names class and method."""


def defined_in(cls: type, method: str) -> type | None:
    """Return the base class of mpifed that defines a method; None where no such class has it."""
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "mpifed" and method in vars(base):
            return base
    return None


def place_of(part: Any, method: str) -> str:
    """Return where a user defines a component's method, or else its class; empty for
    mpifed's own.
    """
    return defined_at(getattr(part, method, None)) or defined_at(type(part))


def as_called(part: Any, base: type | None, method: str) -> str:
    """Return the end of a sentence about a component's method: how it is called, and where
    it is.
    """
    place = place_of(part, method)
    said = [f"mpifed calls {call_of(base, method)}"] if base is not None else []
    said += [f"in {place}"] if place else []
    return f" ({', '.join(said)})" if said else ""


def checked_result(part: Any, method: str, made: Any, like: Result, shape: Any = None) -> Result:
    """Return what a component's method returned."""
    wanted = tuple(getattr(like, "shape", ())) if shape is None else tuple(shape)
    if isinstance(made, type(like)) and tuple(getattr(made, "shape", ())) == wanted:
        return made
    given = "None" if made is None else f"a {type(made).__name__}"
    if made is not None and hasattr(made, "shape"):
        given += f" of shape {tuple(made.shape)}"
    kind, base = getattr(part, "_kind", None), defined_in(type(part), method)
    said = f"{kind} '{type(part).__name__}'" if kind else type(part).__name__
    raise WrongResult(
        f"{said}: {method} returned {given}; it must return a {type(like).__name__} of shape "
        f"{wanted}{as_called(part, base, method)}"
    )
