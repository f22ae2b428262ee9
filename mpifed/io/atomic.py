"""Files that are replaced atomically: a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"
"""Suffix of a file that is being written."""

NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of a file that must not exist yet, so that another user's link is not followed."""


@contextlib.contextmanager
def replacing(path: Path, unique: str = "", mode: int = 0o666) -> Iterator[Path]:
    """Yield a new, empty file beside ``path``, which replaces ``path`` at the end of the block.

    The file is flushed to disk before it is renamed, its directory afterwards. If the block fails,
    the file is removed and ``path`` is unchanged.

    Parameters
    ----------
    path : Path
        The file to be replaced or created.
    unique : str
        A part of the new file's name, for files that several processes may write at once.
    mode : int
        Permissions of the new file, less those that the process's umask removes.

    Yields
    ------
    Path
        The new file.

    Raises
    ------
    OSError
        If the disk refuses a write.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = Path(directory) / "summary.json"
    ...     with replacing(path) as partial:
    ...         path.exists()
    ...     path.exists()
    False
    True
    """
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
    """Return the path of the new file that ``replacing`` yields.

    Parameters
    ----------
    path, unique
        As for ``replacing``.

    Examples
    --------
    >>> partial_of(Path("runs/summary.json")).name
    '.summary.json.partial'
    """
    return path.with_name(f".{path.name}{unique and '.'}{unique}{PARTIAL}")


def replace_bytes(path: Path, content: bytes) -> None:
    """Replace the content of a file.

    Parameters
    ----------
    path : Path
        The file to be replaced or created.
    content : bytes
        Its new content.

    Raises
    ------
    OSError
        If the disk refuses a write; the file is then unchanged.
    """
    with replacing(path) as partial:
        partial.write_bytes(content)


def flush(path: Path) -> None:
    """Wait until a file or directory is on disk.

    Parameters
    ----------
    path : Path
        The file or directory.

    Raises
    ------
    OSError
        If the disk refuses it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
