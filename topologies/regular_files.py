"""Reading of regular files: no pipe, no device, and nothing that does not fit in memory."""

from __future__ import annotations

import errno
import os
import stat
import zipfile
from pathlib import Path
from typing import IO

from topologies.memory_limits import beyond_memory, in_bytes


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a regular file for reading bytes; a pipe or a device would have no end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def check_regular(path: str | Path) -> None:
    """Check that a path is that of a regular file."""
    open_regular(path).close()


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """Return the content of a regular file."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {in_bytes(size)}; at most {in_bytes(most)} is read")
        lacking = beyond_memory(size)
        if lacking is not None:
            raise OSError(errno.EFBIG, f"reading it {lacking}")
        return file.read(size)


def check_archive(path: str | Path) -> None:
    """Check that a zip archive, such as an ``.npz`` file, fits in memory when unpacked."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        lacking = beyond_memory(sum(member.file_size for member in archive.infolist()))
    if lacking is not None:
        raise OSError(errno.EFBIG, f"unpacking it {lacking}")
