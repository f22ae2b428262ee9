"""The operations that the rest of mpifed asks of MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mpifed.mpi.sums import Sums


class Communicator(Protocol):
    """The operations on the ranks of a job.

    All are collective, called by every rank in the same order, except ``send``, ``receive``,
    ``tell``, ``told``, ``set_polling``, ``local_rank``, ``local_size`` and ``abort``.

    Attributes
    ----------
    rank : int
        The number of this rank, from 0.
    size : int
        The number of ranks.
    numbers : sequence of int
        The number of each of them in the job.
    job_size : int
        The number of ranks in the job, of which these may be a part.
    bytes_sent : int
        Bytes that this rank has handed to MPI so far.
    """

    rank: int
    size: int
    numbers: Sequence[int]
    job_size: int
    bytes_sent: int

    @property
    def mpi4py(self) -> Any:
        """The communicator of mpi4py, for a library that uses MPI itself; None for ``Alone``."""

    def among(self, ranks: Sequence[int]) -> Communicator | None:
        """Return the communicator of some of the ranks, which alone have to call it.

        Parameters
        ----------
        ranks : sequence of int
            Ascending.

        Returns
        -------
        Communicator or None
            None on a rank that is not one of them.
        """

    def tell(self, message: Any, to: int) -> None:
        """Send another rank a small object, which ``told`` returns there; it does not wait."""

    def told(self) -> Any:
        """Return the next object that another rank has sent by ``tell``; None if none is here."""

    def for_second_thread(self) -> Communicator | None:
        """Duplicate the communicator for another thread of this process.

        Returns
        -------
        Communicator or None
            The same ranks; messages of the two communicators do not mix. None where the MPI library
            does not allow calls from several threads at once.
        """

    def set_polling(self, often: bool) -> None:
        """Set how often the communicator of a second thread looks for messages.

        Parameters
        ----------
        often : bool
            As often as the main communicator does, for use while the run waits for the second
            thread; otherwise rarely.
        """

    def all_agree(self, mine: bool, patience: float) -> bool | None:
        """Whether ``mine`` is true on every rank, with a limit on the wait.

        Parameters
        ----------
        mine : bool
            The answer of this rank.
        patience : float
            Seconds that a rank with the answer False waits for the others, which may be waiting for
            it in another operation.

        Returns
        -------
        bool or None
            None if ``mine`` is False and the others did not answer in time.
        """

    def max(self, values: np.ndarray) -> np.ndarray:
        """Elementwise maximum over the ranks.

        Parameters
        ----------
        values : ndarray
            The same shape and type on every rank.

        Returns
        -------
        ndarray
            A new array of that shape and type.
        """

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Elementwise sum over the ranks, exact in any order.

        Parameters
        ----------
        values : ndarray of int64
            The same shape on every rank.

        Returns
        -------
        ndarray of int64
            A new array of that shape.

        Raises
        ------
        TypeError
            If there are several ranks and ``values`` is not of type int64.
        """

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return what :meth:`sum` does; ``values`` may be overwritten and returned."""
        return self.begin_total(values)()

    def begin_total(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        """Begin :meth:`total`, so that a rank computes meanwhile.

        Parameters
        ----------
        values : ndarray of int64
            The same shape on every rank; not to be read or changed before the end.

        Returns
        -------
        callable
            Waits for the sum and returns it. Ranks begin their sums in the same order.
        """

    def nodes(self) -> np.ndarray:
        """Return the node of each rank, int64 (size,).

        Nodes are numbered from 0 in the order of their first ranks. Ranks of a node can share
        memory.
        """

    def node_sums(self, nodes: np.ndarray) -> Sums:
        """Return sums in two steps, over the ranks of each node and over the nodes.

        Parameters
        ----------
        nodes : ndarray of int64, shape (size,)
            The node of each rank, as of :meth:`nodes`, or a finer partition.
        """

    def broadcast(self, values: np.ndarray | None, root: int = 0) -> np.ndarray:
        """Copy an array from one rank to all.

        Parameters
        ----------
        values : ndarray or None
            The array on ``root``; ignored elsewhere.
        root : int
            The rank that sends.

        Returns
        -------
        ndarray
            The array of ``root``.
        """

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return a small Python object of ``root`` on every rank."""

    def gather_object(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return every rank's small Python object on ``root``, in rank order; None elsewhere."""

    def exchange_rows(
        self, rows: np.ndarray, send: Sequence[np.ndarray], receive: Sequence[int]
    ) -> np.ndarray:
        """Send rows to every rank and receive rows from every rank.

        Parameters
        ----------
        rows : ndarray, shape (k, width)
            The rows of this rank.
        send : sequence of ndarray of int
            For each rank, the positions in ``rows`` of the rows that it gets.
        receive : sequence of int
            For each rank, the number of rows that come from it.

        Returns
        -------
        ndarray, shape (sum(receive), width)
            The rows received, in rank order.
        """
        return self.begin_exchange(rows, send, receive)()

    def begin_exchange(
        self, rows: np.ndarray, send: Sequence[np.ndarray], receive: Sequence[int]
    ) -> Callable[[], np.ndarray]:
        """Begin :meth:`exchange_rows`; what is returned waits for the rows and returns them.

        ``rows`` must not be changed before. Ranks begin and end their operations in the same order.
        """

    def gather_rows(self, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Return the rows of all ranks on every rank.

        Parameters
        ----------
        rows : ndarray, shape (counts[rank], width)
            The rows of this rank.
        counts : sequence of int
            The number of rows of each rank.

        Returns
        -------
        ndarray, shape (sum(counts), width)
            All rows, in rank order.
        """
        return self.begin_gather(rows, counts)()

    def begin_gather(self, rows: np.ndarray, counts: Sequence[int]) -> Callable[[], np.ndarray]:
        """Begin :meth:`gather_rows`, as :meth:`begin_exchange` begins an exchange."""

    def neighbourhood(self, sources: Sequence[int], destinations: Sequence[int]) -> Any:
        """Create a communication pattern that is used many times.

        Parameters
        ----------
        sources, destinations : sequence of int
            The ranks that this one receives from and sends to, ascending.

        Returns
        -------
        object
            The pattern, for :meth:`begin_exchange_in`.
        """

    def begin_exchange_in(
        self,
        neighbourhood: Any,
        rows: np.ndarray,
        send: Sequence[np.ndarray],
        receive: Sequence[int],
        most: int,
    ) -> Callable[[], np.ndarray]:
        """Begin what :meth:`begin_exchange` begins, between neighbours alone.

        Parameters
        ----------
        neighbourhood : object
            The pattern of :meth:`neighbourhood`.
        rows : ndarray, shape (k, width)
            The rows of this rank.
        send : sequence of ndarray of int
            For each rank, the positions of the rows that it gets; not used for this rank itself.
        receive : sequence of int
            For each rank, the number of rows that come from it.
        most : int
            The largest number of rows that any rank sends or receives, the same on all ranks.

        Returns
        -------
        callable
            Waits for the rows received, (sum(receive), width) in rank order, and returns them.
        """

    def send(self, values: np.ndarray, to: int) -> None:
        """Send an array to rank ``to``; returns once the array may be changed again."""

    def receive(self, shape: tuple[int, ...], dtype: Any, source: int) -> np.ndarray:
        """Receive an array.

        Parameters
        ----------
        shape : tuple of int
            Its shape.
        dtype : dtype
            Its type.
        source : int
            The rank that sends it.

        Returns
        -------
        ndarray
            The array.
        """

    def barrier(self) -> None:
        """Wait for every rank."""

    def local_rank(self) -> int:
        """Return the number of this rank among those of its node, from 0."""

    def local_size(self) -> int:
        """Return the number of ranks of its node."""

    def abort(self, code: int) -> None:
        """End all processes of the job at once, with exit code ``code``."""
