"""Parameters of named choices: their types, defaults and allowed values, read from text or
YAML.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal, TypeVar

from topologies.inputs import TopologyError, check_memory, closest, raised_at, within

# What a user's own function may be.
Part = Literal["topology", "weights", "schedule"]


class OwnPartError(TopologyError):
    """A mistake in a user's own function, in one sentence with its file and its signature."""

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


# The other form of a user's schedule, for messages.
ROUNDS = "; write def function(n, round) for one that returns the matrix of a round"


def load_object(name: str) -> Callable[..., Any]:
    """Import ``package.module:object``."""
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
    """Call a user's function, and tell a wrong signature and a failure in one sentence."""
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
    """Return how a user's function is called, if it can be called so."""
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
    """Return what a function has returned, for messages."""
    name = type(found).__name__
    return "None" if found is None else f"a{'n' * (name[0] in 'AEIOUaeiou')} {name}"


E = TypeVar("E", bound="Entry")

# Bytes that a mixing matrix takes for each node, without its edges, at least.
MATRIX_NODE_BYTES = 64


@dataclass(frozen=True)
class Entry:
    """A named choice in a table.

    Attributes
    ----------
    build : Callable[..., Any]
        The function that makes it.
    summary : str
        One line about it.
    parameters : Mapping[str, Parameter] | None
        Its parameters by name; None if they are not checked (a user's own object).
    """

    build: Callable[..., Any]
    summary: str
    parameters: Mapping[str, Parameter] | None = field(default_factory=dict)


def find(table: Mapping[str, E], what: str, name: str) -> E:
    """Return the entry called ``name``, or one for the user's own ``package.module:object``."""
    if name in table:
        return table[name]
    if isinstance(name, str) and ":" in name:
        sample = next(iter(table.values()))
        return type(sample)(build=load_object(name), summary=f"user's {what}", parameters=None)
    raise TopologyError(f"Unknown {what} {name!r}; {closest(str(name), table)}")


def read_parameters(owner: str, entry: Entry, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters of ``entry``: the given ones checked, the others at their defaults."""
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
    """Return the number of nodes as an int."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise TopologyError(f"{owner}: n is {n!r}; it must be an integer of at least 1")
    check_memory(MATRIX_NODE_BYTES * int(n), f"{owner}: n is {n}, which")
    return int(n)


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split ``name:key=value,...`` into the name and its values, which stay text."""
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
