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
from topologies.inputs import beyond_memory, check_regular

# Largest number of links in a file; a file of mpifed has a few dozen.
MOST_LINKS = 100_000

# Largest number of groups around a link; the time to visit links grows with its square.
DEEPEST = 32

OWN_LINKS = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading."""
    check_regular(path)
    # A file gets its name when it is complete: locks are not needed, and some file systems have
    # none.
    with h5py.File(path, "r", locking="best-effort") as file:
        _check_links(file)
        _check_data_sets(file)
        yield file


def whole(data: Any) -> np.ndarray:
    """Return all values of a data set."""
    check_size(data)
    found: np.ndarray = data[()]
    return found


def check_size(data: Any) -> None:
    """Check that an object is a data set that fits into memory."""
    if not isinstance(data, h5py.Dataset) or data.shape is None:
        raise ValueError("a data set is missing, or is a group or empty")
    lacking = beyond_memory(2.0 * data.size * data.dtype.itemsize)
    if lacking is not None:
        raise ValueError(f"{data.name} of shape {data.shape} {lacking}")


def _check_links(file: h5py.File) -> None:
    count = 0

    def visit(name: bytes, about: Any) -> str | None:
        nonlocal count
        count += 1
        if about.type not in OWN_LINKS:
            link = name.decode("utf-8", "replace")
            return f"/{link} is a link to another file, which is refused"
        if name.count(b"/") > DEEPEST:
            return f"it has groups within more than {DEEPEST} groups"
        return f"it has more than {MOST_LINKS} links" if count > MOST_LINKS else None

    refused = file.id.links.visit(visit, info=True)
    if refused is not None:
        raise ValueError(refused)


def _check_data_sets(file: h5py.File) -> None:
    def visit(name: bytes) -> str | None:
        found = h5py.h5o.open(file.id, name)
        if not isinstance(found, h5py.h5d.DatasetID):
            return None
        made = found.get_create_plist()
        if made.get_external_count() or made.get_layout() == h5py.h5d.VIRTUAL:
            return f"/{name.decode('utf-8', 'replace')} has its values in another file"
        return None

    refused = h5py.h5o.visit(file.id, visit)
    if refused is not None:
        raise ValueError(refused)


def disk_reason(error: Exception) -> str:
    """Return why a file could not be written or read."""
    found = re.search(r"errno = (\d+)", str(error))
    if found:
        return os.strerror(int(found[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error).strip("'\""), 300)
