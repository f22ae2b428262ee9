"""The seal of a file: a checksum that shows whether the file is exactly as it was written.

The first ``BLOCK`` bytes of the file, which HDF5 leaves to its users, hold the SHA-256 and the
length of the rest. A file that was cut, changed in a single bit or never sealed is recognised
before its content is used.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from mpifed.errors import InputError
from mpifed.io.hdf5 import disk_reason
from topologies.inputs import available_memory, in_bytes, open_regular

FORMAT = 1
"""Version of the content of a sealed file."""

BLOCK = 512
"""Bytes of the user block; the smallest that HDF5 allows."""

MAGIC = b"mpifed checkpoint "
SEAL = re.compile(rb"mpifed checkpoint [0-9]+\nsha256 [0-9a-f]{64}\nsize ([0-9]{1,18})\n\0*")

SPARSE = 1000
"""Largest ratio of a file's length to its bytes on disk, for files larger than memory."""


class Damaged(InputError):
    """A file that is not an intact checkpoint; the message names it and the reason."""


def seal(path: Path) -> None:
    """Write the seal of a file into its first block and flush the file to disk.

    Parameters
    ----------
    path : Path
        A file whose first ``BLOCK`` bytes are reserved.

    Raises
    ------
    OSError
        If the disk refuses it.
    """
    found = _header_of(path)
    with path.open("r+b") as file:
        file.write(found)
        file.flush()
        os.fsync(file.fileno())


def verify(path: Path) -> None:
    """Check that a file is a checkpoint exactly as it was sealed.

    Parameters
    ----------
    path : Path
        The file; all of it is read.

    Raises
    ------
    Damaged
        If it cannot be read, has another format, or does not match its seal.
    """
    try:
        with open_regular(path) as file:
            found = file.read(BLOCK)
            about = os.fstat(file.fileno())
        sealed = SEAL.fullmatch(found)
        if not found.startswith(MAGIC):
            raise Damaged(f"{path} is not an mpifed checkpoint")
        version = found.removeprefix(MAGIC).partition(b"\n")[0]
        if version.isdigit() and version != str(FORMAT).encode():
            raise Damaged(
                f"{path} has checkpoint format {version.decode()}; this mpifed reads {FORMAT}"
            )
        # Before all of it is read, since a sparse file may have any size.
        if sealed is None or int(sealed[1]) != about.st_size:
            raise Damaged(f"{path} is damaged: its content does not match its seal")
        stored = about.st_blocks * 512
        if about.st_size > available_memory() and about.st_size > SPARSE * stored:
            raise Damaged(
                f"{path} is damaged: of its {in_bytes(about.st_size)} only {in_bytes(stored)} are "
                "on the disk"
            )
        expected = _header_of(path)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {disk_reason(error)}") from None
    if found != expected:
        raise Damaged(f"{path} is damaged: its content does not match its seal")


def verify_on_disk(path: Path) -> None:
    """Verify a file that was just flushed, as it is on disk.

    The system is asked to drop the file's cached pages first; a file system in memory keeps them.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    Damaged
        As by ``verify``.
    """
    with open_regular(path) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    verify(path)


def header(digest: str, size: int) -> bytes:
    r"""Return a seal, ``BLOCK`` bytes.

    Parameters
    ----------
    digest : str
        SHA-256 of the bytes after the first block, in hexadecimal digits.
    size : int
        Bytes of the whole file.

    Examples
    --------
    >>> header("0" * 64, 4096)[:20]
    b'mpifed checkpoint 1\n'
    """
    text = f"{FORMAT}\nsha256 {digest}\nsize {size}\n"
    return (MAGIC + text.encode()).ljust(BLOCK, b"\0")


def _header_of(path: Path) -> bytes:
    digest, size = hashlib.sha256(), BLOCK
    with path.open("rb") as file:
        file.seek(BLOCK)
        while piece := file.read(1 << 22):
            digest.update(piece)
            size += len(piece)
    return header(digest.hexdigest(), size)
