"""Files that are replaced atomically: a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

# Suffix of a file that is being written.
PARTIAL = ".partial"

# Flags of a file that must not exist yet, so that another user's link is not followed.
NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def replacing(path: Path, unique: str = "", mode: int = 0o666) -> Iterator[Path]:
    """Yield a new, empty file beside ``path``, which replaces ``path`` at the end of the block."""
    partial = partial_of(path, unique)
    # A process that was killed may have left one, and another user a link: neither is written to.
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
    """Return the path of the new file that ``replacing`` yields."""
    return path.with_name(f".{path.name}{unique and '.'}{unique}{PARTIAL}")


def replace_bytes(path: Path, content: bytes) -> None:
    """Replace the content of a file."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def flush(path: Path) -> None:
    """Wait until a file or directory is on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
