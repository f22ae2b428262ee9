"""One rank of many, played by a single process that answers for the others and notes what
it asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifed.mpi.communicator import Alone
from mpifed.mpi.sums import FlatSums, Sums


@dataclass(frozen=True)
class Operation:
    """One operation of a communicator."""

    kind: str
    sent: int
    received: int
    messages: int = 0


class Played(Alone):
    """Rank 0 of ``size``; every other rank answers as this one, gives an empty array where arrays
    are gathered, and None in place of other objects.
    """

    def __init__(self, size: int, per_node: int) -> None:
        super().__init__()
        self.size, self._per_node = size, per_node
        self.numbers, self.job_size = range(size), size
        self.operations: list[Operation] = []
        self.answering = 0.0
        self._kept: list[np.ndarray] | None = None
        self._repeated: list[np.ndarray] = []

    def keep_answers(self) -> None:
        """Keep what reductions return from here on, for ``repeat_answers``."""
        self._kept, self._repeated = [], []

    def repeat_answers(self) -> None:
        """Answer the reductions that follow with what was kept, in the same order."""
        self._kept, self._repeated = None, (self._kept or [])[::-1]

    def answer_as_this_rank(self) -> None:
        """Neither keep nor repeat answers from here on."""
        self._kept, self._repeated = None, []

    def _answered(self, values: np.ndarray) -> np.ndarray:
        """Return what a reduction gives: ``values``, or in them what was kept."""
        if self._kept is None and not self._repeated:
            return values
        began = time.process_time()
        if self._repeated:
            answer = self._repeated.pop()
            if answer.shape == values.shape:  # else the algorithm has come to another place
                values[...] = answer
        elif self._kept is not None:
            self._kept.append(values.copy())
        self.answering += time.process_time() - began
        return values

    def _note(self, kind: str, sent: int, received: int, messages: int = 0) -> None:
        self.operations.append(Operation(kind, sent, received, messages))

    def max(self, values: np.ndarray) -> np.ndarray:
        self._note("reduce", values.nbytes, values.nbytes)
        return self._answered(values.copy())

    def sum(self, values: np.ndarray) -> np.ndarray:
        self._note("reduce", values.nbytes, values.nbytes)
        return self._answered(values.copy())

    def begin_total(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        self._note("reduce", values.nbytes, values.nbytes)
        made = self._answered(values)
        return lambda: made

    def nodes(self) -> np.ndarray:
        return np.arange(self.size) // self._per_node

    def node_sums(self, nodes: np.ndarray) -> Sums:
        return FlatSums(self._begin_node_total)

    def _begin_node_total(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        self._note("node sum", values.nbytes, values.nbytes)
        made = self._answered(values)
        return lambda: made

    def all_agree(self, mine: bool, patience: float) -> bool | None:
        self._note("reduce", 8, 8)
        return mine

    def broadcast(self, values: np.ndarray | None, root: int = 0) -> np.ndarray:
        assert values is not None
        self._note("broadcast", values.nbytes, values.nbytes)
        return values

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        self._note("broadcast", 64, 64)
        return value

    def gather_object(self, value: Any, root: int = 0) -> list[Any] | None:
        self._note("gather", 64, 64 * self.size)
        other = value[:0] if isinstance(value, np.ndarray) else None
        return [value, *[other] * (self.size - 1)]

    def begin_exchange(
        self, rows: np.ndarray, send: Sequence[np.ndarray], receive: Sequence[int]
    ) -> Callable[[], np.ndarray]:
        result = np.zeros((sum(receive), rows.shape[1]), rows.dtype)
        result[: receive[0]] = rows[send[0]]
        others = [len(wanted) for wanted in send[1:]]
        wide = rows.shape[1] * rows.itemsize
        self._note(
            "neighbours", sum(others) * wide, sum(receive[1:]) * wide, sum(map(bool, others))
        )
        return lambda: result

    def begin_gather(self, rows: np.ndarray, counts: Sequence[int]) -> Callable[[], np.ndarray]:
        result = np.zeros((sum(counts), rows.shape[1]), rows.dtype)
        result[: len(rows)] = rows
        self._note("gather", rows.nbytes, result.nbytes)
        return lambda: result

    def send(self, values: np.ndarray, to: int) -> None:
        self._note("neighbours", values.nbytes, 0, 1)

    def barrier(self) -> None:
        self._note("reduce", 0, 0)


class Unheard(Played):
    """``Played``, but where objects are gathered the list has the own one alone."""

    def gather_object(self, value: Any, root: int = 0) -> list[Any] | None:
        return [value]
