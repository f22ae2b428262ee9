"""When MPI begins: importing ``mpi4py.MPI`` begins it, but a process that forks ranks must not."""

from __future__ import annotations

import contextlib
import importlib
import sys


def import_mpi() -> None:
    """Import ``mpi4py.MPI`` without beginning MPI, in a process that ranks are forked from."""
    with contextlib.suppress(Exception):
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        try:
            importlib.import_module("mpi4py.MPI")
        finally:
            mpi4py.rc.initialize, mpi4py.rc.finalize = True, None


def begin_mpi() -> None:
    """Begin MPI where ``import_mpi`` was called in the process that forked this rank."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or module.Is_initialized():
        return
    from mpi4py import rc

    if rc.threads:
        module.Init_thread(getattr(module, f"THREAD_{rc.thread_level.upper()}"))
    else:
        module.Init()
