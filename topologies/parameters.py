"""Parameters of named choices: their types, defaults and allowed values, read from text or YAML."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from topologies.spelling import nearest


class TopologyError(ValueError):
    """A graph, matrix or schedule that cannot be made as asked, in one sentence."""


Part = Literal["topology", "weights", "schedule"]
"""What a user's own function may be."""


class OwnPartError(TopologyError):
    """A mistake in a user's own function, in one sentence with its file and its signature.

    Attributes
    ----------
    part : {'topology', 'weights', 'schedule'}
        What the function is.
    """

    def __init__(self, message: str, part: Part) -> None:
        super().__init__(message)
        self.part = part


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry: its type, default, and allowed values.

    A default of None with ``required=False`` means that the entry chooses a value from the others.

    Attributes
    ----------
    kind : type
        The type: int, float, bool or str.
    summary : str
        One line about it.
    default : Any
        The value where none is given.
    required : bool
        Whether a value must be given.
    low, high : float or None
        The bounds, inclusive unless named in ``open_ends``.
    open_ends : tuple[str, ...]
        Of "low" and "high", those that are exclusive.
    choices : tuple[str, ...]
        The allowed values, where they are few.

    Examples
    --------
    >>> Parameter(float, "probability", low=0, high=1).read("erdos_renyi", "p", "0.25")
    0.25
    """

    kind: type
    summary: str
    default: Any = None
    required: bool = False
    low: float | None = None
    high: float | None = None
    open_ends: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The allowed values in words, as error messages state them."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}[
            self.kind
        ]
        if self.low is None and self.high is None:
            return noun
        if self.high is None:
            return f"{noun} {'above' if 'low' in self.open_ends else 'of at least'} {self.low:g}"
        left = "(" if "low" in self.open_ends else "["
        right = ")" if "high" in self.open_ends else "]"
        return f"{noun} in {left}{self.low:g}, {self.high:g}{right}"

    def read(self, owner: str, name: str, value: Any) -> Any:
        """Return ``value`` as this parameter's type.

        Parameters
        ----------
        owner : str
            The name of the entry, for the message.
        name : str
            The name of the parameter, for the message.
        value : Any
            The value, possibly as text; None takes the default.

        Returns
        -------
        Any
            The converted value.

        Raises
        ------
        TopologyError
            If it is of another type or out of bounds.
        """
        if value is None and not self.required:
            return self.default
        converted = _convert(self.kind, value)
        if converted is None or not self._holds(converted):
            choices = self.choices
            allowed = closest(str(value), choices) if choices else f"it must be {self.allowed}"
            raise TopologyError(f"{owner}: {name} is {value!r}; {allowed}")
        return converted

    def _holds(self, value: Any) -> bool:
        if self.choices and value not in self.choices:
            return False
        if self.low is not None and (
            value < self.low or (value == self.low and "low" in self.open_ends)
        ):
            return False
        return not (
            self.high is not None
            and (value > self.high or (value == self.high and "high" in self.open_ends))
        )


def closest(name: str, known: Iterable[str]) -> str:
    """Return the allowed names as the end of a message, after the one that was likely meant.

    Parameters
    ----------
    name : str
        The unknown name.
    known : Iterable[str]
        The known names.

    Returns
    -------
    str
        Such as "did you mean 'ring'? allowed: ring, star".

    Examples
    --------
    >>> closest("rign", ["ring", "star"])
    "did you mean 'ring'? allowed: ring, star"
    """
    names = list(known)
    meant = nearest(name, names)
    near = f"did you mean {meant!r}? " if meant else ""
    return f"{near}allowed: {', '.join(names)}"


def _convert(kind: type, value: Any) -> Any:
    """Return ``value`` as ``kind``, or None where that would change its meaning."""
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is bool:
        words = {"true": True, "false": False, "yes": True, "no": False}
        return value if isinstance(value, bool) else words.get(str(value).lower())
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        return None  # a number to Python alone
    try:
        number = float(value)
        if not math.isfinite(number):
            return None
        if kind is float:
            return number
        return int(value) if number == int(number) and "." not in str(value) else None
    except (TypeError, ValueError, OverflowError):
        return None
