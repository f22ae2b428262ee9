"""MPI behind a handful of verbs on numpy arrays.

``world()`` gives every process its communicator: ``Mpi`` (``mpifed.mpi.over_mpi4py``) over several
ranks, and ``Alone``, the same verbs, for a single process, with or without an MPI library.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mpifed.errors import InputError

# How many tasks a launcher says it started: Open MPI, MPICH/hydra, PMIx under SLURM, Intel MPI.
LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "MPI_LOCALNRANKS")


class Communicator(Protocol):
    """What the rest of mpifed asks of MPI. All but ``send``, ``receive``,
    ``set_polling`` and ``abort`` are collective.
    """

    rank: int
    size: int
    bytes_sent: int

    @property
    def mpi4py(self) -> Any:
        """The communicator of mpi4py, for a library that itself speaks MPI; None for ``Alone``."""

    def beside(self) -> Communicator | None:
        """The same ranks for another thread, whose messages meet no others; collective.

        None where the MPI library does not let two threads call it at once.
        """

    def set_polling(self, yes: bool) -> None:
        """Whether a thread beside the run looks for its messages as often as the run does: while
        the run waits for it. Not collective.
        """

    def all_agree(self, mine: bool, patience: float) -> bool | None:
        """Whether ``mine`` is true on every rank; None where nobody can say.

        A rank whose own answer is false waits at most ``patience`` seconds for the others, which
        may be in another verb, waiting for this rank: then it gets None.
        """

    def max(self, values: np.ndarray) -> np.ndarray:
        """Elementwise maximum over the ranks."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Elementwise sum over the ranks; exact for int64, the only type it takes."""

    def broadcast(self, values: np.ndarray | None, root: int = 0) -> np.ndarray:
        """``values`` of ``root`` on every rank."""

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """A small Python object of ``root`` on every rank."""

    def gather_object(self, value: Any, root: int = 0) -> list[Any] | None:
        """Every rank's small Python object, in rank order, on ``root``; None elsewhere."""

    def exchange_rows(
        self, rows: np.ndarray, send: Sequence[np.ndarray], receive: Sequence[int]
    ) -> np.ndarray:
        """Rows to and from every rank.

        ``rows`` has shape (k, width); ``send[r]`` lists which of them go to rank r; ``receive[r]``
        says how many come from it. Returns (sum(receive), width) in rank order.
        """

    def gather_rows(self, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Everybody's rows on every rank, in rank order; ``counts`` says how many each has."""

    def neighbourhood(self, sources: Sequence[int], destinations: Sequence[int]) -> Any:
        """A lasting pattern: the ranks that this one receives from, and sends to, ascending."""

    def exchange_in(
        self,
        neighbourhood: Any,
        rows: np.ndarray,
        send: Sequence[np.ndarray],
        receive: Sequence[int],
        most: int,
    ) -> np.ndarray:
        """As ``exchange_rows``, within a neighbourhood, and nothing to oneself.

        Nobody sends or gets more than ``most`` rows.
        """

    def send(self, values: np.ndarray, to: int) -> None:
        """Sends an array to one rank; blocks until it may be reused."""

    def receive(self, shape: tuple[int, ...], dtype: Any, source: int) -> np.ndarray:
        """The array that ``source`` sends."""

    def barrier(self) -> None:
        """Waits for every rank."""

    def local_rank(self) -> int:
        """The number of this rank among those of its node."""

    def abort(self, code: int) -> None:
        """Ends the whole job at once."""


class Alone:
    """One process, no MPI."""

    rank = 0
    size = 1
    mpi4py = None

    def __init__(self) -> None:
        self.bytes_sent = 0

    def beside(self) -> Communicator | None:
        return Alone()

    def set_polling(self, yes: bool) -> None:
        pass

    def all_agree(self, mine: bool, patience: float) -> bool | None:
        return mine

    def max(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def broadcast(self, values: np.ndarray | None, root: int = 0) -> np.ndarray:
        assert values is not None
        return values

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        return value

    def gather_object(self, value: Any, root: int = 0) -> list[Any] | None:
        return [value]

    def exchange_rows(
        self, rows: np.ndarray, send: Sequence[np.ndarray], receive: Sequence[int]
    ) -> np.ndarray:
        return rows[send[0]]

    def gather_rows(self, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        return rows

    def neighbourhood(self, sources: Sequence[int], destinations: Sequence[int]) -> Any:
        return None

    def exchange_in(
        self,
        neighbourhood: Any,
        rows: np.ndarray,
        send: Sequence[np.ndarray],
        receive: Sequence[int],
        most: int,
    ) -> np.ndarray:
        return rows[send[0]]

    def send(self, values: np.ndarray, to: int) -> None:
        raise AssertionError("a single process has nobody to send to")

    def receive(self, shape: tuple[int, ...], dtype: Any, source: int) -> np.ndarray:
        raise AssertionError("a single process has nobody to receive from")

    def barrier(self) -> None:
        pass

    def local_rank(self) -> int:
        return 0

    def abort(self, code: int) -> None:
        os._exit(code)


def world(expected_ranks: int | None = None) -> Communicator:
    """The communicator of this job.

    Raises ``InputError`` if the launcher, or ``expected_ranks``, says that there are more processes
    than MPI knows of: the MPI library of mpi4py and the launcher do not match, and each process
    would silently run the whole experiment by itself.
    """
    why = ""
    try:
        from mpifed.mpi.over_mpi4py import Mpi, world_size
    except (ImportError, RuntimeError) as error:
        why = f" (mpi4py finds no MPI library: {' '.join(str(error).split())[:200]})"
        communicator: Communicator = Alone()
    else:
        communicator = Mpi.world() if world_size() > 1 else Alone()
    check_size(communicator.size, expected_ranks, dict(os.environ), why)
    return communicator


def check_size(size: int, expected: int | None, environment: dict[str, str], why: str = "") -> None:
    """Refuses a communicator of the wrong size; see ``world``. ``why`` explains a size of 1."""
    if expected is not None and expected != size:
        raise InputError(
            f"--expect-ranks says {expected}, but MPI started {size}{why}: the launcher was told "
            "another number, or it and the MPI library that mpi4py uses do not match: use the "
            "mpirun of the same installation"
        )
    if size > 1 or expected is not None:
        return
    for variable in LAUNCHER_SIZES:
        tasks = environment.get(variable, "")
        if tasks.isdigit() and int(tasks) > 1:
            raise InputError(
                f"{variable} says that {tasks} tasks were started, but MPI knows of one{why}: the "
                "MPI library that mpi4py uses and the launcher do not match; use the mpirun of the "
                "same MPI installation, or srun --mpi=pmix or --mpi=pmi2"
            )
