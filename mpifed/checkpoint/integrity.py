"""A seal on a file: whether it is exactly as it was written.

The first ``BLOCK`` bytes of the file, which HDF5 leaves to its users, hold the SHA-256 and the
length of what follows. A file that was cut, or damaged in a single bit, or never was sealed, is
recognised before a byte of it is believed.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from mpifed.errors import InputError
from mpifed.reading.hdf5 import disk_reason
from topologies.inputs import available_memory, in_bytes, open_regular

FORMAT = 1
"""The version of what a sealed file holds."""

BLOCK = 512
"""Bytes of the user block; the smallest that HDF5 allows."""

MAGIC = b"mpifed checkpoint "
SEAL = re.compile(rb"mpifed checkpoint [0-9]+\nsha256 [0-9a-f]{64}\nsize ([0-9]{1,18})\n\0*")

SPARSE = 1000
"""By how much a file may be larger than what the disk stores of it, if memory cannot hold it."""


class Damaged(InputError):
    """A file that is no intact checkpoint; the message says which and why."""


def seal(path: Path) -> None:
    """Writes the seal of ``path`` into its first block and flushes the file to disk."""
    found = _header_of(path)
    with path.open("r+b") as file:
        file.write(found)
        file.flush()
        os.fsync(file.fileno())


def verify(path: Path) -> None:
    """Raises ``Damaged`` unless ``path`` is a checkpoint exactly as it was sealed."""
    try:
        with open_regular(path) as file:
            found = file.read(BLOCK)
            about = os.fstat(file.fileno())
        sealed = SEAL.fullmatch(found)
        if not found.startswith(MAGIC):
            raise Damaged(f"{path} is no mpifed checkpoint")
        version = found.removeprefix(MAGIC).partition(b"\n")[0]
        if version.isdigit() and version != str(FORMAT).encode():
            raise Damaged(
                f"{path} has checkpoint format {version.decode()}; this mpifed reads {FORMAT}"
            )
        # Before all of it is read, for it may be said to be of any size and hold nothing.
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
    """As ``verify``, of what the disk has, for a file that was just flushed to it.

    The system is asked to drop the file's pages first; on a file system in memory it keeps them.
    """
    with open_regular(path) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    verify(path)


def header(digest: str, size: int) -> bytes:
    """The seal of a file of ``size`` bytes whose SHA-256 behind the first block is ``digest``."""
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
