"""Checkpoints that are written while the run continues."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from mpifed import state as states
from mpifed.checkpoint.files import Meta, Part, parts, write
from mpifed.federation.clients import Federation
from mpifed.state import host_memory

# Added to the nice value of the threads that write, below those that compute.
NICE = 5


def give_way() -> None:
    """Lower the priority of the calling thread by ``NICE``, where the system supports it."""
    with contextlib.suppress(OSError, AttributeError):
        own = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(own + NICE, 19))


# Seconds that a failed run waits for a checkpoint being written.
SETTLING = 20.0


class Staging:
    """Memory for one copy of a state."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, state: Any, shared_is_rows: bool, server: bool) -> list[Part]:
        """Copy the tensors of a state."""
        made = []
        for name, tensor, is_rows in states.tensors(state, shared_is_rows):
            if is_rows or server:
                buffer = self._buffer(name, tensor)
                buffer.copy_(tensor.detach())
                made.append(Part(name, buffer.numpy(), is_rows))
        return made

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        kept = self._buffers.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = host_memory(tensor)
            self._buffers[name] = kept
        return kept


def in_thread(action: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread of lower priority than those that compute."""

    def run() -> None:
        give_way()
        action()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class Writer:
    """Writer of the checkpoints of one run. Every rank has one; making it is collective."""

    def __init__(self, federation: Federation) -> None:
        """Derive a communicator for the thread; collective."""
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
        release: Callable[[], None] | None = None,
    ) -> None:
        """Begin a checkpoint; collective."""
        self.finish()
        federation = self._federation
        if self._communicator is None or release is not None:
            taken = parts(state, shared_is_rows, release)
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
        """Wait until the checkpoint being written is complete; raise what it failed with."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._count_bytes()
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Wait up to ``SETTLING`` seconds for the checkpoint being written, after a failure."""
        if self._thread is not None:
            self._thread.join(SETTLING)

    def _count_bytes(self) -> None:
        if self._communicator is not None:
            self._federation.communicator.bytes_sent += self._communicator.bytes_sent
            self._communicator.bytes_sent = 0
