"""The operations that the rest of mpifed asks of MPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np


class Communicator(Protocol):
    """The operations on the ranks of a job."""

    rank: int
    size: int
    bytes_sent: int
    room: int
    """Bytes that all ranks may gather in memory that they share, where a core has several."""

    @property
    def mpi4py(self) -> Any:
        """The communicator of mpi4py, for a library that uses MPI itself; None for ``Alone``."""

    def for_second_thread(self) -> Communicator | None:
        """Duplicate the communicator for another thread of this process."""

    def all_agree(self, mine: bool, patience: float) -> bool | None:
        """Whether ``mine`` is true on every rank, with a limit on the wait."""

    def max(self, values: np.ndarray) -> np.ndarray:
        """Elementwise maximum over the ranks."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Elementwise sum over the ranks, exact in any order."""

    def nodes(self) -> np.ndarray:
        """Return the node of each rank, int64 (size,)."""

    def broadcast(self, values: np.ndarray | None, root: int = 0) -> np.ndarray:
        """Copy an array from one rank to all."""

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return a small Python object of ``root`` on every rank."""

    def gather_object(self, value: Any) -> list[Any] | None:
        """Return every rank's small Python object on rank 0, in rank order; None elsewhere."""

    def exchange_rows(
        self, rows: np.ndarray, send: Mapping[int, np.ndarray], receive: Mapping[int, int]
    ) -> np.ndarray:
        """Send the rows in ``send`` to ranks, and return ``receive`` rows of ranks, in their
        order.
        """

    def gather_rows(self, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Return the rows of all ranks on every rank."""

    def send(self, values: np.ndarray, to: int) -> None:
        """Send an array to rank ``to``; returns once the array may be changed again."""

    def receive(self, shape: tuple[int, ...], dtype: Any, source: int) -> np.ndarray:
        """Receive an array."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def local_rank(self) -> int:
        """Return the number of this rank among those of its node, from 0."""

    def abort(self, code: int) -> None:
        """End all processes of the job at once, with exit code ``code``."""
