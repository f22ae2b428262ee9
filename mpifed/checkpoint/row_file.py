"""Rows of a state on disk: a file without a name, mapped into memory."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mpifed import state as states
from mpifed.errors import RunError
from mpifed.io.hdf5 import disk_reason

State = TypeVar("State")

# Bytes that are copied at once.
BLOCK = 1 << 24

# What a disk answers that has no room left, for this user or in one file.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RowFile:
    """Rows of a state in a file of this rank."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapped: dict[str, tuple[Tensor, mmap.mmap]] = {}

    def hold(self, state: State, shared_is_rows: bool) -> State:
        """Return ``state`` with its rows in the file. What was there before is overwritten."""
        values = {}
        for name, tensor, is_rows in states.tensors(state, shared_is_rows):
            if not is_rows or not tensor.numel():
                continue
            if name not in self._mapped or self._mapped[name][0].shape != tensor.shape:
                self._mapped[name] = self._room(tensor)
            mapped, _ = self._mapped[name]
            if mapped is not tensor:
                step = max(1, BLOCK * len(tensor) // tensor.nbytes)
                for first in range(0, len(tensor), step):
                    mapped[first : first + step] = tensor[first : first + step]
                    self.release()
            values[name] = mapped
        return states.replace_tensors(state, values)

    def release(self) -> None:
        """Give back the memory of pages that were read or written; their content stays."""
        for _, pages in self._mapped.values():
            pages.madvise(mmap.MADV_DONTNEED)

    def _room(self, tensor: Tensor) -> tuple[Tensor, mmap.mmap]:
        directory = self._directory.absolute()
        while not directory.is_dir():
            directory = directory.parent
        try:
            pages = _pages(directory, tensor.nbytes)
        except OSError as error:
            lacks = "has no room for" if error.errno in FULL else "cannot hold"
            raise RunError(
                f"storage.state is disk, but {directory} {lacks} {tensor.nbytes} bytes of "
                f"clients' states: {disk_reason(error)}; storage.directory names another place"
            ) from error
        # Rows are visited in no order.
        pages.madvise(mmap.MADV_RANDOM)
        flat = np.frombuffer(pages, np.uint8, tensor.nbytes)
        return torch.from_numpy(flat).view(tensor.dtype).view(tensor.shape), pages


def why_unusable(directory: Path) -> str | None:
    """Return why no rows can be kept in a directory; None where they can."""
    try:
        _pages(directory, mmap.PAGESIZE).close()
    except OSError as error:
        return disk_reason(error)
    return None


def _pages(directory: Path, size: int) -> mmap.mmap:
    """Return ``size`` bytes of a new file without a name in ``directory``, mapped into memory."""
    with tempfile.TemporaryFile(prefix=".mpifed-rows-", dir=directory) as file:
        # A disk that becomes full while a page is written would kill the process.
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)
