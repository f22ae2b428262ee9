"""Tables of named choices: what can be asked for by name and with which parameters.

The graph families, the weight rules and the schedules are each a table ``name -> Entry``. Listing
them, checking a configuration, and reading ``name:key=value,...`` from a command line all work from
these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeVar

from topologies.inputs import beyond_memory
from topologies.own_functions import load_object
from topologies.parameters import Parameter, TopologyError, closest

E = TypeVar("E", bound="Entry")

MATRIX_NODE_BYTES = 64
"""Bytes that a mixing matrix takes for each node, without its edges, at least."""


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
    """Return the entry called ``name``, or one for the user's own ``package.module:object``.

    Parameters
    ----------
    table : Mapping[str, E]
        The named choices.
    what : str
        What the table holds, for the message.
    name : str
        The name to look up.

    Returns
    -------
    Entry
        The entry.

    Raises
    ------
    TopologyError
        If there is no such entry; the message names the closest known one.
    """
    if name in table:
        return table[name]
    if isinstance(name, str) and ":" in name:
        sample = next(iter(table.values()))
        return type(sample)(build=load_object(name), summary=f"user's {what}", parameters=None)
    raise TopologyError(f"Unknown {what} {name!r}; {closest(str(name), table)}")


def read_parameters(owner: str, entry: Entry, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters of ``entry``: the given ones checked, the others at their defaults.

    Parameters
    ----------
    owner : str
        The name of the entry, for the message.
    entry : Entry
        The entry.
    given : Mapping[str, Any]
        The given values by name.

    Returns
    -------
    dict of str to Any
        The complete parameters.

    Raises
    ------
    TopologyError
        For an unknown, missing, mistyped or out-of-range parameter.
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

    Parameters
    ----------
    owner : str
        The name of the entry, for the message.
    n : Any
        The number of nodes.

    Returns
    -------
    int
        The number of nodes.

    Raises
    ------
    TopologyError
        If it is not an integer of at least 1.
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise TopologyError(f"{owner}: n is {n!r}; it must be an integer of at least 1")
    check_memory(MATRIX_NODE_BYTES * int(n), f"{owner}: n is {n}, which")
    return int(n)


def check_memory(needed: float, what: str) -> None:
    """Refuse what would take more memory than is available, before it is made.

    Parameters
    ----------
    needed : float
        The memory in bytes.
    what : str
        The beginning of the message: what needs it.

    Raises
    ------
    TopologyError
        If there is not so much memory.
    """
    lacking = beyond_memory(needed)
    if lacking is not None:
        raise TopologyError(f"{what} {lacking}")


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split ``name:key=value,...`` into the name and its values, which stay text.

    The name may itself be ``package.module:object``, recognised by its dot.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    tuple of str and dict
        The name, and the values by key.

    Raises
    ------
    TopologyError
        If a part is not ``key=value`` or a key comes twice.

    Examples
    --------
    >>> parse_spec("torus:rows=8,cols=4")
    ('torus', {'rows': '8', 'cols': '4'})
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
