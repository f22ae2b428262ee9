"""Several ranks played by the threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from mpifed.mpi.communicator import Alone

T = TypeVar("T")


class Played(Alone):
    """One of several ranks that move arrays to each other."""

    def __init__(
        self, rank: int, barrier: threading.Barrier, values: list[Any], node: np.ndarray
    ) -> None:
        super().__init__()
        self.rank, self.size, self._node = rank, len(values), node
        self.crossed = 0  # bytes that have come from other hosts
        self._barrier, self._values = barrier, values

    def _all(self, value: Any) -> list[Any]:
        """What all ranks give, in their order. Collective."""
        self._values[self.rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found

    def nodes(self):
        return self._node

    def max(self, values):
        return np.max(self._all(values), axis=0)

    def broadcast(self, values, root=0):
        return self._all(values)[root]

    def broadcast_object(self, value, root=0):
        return self._all(value)[root]

    def gather_object(self, value):
        every = self._all(value)
        return every if self.rank == 0 else None

    def exchange_rows(self, rows, send, receive):
        every = self._all((rows, send))
        arrived = np.concatenate([those[of.get(self.rank, [])] for those, of in every])
        lengths = np.array([len(of.get(self.rank, [])) for _, of in every])
        far = lengths[self._node != self._node[self.rank]].sum()
        self.crossed += int(far) * arrived.shape[1] * arrived.itemsize
        assert len(arrived) == sum(receive.values())
        self._barrier.wait()  # nobody changes its rows before all have read them
        return arrived

    def gather_rows(self, rows, counts):
        every = self._all(rows.copy())
        assert [len(those) for those in every] == list(counts)
        return np.concatenate(every)


def on_played_ranks(
    size: int, action: Callable[[Any], T], node: np.ndarray | None = None
) -> list[T]:
    """What ``action(communicator)`` returns on each of ``size`` ranks, which live on ``node``."""
    node = np.zeros(size, int) if node is None else node
    if size == 1:
        return [action(Alone())]
    barrier, values = threading.Barrier(size, timeout=60), [None] * size

    def one(rank: int) -> T:
        try:
            return action(Played(rank, barrier, values, node))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
    errors = [future.exception() for future in futures if future.exception() is not None]
    told = [each for each in errors if not isinstance(each, threading.BrokenBarrierError)]
    for error in [*told, *errors]:
        raise error
    return [future.result() for future in futures]
