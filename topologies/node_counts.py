"""Numbers of nodes: their prime factors, and checks of their size and of a source's number."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from topologies.errors import TopologyError
from topologies.memory_limits import check_memory

# Bytes that a mixing matrix takes for each node, without its edges, at least.
MATRIX_NODE_BYTES = 64


def node_count(owner: str, n: Any) -> int:
    """Return the number of nodes as an int."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise TopologyError(f"{owner}: n is {n!r}; it must be an integer of at least 1")
    check_memory(MATRIX_NODE_BYTES * int(n), f"{owner}: n is {n}, which")
    return int(n)


def check_nodes(owner: str, n: int | None, count: int, source: str) -> None:
    """Check that a source has as many nodes as are asked for; None asks for no number."""
    if n not in (None, count):
        raise TopologyError(f"{owner}: n is {n}, but {source} has {count} nodes")


def prime_factors(n: int) -> list[int]:
    """Return the prime factors of n in ascending order, with repetition."""
    factors, factor = [], 2
    while factor * factor <= n:
        while n % factor == 0:
            factors.append(factor)
            n //= factor
        factor += 1
    return factors + [n] * (n > 1)
