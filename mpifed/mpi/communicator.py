"""The communicator of a job, with or without MPI."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpifed.errors import InputError
from mpifed.mpi.protocol import Communicator
from mpifed.watchdog.launcher import launched
from topologies.job_environment import SIZE_VARIABLES

__all__ = [
    "LAUNCHER_SIZES",
    "Alone",
    "Communicator",
    "begin_mpi",
    "check_launcher",
    "check_size",
    "communicator_of",
    "import_mpi",
    "spare_memory",
    "world",
]

# How many tasks a launcher says it started: Open MPI, MPICH/hydra, PMIx under SLURM, Intel MPI.
LAUNCHER_SIZES = (*SIZE_VARIABLES, "MPI_LOCALNRANKS")

CURE = (
    "use the mpirun of the same MPI installation (that of an environment is in its bin: "
    "`source .venv/bin/activate`), or name the launcher's library in MPI4PY_LIBMPI"
)


class Alone(Communicator):
    """A single process without MPI; see ``Communicator`` for the operations."""

    rank = 0
    size = 1
    mpi4py = None

    def __init__(self) -> None:
        self.bytes_sent = 0

    def for_second_thread(self) -> Communicator | None:
        return Alone()

    def all_agree(self, mine: bool, patience: float) -> bool | None:
        return mine

    def max(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def nodes(self) -> np.ndarray:
        return np.zeros(self.size, np.int64)

    def broadcast(self, values: np.ndarray | None, root: int = 0) -> np.ndarray:
        assert values is not None
        return values

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        return value

    def gather_object(self, value: Any) -> list[Any] | None:
        return [value]

    def exchange_rows(
        self, rows: np.ndarray, send: Mapping[int, np.ndarray], receive: Mapping[int, int]
    ) -> np.ndarray:
        return rows[send.get(0, np.zeros(0, int))]

    def gather_rows(self, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        return rows

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
    """Return the communicator of this job."""
    why = ""
    spare_memory()
    try:
        from mpifed.mpi.over_mpi4py import Mpi, world_size
    except (ImportError, RuntimeError) as error:
        why = f" (mpi4py finds no MPI library: {' '.join(str(error).split())[:200]})"
        communicator: Communicator = Alone()
    else:
        communicator = Mpi() if world_size() > 1 else Alone()
    check_size(communicator.size, expected_ranks, dict(os.environ), why)
    return communicator


def communicator_of(comm: Any) -> Communicator:
    """Return the operations on a caller's communicator of mpi4py. Collective over its ranks."""
    from mpifed.mpi.over_mpi4py import Mpi

    communicator = Mpi(comm=comm)
    return communicator if communicator.size > 1 else Alone()


def check_launcher() -> None:
    """Raise ``InputError`` where Open MPI's launcher has started a rank with MPICH's library.

    MPICH would abort with words of PMIx; other pairs begin, each process a job of one rank.
    """
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return
    with contextlib.suppress(ImportError, RuntimeError):  # no MPI, of which ``world`` speaks
        import_mpi()
        library = _library_name()
        if library.startswith("MPICH"):
            raise InputError(
                f"the launcher is Open MPI's mpirun, but the MPI library of mpi4py is {library}, "
                f"and they do not match; {CURE}"
            )


def _library_name() -> str:
    """Return the name and version of the MPI library, on one line."""
    text = sys.modules["mpi4py.MPI"].Get_library_version()
    return " ".join(text.split(",")[0].split("\n")[0].replace("Version:", "").split())


def check_size(size: int, expected: int | None, environment: dict[str, str], why: str = "") -> None:
    """Check the number of ranks that MPI reports."""
    if expected is not None and expected != size:
        raise InputError(
            f"--expect-ranks says {expected}, but MPI started {size}{why}: the launcher was asked "
            "for another number, or it and the MPI library that mpi4py uses do not match: use the "
            "mpirun of the same installation"
        )
    if size > 1 or expected is not None:
        return
    library = f" ({_library_name()})" if "mpi4py.MPI" in sys.modules else ""
    for variable in LAUNCHER_SIZES:
        tasks = environment.get(variable, "")
        if tasks.isdigit() and int(tasks) > 1:
            raise InputError(
                f"{variable} says that {tasks} tasks were started, but MPI{library} knows of one"
                f"{why}: the MPI library that mpi4py uses and the launcher do not match; {CURE}, "
                "or srun --mpi=pmix or --mpi=pmi2"
            )


def spare_memory() -> None:
    """Have UCX set aside 0.7 MiB a rank for messages within a host, in place of 4, and look for no
    network where there is no other host.
    """
    launch = launched()
    if launch is not None and launch.on_one_host and "PMI_FD" in os.environ:
        os.environ.setdefault("UCX_MM_SEG_SIZE", "512")
        os.environ.setdefault("UCX_TLS", "sm,self")


def import_mpi() -> None:
    """Import ``mpi4py.MPI`` without beginning MPI, in a process that ranks are forked from."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    importlib.import_module("mpi4py.MPI")


def begin_mpi() -> None:
    """Begin MPI where ``import_mpi`` was called in the process that forked this rank."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or module.Is_initialized():
        return
    from mpi4py import rc

    rc.initialize, rc.finalize = True, None
    if rc.threads:
        module.Init_thread(getattr(module, f"THREAD_{rc.thread_level.upper()}"))
    else:
        module.Init()
