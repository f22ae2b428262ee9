"""What a graph family is: its function, its parameters and its sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from topologies.catalogue import Entry, check_memory, node_count
from topologies.parameters import TopologyError

NODE_BYTES, EDGE_BYTES = 400, 300
"""Bytes that networkx and the lists made of it take for a node and for an edge, about."""


@dataclass(frozen=True)
class Family(Entry):
    """A graph family.

    Attributes
    ----------
    random : bool
        Whether it takes a seed.
    needs_n : bool
        Whether n must be given because its parameters alone do not determine it.
    edges : callable
        Returns about how many edges a graph of n nodes has.
    count : Callable[[Any, Mapping[str, Any]], int | None] | None
        Returns the number of nodes (None where it is known only after reading a file) and refuses
        sizes that do not exist.
    """

    random: bool = False
    needs_n: bool = True
    edges: Callable[[int, Mapping[str, Any]], float] = lambda n, params: n
    count: Callable[[Any, Mapping[str, Any]], int | None] | None = None

    def determined_by(self, given: Mapping[str, Any]) -> bool:
        """Return whether the given parameters alone determine the number of nodes."""
        return not self.needs_n and bool(given)


def count_nodes(name: str, family: Family, n: int | None, params: Mapping[str, Any]) -> int | None:
    """Return the number of nodes that a graph of the family has, without building it.

    Parameters
    ----------
    name : str
        The name of the family.
    family : Family
        The family.
    n : int | None
        The number of nodes, if it is given.
    params : Mapping[str, Any]
        The complete parameters of the family.

    Returns
    -------
    int or None
        The number of nodes; None where it is known only after reading a file.

    Raises
    ------
    TopologyError
        If the family has no graph of that size.
    """
    if n is None and family.needs_n and family.parameters is not None:
        raise TopologyError(f"{name} needs n, the number of nodes, an integer of at least 1")
    n = None if n is None else node_count(name, n)
    found = n if family.count is None else family.count(n, params)
    if found is not None and family.parameters is not None:
        needed = NODE_BYTES * found + EDGE_BYTES * family.edges(found, params)
        check_memory(needed, f"{name} with {found} nodes")
    return found
