"""Writing and hashing a file with reserved places, from its beginning to its end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mpifed.checkpoint.integrity import BLOCK, header

# Largest number of bytes in one write.
PIECE = 1 << 24

# Pieces in memory, besides those that are views of the copied state.
IN_FLIGHT = 3

# Bytes after which a flush begins, so that the disk works while the rest is hashed.
FLUSHED = 1 << 26

# Added to the nice value of the threads that write, below those that compute.
NICE = 5


def give_way() -> None:
    """Lower the priority of the calling thread by ``NICE``, where the system supports it."""
    with contextlib.suppress(OSError, AttributeError):
        own = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(own + NICE, 19))


class Sink:
    """A laid-out file that is filled and sealed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        self._size = os.fstat(self._descriptor).st_size
        self._place = BLOCK
        self._unflushed = 0
        self._digest = hashlib.sha256()
        self._writer = ThreadPoolExecutor(1, "checkpoint-write", give_way)
        self._hasher = ThreadPoolExecutor(1, "checkpoint-hash", give_way)
        self._flusher = ThreadPoolExecutor(1, "checkpoint-flush", give_way)
        self._flushing: Future[None] | None = None
        self._pending: deque[list[Future[None]]] = deque()
        self._error: BaseException | None = None

    def put(self, offset: int, values: np.ndarray) -> None:
        """Write bytes at an offset; returns before they are written."""
        while len(self._pending) >= IN_FLIGHT:
            self._await()
        if self._error is not None:
            return
        data = values.reshape(-1)
        gap = (self._place, offset)
        self._place = offset + len(data)
        self._pending.append(
            [
                self._writer.submit(self._write, offset, data),
                self._hasher.submit(self._hash, gap, data),
            ]
        )

    def close(self) -> None:
        """Seal the file and flush it to disk."""
        try:
            while self._pending:
                self._await()
            if self._error is not None:
                raise self._error
            self._hash((self._place, self._size), np.zeros(0, np.uint8))
            sealed = header(self._digest.hexdigest(), self._size)
            self._write(0, np.frombuffer(sealed, np.uint8))
            if self._flushing is not None:
                self._flushing.result()
            os.fsync(self._descriptor)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file and end the threads, without a seal."""
        for pool in (self._writer, self._hasher, self._flusher):
            pool.shutdown(cancel_futures=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _await(self) -> None:
        for future in self._pending.popleft():
            error = future.exception()
            self._error = self._error or error

    def _write(self, offset: int, data: np.ndarray) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:].data, offset + done)
        self._unflushed += len(data)
        idle = self._flushing is None or self._flushing.done()
        if self._unflushed >= FLUSHED and idle:
            if self._flushing is not None:
                self._flushing.result()
            self._flushing = self._flusher.submit(os.fdatasync, self._descriptor)
            self._unflushed = 0

    def _hash(self, gap: tuple[int, int], data: np.ndarray) -> None:
        """Add the bytes in ``gap``, which HDF5 wrote, and then ``data`` to the digest."""
        for start in range(*gap, PIECE):
            count = min(PIECE, gap[1] - start)
            self._digest.update(os.pread(self._descriptor, count, start))
        self._digest.update(data.data)


def in_thread(action: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread of lower priority than those that compute."""

    def run() -> None:
        give_way()
        action()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
