"""Checkpoints that are written while the run goes on.

``Writer.start`` copies the state of the round and returns; a thread on every rank writes the copy,
or sends its rows to the rank that does. One checkpoint is in flight at most: where the disk is
slower than the interval, ``start`` waits for the one before. A failure is raised at the next round
boundary.

Threads need an MPI library that lets two threads of a process call it at once
(MPI_THREAD_MULTIPLE). Where it does not, checkpoints of several ranks are written amid the run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.checkpoint.copies import Part, Staging, parts
from mpifed.checkpoint.disk import in_thread
from mpifed.checkpoint.files import Meta, write
from mpifed.federation.clients import Federation

SETTLING = 20.0
"""Seconds that a run which fails gives a checkpoint in flight."""


class Writer:
    """Writes the checkpoints of one run; every rank has one."""

    def __init__(self, federation: Federation) -> None:
        """Collective."""
        self._federation = federation
        self._communicator = federation.communicator.for_second_thread()
        self._staging = Staging()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        if self._communicator is None:
            logging.getLogger("mpifed").warning(
                "this MPI library does not let two threads call it (MPI_THREAD_MULTIPLE), so the "
                "run waits while a checkpoint is written"
            )

    @property
    def failed(self) -> bool:
        """Whether a checkpoint could not be written, as far as this rank knows by now."""
        return self._failure is not None

    def start(
        self,
        path: Path,
        meta: Meta,
        state: Any,
        shared_is_rows: bool,
        arrays: Mapping[str, np.ndarray],
        keep: int,
    ) -> None:
        """Begins the checkpoint at ``path``; collective. See ``checkpoint.write``.

        Returns when ``state`` is copied, and the checkpoint before this one is written. Raises what
        that one failed with.
        """
        self.finish()
        federation = self._federation
        if self._communicator is None:
            taken = parts(state, shared_is_rows)
            write(path, meta, taken, arrays, federation, federation.communicator, keep)
            return
        first = federation.communicator.rank == 0
        copied = self._staging.copy(state, shared_is_rows, server=first)
        self._thread = in_thread(self._writing(path, meta, copied, arrays, keep), "checkpoint")

    def _writing(
        self,
        path: Path,
        meta: Meta,
        copied: list[Part],
        arrays: Mapping[str, np.ndarray],
        keep: int,
    ) -> Callable[[], None]:
        def run() -> None:
            assert self._communicator is not None
            try:
                write(path, meta, copied, arrays, self._federation, self._communicator, keep)
            except BaseException as error:
                self._failure = error

        return run

    def finish(self) -> None:
        """Waits until the checkpoint in flight is written; raises what it failed with."""
        if self._thread is not None:
            assert self._communicator is not None
            self._communicator.set_polling(True)
            self._thread.join()
            self._communicator.set_polling(False)
            self._thread = None
            self._count_bytes()
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Gives the checkpoint in flight a while; for a run that fails of something else."""
        if self._thread is not None:
            self._thread.join(SETTLING)

    def _count_bytes(self) -> None:
        if self._communicator is not None:
            self._federation.communicator.bytes_sent += self._communicator.bytes_sent
            self._communicator.bytes_sent = 0
