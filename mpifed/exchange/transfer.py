"""Moving what a round of gossip needs between ranks, some columns of the rows at a time.

However large a model is, a rank holds beside its own rows only what arrives for some columns of
them. These are mixed before the next are sent. A small model travels in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mpifed.exchange.routes import Route
from mpifed.mpi.communicator import Communicator

T = TypeVar("T")

BUFFER = 1 << 23
"""Bytes of rows and sums, leaving and arriving, of a piece; a rank holds two at a time."""

LITTLE = 1 << 21
"""Bytes of a large model that a piece may have without notice, beside a rank's clients."""

COLUMNS, FEWEST, PIECES = 1 << 15, 8, 32
"""A model of more numbers than ``COLUMNS`` travels in at least ``PIECES``, or pieces of that; in
``FEWEST`` where these have no more than ``LITTLE`` bytes.
"""


@dataclass(frozen=True)
class Arrival:
    """Some columns of the rows that a rank mixes.

    Attributes
    ----------
    columns : slice
        The columns.
    rows : ndarray
        Rows from other ranks, (nodes, width), in the order of ``Route.columns``.
    sums : list of tuple
        For each rank that sends sums: the rows they add to, int64 (k,), and the products, float64
        (orders, k, width).
    """

    columns: slice
    rows: np.ndarray
    sums: list[tuple[np.ndarray, np.ndarray]]


def arrivals(
    communicator: Communicator, route: Route, neighbourhood: Any, flat: np.ndarray, exponent: int
) -> Iterator[Arrival]:
    """Return what a rank mixes, piece by piece. Collective: every rank must take all pieces.

    While a piece is mixed the next one travels.

    Parameters
    ----------
    communicator : Communicator
        All ranks of the run.
    route : Route
        What is sent.
    neighbourhood : object
        What the communicator made for the route, if that is its transport, else None.
    flat : ndarray
        Rows of ``route.mine``, (clients, numbers).
    exponent : int
        All numbers of all ranks are below 2**exponent in modulus.
    """
    width, by_sums = piece(flat.shape[1], route.bytes_a_number), route.by_sums.any()

    def begun() -> Iterator[Callable[[], Arrival]]:
        for start in range(0, flat.shape[1], width):
            columns = slice(start, min(start + width, flat.shape[1]))
            part = flat[:, columns]
            rows = _begin_rows(communicator, route, neighbourhood, part)
            sums = _begin_sums(communicator, route, part, exponent) if by_sums else list
            yield partial(_arrival, columns, rows, sums)

    return ahead(begun())


def _arrival(
    columns: slice,
    rows: Callable[[], np.ndarray],
    sums: Callable[[], list[tuple[np.ndarray, np.ndarray]]],
) -> Arrival:
    return Arrival(columns, rows(), sums())


def ahead(begun: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield what operations return, each once the one after it has begun.

    Examples
    --------
    >>> def operation(k):
    ...     print("begin", k)
    ...     return lambda: k
    >>> for k in ahead(map(operation, range(2))):
    ...     print("use", k)
    begin 0
    begin 1
    use 0
    use 1
    """
    waiting: Callable[[], T] | None = None
    for operation in begun:
        if waiting is not None:
            yield waiting()
        waiting = operation
    if waiting is not None:
        yield waiting()


def piece(numbers: int, bytes_a_number: int) -> int:
    """Return the columns of a model of so many numbers that travel at a time.

    Examples
    --------
    >>> piece(1_000_000, 16), piece(1_000_000, 800), piece(1000, 16), piece(10**9, 800)
    (125000, 10485, 32768, 10485)
    """
    little = min(-(-numbers // FEWEST), LITTLE // bytes_a_number)
    return max(1, min(BUFFER // bytes_a_number, max(COLUMNS, numbers // PIECES, little)))


def _begin_rows(
    communicator: Communicator, route: Route, neighbourhood: Any, part: np.ndarray
) -> Callable[[], np.ndarray]:
    transport = route.chosen[0]
    if transport == "collective":
        return communicator.begin_gather(part, route.receive)
    if transport == "neighbourhood":
        return communicator.begin_exchange_in(
            neighbourhood, part, route.send, route.receive, route.most
        )
    return communicator.begin_exchange(part, route.send, route.receive)


def _begin_sums(
    communicator: Communicator, route: Route, part: np.ndarray, exponent: int
) -> Callable[[], list[tuple[np.ndarray, np.ndarray]]]:
    """Gives other ranks the sums of our rows that they want, and takes theirs."""
    orders, width = 2 * route.traffic.limbs - 1, part.shape[1]
    receive = [len(nodes) for nodes in route.sums_from]
    ends = np.cumsum([len(nodes) for nodes in route.sums_to])
    send = [
        np.arange(end - len(nodes), end) for end, nodes in zip(ends, route.sums_to, strict=True)
    ]
    outgoing = np.empty((ends[-1], orders, width))
    for places, made in zip(send, route.sum_mixers, strict=True):
        if made:
            outgoing[places] = np.moveaxis(made.products(part, exponent), 0, 1)
    arriving = communicator.begin_exchange(outgoing.reshape(-1, orders * width), send, receive)

    def ended() -> list[tuple[np.ndarray, np.ndarray]]:
        arrived, found, begin = arriving(), [], 0
        for nodes in route.sums_from:
            block = arrived[begin : begin + len(nodes)].reshape(len(nodes), orders, width)
            begin += len(nodes)
            if len(nodes):
                found.append((np.searchsorted(route.mine, nodes), np.moveaxis(block, 1, 0)))
        return found

    return ended
