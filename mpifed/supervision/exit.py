"""How the process of a run ends: as its interpreter would, but without taking objects apart.

Where several ranks share a core, taking Python and torch apart takes seconds, in which a scheduler
waits for its nodes. The process therefore waits for its threads, runs what is registered with
``atexit``, flushes open files, leaves MPI, and ends. What is lost is ``__del__`` of objects that
are still there, and what was registered before ``prepare`` was called.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import signal
import socket
import sys
import threading
import traceback
from typing import Any

from mpifed.supervision import heartbeat
from mpifed.supervision.launcher import launched_rank

PATIENCE = 60.0
"""Seconds that a component's threads and ``atexit`` functions may take after the run."""


class _Ending:
    """The exit code of this process, once it is known."""

    code: int | None = None


def prepare() -> None:
    """To be called before anything else is registered: ``atexit`` runs the first one last."""
    atexit.register(_finish)


def skip_teardown() -> None:
    """In a guarded rank: lets the exit end where libraries loaded so far would be taken apart.

    To be called before MPI is initialised, which must hear of the exit, or a launcher takes the
    rank for one that was killed: what is registered last runs first. Where MPI is there already
    (h5py with parallel HDF5 brings it), or the C library knows no ``on_exit``, the exit takes
    longer.
    """
    libc = ctypes.CDLL(None)
    if heartbeat.watched() and "mpi4py.MPI" not in sys.modules and hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


def leave(code: int) -> int:
    """Lets this process end with ``code``, whatever a component has left behind; returns it."""
    _Ending.code = code
    if hasattr(signal, "setitimer"):
        # The interpreter waits for threads without a limit, but handles signals meanwhile.
        signal.signal(signal.SIGALRM, lambda number, frame: _give_up())
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    return code


def _give_up() -> None:
    every, main = threading.enumerate(), threading.main_thread()
    names = [repr(one.name) for one in every if one is not main and not one.daemon]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    what = "a function registered with atexit"
    if names:
        what = f"the thread {', '.join(names[:3])}{more}"
    rank = launched_rank()
    where = ""
    if rank is not None:
        where = f"rank {rank} on {socket.gethostname()}{heartbeat.whereabouts()}: "
    with contextlib.suppress(OSError, ValueError):
        print(
            f"mpifed: {where}{what} has not ended {PATIENCE:.0f} s after the run, which ends "
            "without it",
            file=sys.stderr,
            flush=True,
        )
    _finish()


def _finish() -> None:
    """The last of the functions at the exit."""
    if _Ending.code is None:
        return
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    _flush_files()
    _leave_mpi()
    # Not the interpreter's own exit; and no other thread of Python's runs meanwhile.
    libc = ctypes.PyDLL(None)
    libc.fflush(None)
    libc.exit(_Ending.code)


def _leave_mpi() -> None:
    """As mpi4py does at the interpreter's exit; collective."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        heartbeat.waits(True)
        module.Finalize()


def _flush_files() -> None:
    """Python's and HDF5's files that nobody has closed, and standard output."""
    # The class itself: a proxy that is asked for its own may import what it stands for. The base in
    # C, of which every file is made: the abstract one takes three times as long to ask.
    base: Any = io.IOBase.__base__
    files: list[Any] = [found for found in gc.get_objects() if issubclass(type(found), base)]
    kept = [stream.flush for stream in (*files, sys.stdout, sys.stderr) if stream is not None]
    module = sys.modules.get("mpifed.checkpoint.hdf5")
    if module is not None:
        kept.append(module.flush_open_files)
    for flush in kept:
        try:
            flush()
        except ValueError:
            pass  # closed before
        except Exception:
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exc()
