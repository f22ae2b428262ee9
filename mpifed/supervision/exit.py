"""How the process of a rank ends: as its interpreter would, but without taking objects apart.

Where several ranks share a core, taking Python and torch apart takes seconds, in which a scheduler
waits for its nodes. A rank with a guard therefore waits for its threads, runs what is registered
with ``atexit``, flushes open files, leaves MPI, and ends; what is lost is ``__del__`` of objects
that are still there.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import sys
import threading
import traceback
from typing import Any

from mpifed.supervision import heartbeat


class _Ending:
    """Whether the exit of this process ends before libraries are taken apart."""

    is_short = False


def skip_teardown() -> None:
    """In a guarded rank: lets the exit end where libraries loaded so far would be taken apart.

    To be called before MPI is initialised, whose own ending must not be skipped, or a launcher
    takes the rank for one that was killed: what is registered last runs first. Where MPI is there
    already (h5py with parallel HDF5 brings it), or the C library knows no ``on_exit``, the rank
    ends as any other program in Python.
    """
    libc = ctypes.CDLL(None)
    if heartbeat.watched() and "mpi4py.MPI" not in sys.modules and hasattr(libc, "on_exit"):
        _Ending.is_short = libc.on_exit(libc._exit, None) == 0


def leave(code: int) -> None:
    """Ends this process with ``code``; returns where its teardown is not to be skipped."""
    if not _Ending.is_short:
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush_files()
    module = sys.modules.get("mpifed.mpi.over_mpi4py")
    if module is not None:
        module.finalize()
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    libc.exit(code)


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
