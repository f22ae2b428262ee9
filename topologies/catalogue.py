"""Tables of named choices: what can be asked for by name and with which parameters.

The graph families, the weight rules and the schedules are each a table ``name -> Entry``. Listing
them, checking a configuration, and reading ``name:key=value,...`` from a command line all work from
these tables.
"""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeVar

from topologies.inputs import beyond_memory

E = TypeVar("E", bound="Entry")

MATRIX_NODE_BYTES = 64
"""Bytes that a mixing matrix takes for each node, without its edges, at least."""


class TopologyError(ValueError):
    """A graph, matrix or schedule that cannot be made as asked, in one sentence."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry: its type, default, and allowed values.

    A default of None with ``required=False`` means that the entry chooses a value from the others.
    Bounds are inclusive unless named in ``open_ends``.
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
        """The allowed values in words, as an error message has them."""
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

        Raises:
            TopologyError: if it is of another type or out of bounds.
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


@dataclass(frozen=True)
class Entry:
    """A named choice: what makes it, one line about it, its parameters (None: not checked)."""

    build: Callable[..., Any]
    summary: str
    parameters: Mapping[str, Parameter] | None = field(default_factory=dict)


def find(table: Mapping[str, E], what: str, name: str) -> E:
    """Return the entry called ``name``, or the user's own object of a ``package.module:object``.

    Raises:
        TopologyError: if there is none; the message names the closest known one.
    """
    if name in table:
        return table[name]
    if isinstance(name, str) and ":" in name:
        sample = next(iter(table.values()))
        return type(sample)(build=load_object(name), summary=f"user's {what}", parameters=None)
    raise TopologyError(f"Unknown {what} {name!r}; {closest(str(name), table)}")


def load_object(name: str) -> Callable[..., Any]:
    """Import ``package.module:object``.

    Raises:
        TopologyError: if the module or the object does not exist, or cannot be called.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise TopologyError(
            f"{name!r} cannot be imported as package.module:object: {error}"
        ) from error
    if not callable(found):
        raise TopologyError(f"{name!r} is {found!r}; it must be a function or a class")
    return found


def read_parameters(owner: str, entry: Entry, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters of ``entry``: the given ones checked, the others at their defaults.

    Raises:
        TopologyError: for an unknown, missing, mistyped or out-of-range parameter.
    """
    if entry.parameters is None:
        return dict(given)
    for name in given:
        if name not in entry.parameters:
            known = closest(name, entry.parameters) if entry.parameters else "it takes none"
            raise TopologyError(f"Unknown parameter {name!r} of {owner}; {known}")
    for name, parameter in entry.parameters.items():
        if parameter.required and given.get(name) is None:
            raise TopologyError(
                f"{owner}: {name} is missing ({parameter.summary}); it must be {parameter.allowed}"
            )
    return {
        name: parameter.read(owner, name, given.get(name))
        for name, parameter in entry.parameters.items()
    }


def node_count(owner: str, n: Any) -> int:
    """Return the number of nodes as an int.

    Raises:
        TopologyError: if it is not an integer of at least 1.
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise TopologyError(f"{owner}: n is {n!r}; it must be an integer of at least 1")
    check_memory(MATRIX_NODE_BYTES * int(n), f"{owner}: n is {n}, which")
    return int(n)


def check_memory(needed: float, what: str) -> None:
    """Refuse what would take more memory than there is, before it is made.

    Raises:
        TopologyError: the sentence that ``what`` begins.
    """
    lacking = beyond_memory(needed)
    if lacking is not None:
        raise TopologyError(f"{what} {lacking}")


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split ``name:key=value,...`` into the name and its still unread values.

    The name may itself be ``package.module:object``, recognised by its dot.

    Raises:
        TopologyError: if a part is not ``key=value`` or a key comes twice.
    """
    name, _, rest = text.partition(":")
    if "." in name:
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}"
    values: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not (equals and key and value):
            raise TopologyError(f"{part!r} in {text!r} is not of the form key=value")
        if key in values:
            raise TopologyError(f"{key!r} is given twice in {text!r}")
        values[key] = value
    return name, values


def closest(name: str, known: Iterable[str]) -> str:
    """Return the allowed names as the end of a message, the one closest to ``name`` first.

    Examples
    --------
    >>> closest("rign", ["ring", "star"])
    "did you mean 'ring'? allowed: ring, star"
    """
    names = list(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    near = f"did you mean {matches[0]!r}? " if matches else ""
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
