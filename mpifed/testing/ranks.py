"""Several ranks that are played by the threads of one process."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mpifed.errors import PeerFailure
from mpifed.mpi import communicator as communicators
from mpifed.mpi.communicator import Alone, Communicator

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds that a played rank waits for the others."""


class Table:
    """What the played ranks share: a barrier, a value of each, and messages between two.

    One rank computes at a time, because torch's random numbers belong to the process; of second
    threads, which write files, all do.
    """

    def __init__(self, nodes: np.ndarray, in_turns: bool = True) -> None:
        self.nodes = nodes
        self.turn = threading.Lock() if in_turns else None
        self.barrier = threading.Barrier(len(nodes), timeout=PATIENCE)
        self.values: list[Any] = [None] * len(nodes)
        ranks = range(len(nodes))
        # All are made before a thread begins: two threads that miss one at once would make two.
        self.messages: dict[tuple[int, int], queue.Queue[Any]] = {
            pair: queue.Queue() for pair in itertools.product(ranks, ranks)
        }

    def wait(self) -> None:
        """Wait for all ranks while others compute."""
        with self.others():
            self.barrier.wait()

    @contextmanager
    def others(self) -> Iterator[None]:
        """Let other ranks compute within the block."""
        if self.turn is None:
            yield
            return
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()


class Played(Alone):
    """One of several ranks that move arrays to each other.

    Attributes
    ----------
    crossed : int
        Bytes that have come from other nodes.
    """

    def __init__(self, rank: int, table: Table) -> None:
        super().__init__()
        self.rank, self.size, self.table = rank, len(table.nodes), table
        self.crossed = 0

    def _all(self, value: Any) -> list[Any]:
        """Return what all ranks pass, in their order. Collective."""
        self.table.values[self.rank] = value
        self.table.wait()
        values = list(self.table.values)
        self.table.wait()
        return values

    def for_second_thread(self) -> Communicator | None:
        tables = self._all(Table(self.table.nodes, False) if self.rank == 0 else None)
        return Played(self.rank, tables[0])

    def all_agree(self, mine: bool, patience: float) -> bool | None:
        return all(self._all(mine))

    def nodes(self) -> np.ndarray:
        return self.table.nodes

    def max(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(np.max(self._all(values.copy()), axis=0))

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(np.sum(self._all(values.copy()), axis=0, dtype=values.dtype))

    def broadcast(self, values: np.ndarray | None, root: int = 0) -> np.ndarray:
        sent = self._all(None if values is None else values.copy())[root]
        return np.array(sent, copy=True)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        return self._all(value)[root]

    def gather_object(self, value: Any) -> list[Any] | None:
        values = self._all(value)
        return values if self.rank == 0 else None

    def exchange_rows(
        self, rows: np.ndarray, send: Mapping[int, np.ndarray], receive: Mapping[int, int]
    ) -> np.ndarray:
        of_all = self._all((rows, send))
        parts = [theirs[to.get(self.rank, np.zeros(0, int))] for theirs, to in of_all]
        far = self.table.nodes != self.table.nodes[self.rank]
        self.crossed += sum(part.nbytes for part, is_far in zip(parts, far, strict=True) if is_far)
        arrived = np.concatenate(parts)
        assert len(arrived) == sum(receive.values()), "ranks disagree about the rows they send"
        self.table.wait()  # no rank changes its rows before all have read them
        return arrived

    def gather_rows(self, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        parts = self._all(rows.copy())
        assert [len(part) for part in parts] == list(counts), "ranks disagree about their rows"
        return np.concatenate(parts)

    def send(self, values: np.ndarray, to: int) -> None:
        self.table.messages[self.rank, to].put(values.copy())

    def receive(self, shape: tuple[int, ...], dtype: Any, source: int) -> np.ndarray:
        with self.table.others():
            values: np.ndarray = self.table.messages[source, self.rank].get(timeout=PATIENCE)
        assert values.shape == tuple(shape) and values.dtype == dtype
        return values

    def barrier(self) -> None:
        self.table.wait()


def played(
    action: Callable[[Communicator], T], ranks: int, nodes: np.ndarray | None = None
) -> list[T]:
    """Return what ``action(communicator)`` returns on each of several ranks.

    They are threads of this process. One rank is this thread itself.

    Parameters
    ----------
    action : callable
        What each rank does with its communicator.
    ranks : int
        Number of ranks.
    nodes : ndarray, optional
        The node of each rank, int64 (ranks,); all are on one by default.

    Returns
    -------
    list
        The results in the order of the ranks.

    Examples
    --------
    >>> played(lambda communicator: communicator.sum(np.array([communicator.rank])).tolist(), 3)
    [[3], [3], [3]]
    """
    if ranks == 1:
        return [action(Alone())]
    table = Table(np.zeros(ranks, np.int64) if nodes is None else np.asarray(nodes))
    return in_threads([partial(action, Played(rank, table)) for rank in range(ranks)], table)


def world() -> Communicator:
    """Return the ranks that mpirun or srun has started; this process alone without them.

    Returns
    -------
    Communicator
        Its ``rank`` and ``size``, and what MPI does between ranks.

    Examples
    --------
    A test that passes on any number of ranks, with and without ``mpirun``:

    >>> ranks = world()
    >>> ranks.rank in range(ranks.size)
    True
    """
    return communicators.world()


def in_threads(actions: Sequence[Callable[[], T]], table: Table) -> list[T]:
    """Return what the actions of the ranks at a table return; raise what first went wrong."""

    def guarded(action: Callable[[], T]) -> T:
        try:
            with table.turn or nullcontext():
                return action()
        except PeerFailure:  # the rank that reports it may not have left the barrier
            raise
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(len(actions)) as pool:
        futures = [pool.submit(guarded, action) for action in actions]
    errors = [error for future in futures if (error := future.exception()) is not None]
    effects = (threading.BrokenBarrierError, PeerFailure)
    causes = [error for error in errors if not isinstance(error, effects)]
    for error in [*causes, *errors]:
        raise error
    return [future.result() for future in futures]
