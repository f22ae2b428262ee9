"""HDF5 files that contain all of their data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifed.errors import one_line
from topologies.memory_limits import beyond_memory
from topologies.regular_files import check_regular

# Largest number of links in a file, and of groups within each other; mpifed's files have a few.
MOST_LINKS = 10_000
DEEPEST = 16


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading."""
    check_regular(path)
    # A file gets its name when it is complete: locks are not needed, and some file systems have
    # none.
    with h5py.File(path, "r", locking="best-effort") as file:
        _check(file)
        yield file


def all_values(data: Any) -> np.ndarray:
    """Return all values of a data set."""
    check_size(data)
    values: np.ndarray = data[()]
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def texts_to_store(texts: np.ndarray) -> np.ndarray:
    """Return texts as HDF5 stores them in UTF-8, all of one length."""
    encoded = np.char.encode(texts, "utf-8")
    stored: np.ndarray = encoded.astype(h5py.string_dtype("utf-8", max(1, encoded.itemsize)))
    return stored


def check_size(data: Any) -> None:
    """Check that an object is a data set that fits into memory."""
    if not isinstance(data, h5py.Dataset) or data.shape is None:
        raise ValueError("a data set is missing, or is a group or empty")
    lacking = beyond_memory(2.0 * data.size * data.dtype.itemsize)
    if lacking is not None:
        raise ValueError(f"{data.name} of shape {data.shape} {lacking}")


def _check(group: h5py.Group, depth: int = 1) -> int:
    """Refuse values in other files and groups too deep or large; return the number of links."""
    if depth > DEEPEST:
        raise ValueError(f"it has groups within more than {DEEPEST} others")
    count = len(group)
    for name in group if count <= MOST_LINKS else ():
        where = f"{group.name.rstrip('/')}/{name}"
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise ValueError(f"{where} is a link to another file, which is refused")
        member = group.get(name) if isinstance(link, h5py.HardLink) else None
        if isinstance(member, h5py.Group):
            count += _check(member, depth + 1)
        elif isinstance(member, h5py.Dataset) and (member.external or member.is_virtual):
            raise ValueError(f"{where} has its values in another file")
        if count > MOST_LINKS:
            break
    if count > MOST_LINKS:
        raise ValueError(f"it has more than {MOST_LINKS} links")
    return count


def disk_reason(error: Exception) -> str:
    """Return why a file could not be written or read."""
    match = re.search(r"errno = (\d+)", str(error))
    if match:
        return os.strerror(int(match[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error).strip("'\""), 300)
