"""HDF5 files on a disk that may become full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import h5py


class _Tolerant:
    """A file object for h5py whose writes never fail; ``error`` is the first failure."""

    def __init__(self, descriptor: int) -> None:
        self.error: OSError | None = None
        self._descriptor = descriptor
        self._place = 0
        self._end = os.fstat(descriptor).st_size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_CUR: self._place, os.SEEK_END: self._end}.get(whence, 0)
        return self._place

    def tell(self) -> int:
        return self._place

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            while self.error is None and done < len(view):
                done += os.pwrite(self._descriptor, view[done:], self._place + done)
        except OSError as error:
            self.error = error
        self._place += len(view)
        self._end = max(self._end, self._place)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        wanted = self._end - self._place if size < 0 else min(size, self._end - self._place)
        found = os.pread(self._descriptor, wanted, self._place)
        # What was not written reads as zeros; the file is discarded in any case.
        found = found.ljust(wanted, b"\0")
        self._place += wanted
        return found

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def truncate(self, size: int) -> int:
        try:
            if self.error is None:
                os.ftruncate(self._descriptor, size)
        except OSError as error:
            self.error = error
        self._end = size
        return size

    def flush(self) -> None:
        pass


@contextmanager
def writing(path: Path, mode: Literal["w", "r+"], **options: Any) -> Iterator[h5py.File]:
    """Open an HDF5 file for writing."""
    # A link in its place, which another user may have made, is not followed.
    flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT | os.O_TRUNC if mode == "w" else 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        target = _Tolerant(descriptor)
        with h5py.File(target, mode, **options) as file:
            yield file
        if target.error is not None:
            raise target.error
    finally:
        os.close(descriptor)


def flush_open_files() -> None:
    """Flush all open HDF5 files, before an exit that does not close them."""
    for file in h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE):
        h5py.h5f.flush(file)
