"""Checkpoints that are written while the run continues."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from mpifed import state as states
from mpifed.checkpoint.files import Meta, Part, parts, write
from mpifed.federation.federation import Federation
from mpifed.state import host_memory

# Added to the nice value of the threads that write, below those that compute.
NICE = 5


# Seconds that a failed run waits for a checkpoint being written.
SETTLING = 20.0


class Writer:
    """Writer of the checkpoints of one run. Every rank has one; making it is collective."""

    def __init__(self, federation: Federation) -> None:
        """Derive a communicator for the thread; collective."""
        self._federation = federation
        self._communicator = federation.communicator.for_second_thread()
        self._buffers: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        if self._communicator is None:
            logging.getLogger("mpifed").warning(
                "this MPI library does not let two threads call it (MPI_THREAD_MULTIPLE), so the "
                "run waits while a checkpoint is written"
            )

    @property
    def failed(self) -> bool:
        """Whether a checkpoint could not be written, as far as this rank knows."""
        return self._failure is not None

    def start(
        self,
        path: Path,
        meta: Meta,
        state: Any,
        shared_is_rows: bool,
        arrays: Mapping[str, np.ndarray],
        keep: int,
        best: int | None = None,
    ) -> None:
        """Begin a checkpoint; collective. Besides the newest, that of the round ``best`` stays."""
        self.finish()
        federation = self._federation
        if self._communicator is None:
            taken = parts(state, shared_is_rows)
            write(path, meta, taken, arrays, federation, federation.communicator, keep, best)
            return
        copied = self._copied(state, shared_is_rows)
        arguments = (path, meta, copied, arrays, federation, self._communicator, keep, best)
        self._thread = threading.Thread(
            target=self._write, args=arguments, name="checkpoint", daemon=True
        )
        self._thread.start()

    def _copied(self, state: Any, shared_is_rows: bool) -> list[Part]:
        """Copy what this rank writes of a state, into the memory of the copy before."""
        parts = []
        for name, tensor, is_rows in states.tensors(state, shared_is_rows):
            if is_rows or self._federation.communicator.rank == 0:
                buffer = self._buffers.get(name)
                if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                    buffer = self._buffers[name] = host_memory(tensor)
                buffer.copy_(tensor.detach())
                parts.append(Part(name, buffer.numpy(), is_rows))
        return parts

    def _write(self, *arguments: Any) -> None:
        with contextlib.suppress(OSError, AttributeError):  # where the system has no such priority
            niceness = os.getpriority(os.PRIO_PROCESS, os.getpid())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(niceness + NICE, 19))
        try:
            write(*arguments)
        except BaseException as error:
            self._failure = error

    def finish(self) -> None:
        """Wait until the checkpoint being written is complete; raise what it failed with."""
        if self._thread is not None and self._communicator is not None:
            self._thread.join()
            self._thread = None
            self._federation.communicator.bytes_sent += self._communicator.bytes_sent
            self._communicator.bytes_sent = 0
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Wait up to ``SETTLING`` seconds for the checkpoint being written, after a failure."""
        if self._thread is not None:
            self._thread.join(SETTLING)
