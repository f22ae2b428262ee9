"""The seal of a file: a checksum that shows whether the file is exactly as it was written."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from mpifed.errors import InputError
from mpifed.io.hdf5 import disk_reason
from topologies.regular_files import open_regular

# Version of the content of a sealed file.
FORMAT = 1

# Bytes of the user block; the smallest that HDF5 allows.
BLOCK = 512

MAGIC = b"mpifed checkpoint "


class Damaged(InputError):
    """A file that is not an intact checkpoint; the message names it and the reason."""


def seal(path: Path) -> None:
    """Write the seal of a file into its first block and flush the file to disk."""
    header = _header_of(path)
    with path.open("r+b") as file:
        file.write(header)
        file.flush()
        os.fsync(file.fileno())


def verify_seal(path: Path) -> None:
    """Check that a file is a checkpoint exactly as it was sealed."""
    try:
        with open_regular(path) as file:
            header = file.read(BLOCK)
        if not header.startswith(MAGIC):
            raise Damaged(f"{path} is not an mpifed checkpoint")
        version = header.removeprefix(MAGIC).partition(b"\n")[0]
        if version.isdigit() and int(version) != FORMAT:
            raise Damaged(
                f"{path} has checkpoint format {version.decode()}; this mpifed reads {FORMAT}"
            )
        expected = _header_of(path)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {disk_reason(error)}") from None
    if header != expected:
        raise Damaged(f"{path} is damaged: its content does not match its seal")


def verify_on_disk(path: Path) -> None:
    """Verify a file that was just flushed, as it is on disk."""
    with open_regular(path) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    verify_seal(path)


def _header_of(path: Path) -> bytes:
    """Return the seal of a file, ``BLOCK`` bytes."""
    digest, size = hashlib.sha256(), BLOCK
    with path.open("rb") as file:
        file.seek(BLOCK)
        while piece := file.read(1 << 22):
            digest.update(piece)
            size += len(piece)
    text = f"{FORMAT}\nsha256 {digest.hexdigest()}\nsize {size}\n"
    return (MAGIC + text.encode()).ljust(BLOCK, b"\0")
