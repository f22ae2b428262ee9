"""Files that are replaced whole: who reads one sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"
"""How the name of a file ends that is being written."""

NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of a file that must not exist yet, so that nobody else can have put a link there."""


@contextlib.contextmanager
def replacing(path: Path, unique: str = "", mode: int = 0o666) -> Iterator[Path]:
    """A new, empty file beside ``path``, which takes its name at the end of the block.

    It is flushed to disk before, and its directory after. If the block fails it is removed, and
    ``path`` is as it was.

    Parameters
    ----------
    path
        The file to be replaced, or made.
    unique
        A part of the new file's name, for files that several processes may write at once.
    mode
        Permissions of the new file, less those that the process's umask takes away.

    Raises
    ------
    OSError
        If the disk does not take it.
    """
    partial = partial_of(path, unique)
    # A process that was killed may have left one; whatever it is, it is not written to.
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_WRONLY | NEW, mode))
    try:
        yield partial
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def partial_of(path: Path, unique: str = "") -> Path:
    """Where ``replacing`` writes what is to become ``path``."""
    return path.with_name(f".{path.name}{unique and '.'}{unique}{PARTIAL}")


def replace_bytes(path: Path, content: bytes) -> None:
    """Makes ``content`` that of ``path``; raises ``OSError``."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def flush(path: Path) -> None:
    """Waits until the disk has all of the file or directory ``path``; raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
