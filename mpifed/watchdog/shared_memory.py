"""Files in which MPI's ranks of one node share memory, and which they leave behind when killed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

DIRECTORY = "/dev/shm/"
# How the files of MPICH, of Open MPI and of UCX begin.
NAMES = ("mpich_shm_", "mpich_shar_tmp", "sm_segment.", "vader_segment.", "ucx_shm_posix_")

# Seconds after which whoever creates such a file has mapped it, which it is until the job ends.
SETTLED = 10.0


def segments_of(process: int | str) -> set[str]:
    """Return the files of shared memory that a process of this user has mapped, if it lives."""
    try:
        maps = Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if DIRECTORY in line}
    return set(filter(_is_segment, paths))


def _is_segment(path: str) -> bool:
    return path.startswith(tuple(DIRECTORY + name for name in NAMES)) and not path.endswith(")")


def remove_segments(paths: Iterable[str]) -> None:
    """Remove shared memory that MPI will not remove itself."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_abandoned(settled: float = SETTLED) -> None:
    """Remove files of this user that no process uses: all processes of their job were killed."""
    latest = time.time() - settled
    left = set()
    # Nothing is removed where, say, this process may open no more files.
    with contextlib.suppress(OSError):
        for path in filter(_is_segment, map(DIRECTORY.__add__, os.listdir(DIRECTORY))):
            status = os.stat(path)
            if status.st_uid == os.getuid() and status.st_mtime < latest:
                left.add(path)
        if left:
            processes = filter(str.isdecimal, os.listdir("/proc"))
            remove_segments(left.difference(*map(segments_of, processes)))
