"""Files that are replaced whole: a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY


def check_replaceable(path: Path) -> None:
    """Check that a file may be written: it is a regular one, or does not exist yet."""
    try:
        found = path.is_symlink() or path.exists()
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    if found and (path.is_symlink() or not path.is_file()):
        kind = "a link" if path.is_symlink() else "a directory" if path.is_dir() else "a device"
        raise OSError(errno.EEXIST, f"it is {kind}, not a regular file")
    if not path.parent.is_dir():
        raise OSError(errno.ENOENT, f"there is no directory {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, f"the directory {str(path.parent)!r} is not writable")


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield a new file, open for writing bytes, which replaces ``path`` at the end of the
    block.
    """
    path = Path(path)
    check_replaceable(path)
    partial = path.with_name(f".{path.name}.partial")
    # A process that was killed may have left one.
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, NEW, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
