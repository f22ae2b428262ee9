"""How the process of a run ends: like the interpreter's own exit, but without deallocating
objects.
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
from typing import Any

from mpifed.watchdog import heartbeat
from mpifed.watchdog.launcher import launched_rank

# Seconds that a component's threads and ``atexit`` functions may take after the run.
PATIENCE = 60.0


class _Ending:
    """The exit code of this process, once it is known."""

    code: int | None = None


def prepare() -> None:
    """Register the end of this process; call it before anything else is registered."""
    atexit.register(_finish)


def skip_teardown() -> None:
    """In a guarded rank, end the process before the libraries loaded so far are torn down."""
    libc, mpi = ctypes.CDLL(None), sys.modules.get("mpi4py.MPI")
    begun = mpi is not None and mpi.Is_initialized()
    if heartbeat.watched() and not begun and hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


def leave(code: int) -> int:
    """Set the exit code of this process and bound the time that its exit may take."""
    _Ending.code = code
    heartbeat.send_to_guard(code=code)
    keep_operators()
    if hasattr(signal, "setitimer"):
        # The interpreter waits for threads without a limit, but handles signals meanwhile.
        signal.signal(signal.SIGALRM, lambda number, frame: _give_up())
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    return code


def keep_operators() -> None:
    """Have torch leave its operators registered when the process ends."""
    if "torch.library" not in sys.modules:
        return
    finalize = sys.modules["weakref"].finalize
    for finalizer in list(getattr(finalize, "_registry", ())):
        kept = finalizer.peek()
        if kept is not None and getattr(kept[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def _give_up() -> None:
    import threading  # here, since every guard would import it

    every, main = threading.enumerate(), threading.main_thread()
    names = [repr(one.name) for one in every if one is not main and not one.daemon]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    what = "a function registered with atexit"
    if names:
        what = f"the thread {', '.join(names[:3])}{more}"
    rank = launched_rank()
    where = ""
    if rank is not None:
        where = f"rank {rank} on {socket.gethostname()}{heartbeat.hosted_clients()}: "
    with contextlib.suppress(OSError, ValueError):
        print(
            f"mpifed: {where}{what} has not ended {PATIENCE:.0f} s after the run, which ends "
            "without it",
            file=sys.stderr,
            flush=True,
        )
    _finish()


def _finish() -> None:
    """End the process; the last of the functions at the exit."""
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
    """Finalise MPI as mpi4py does at the interpreter's exit; collective."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        heartbeat.set_waiting(True)
        module.Finalize()


def _flush_files() -> None:
    """Flush standard output and the files of Python that are still open; HDF5 flushes its own."""
    # type(found), since a proxy's __class__ may import the object behind it. The base class in C
    # of all files: a check against the abstract one takes three times as long.
    base: Any = io.IOBase.__base__
    files: list[Any] = [found for found in gc.get_objects() if issubclass(type(found), base)]
    kept = [stream.flush for stream in (*files, sys.stdout, sys.stderr) if stream is not None]
    for flush in kept:
        try:
            flush()
        except ValueError:
            pass  # closed before
        except Exception:
            import traceback  # here, since every guard would import it

            with contextlib.suppress(OSError, ValueError):
                traceback.print_exc()
