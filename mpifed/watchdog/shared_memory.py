"""Files in which MPI's ranks of one node share memory, and which they leave behind when killed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

PLACE = "/dev/shm/"
# How the files of MPICH and of Open MPI begin.
NAMES = ("mpich_shm_", "mpich_shar_tmp", "sm_segment.")

# What reading of a process raises where it has ended or is another user's.
UNSEEN = (PermissionError, FileNotFoundError, ProcessLookupError)

# Seconds after which every rank of a job has opened the files of its node.
SETTLED = 60.0


def segments_of(process: int) -> tuple[str, ...]:
    """List the files of shared memory that a process has mapped."""
    try:
        return _mapped(process)
    except OSError:
        return ()


def _mapped(process: int) -> tuple[str, ...]:
    maps = Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace")
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if PLACE in line}
    return tuple(sorted(path for path in paths if _is_segment(path)))


def _is_segment(path: str) -> bool:
    return path.startswith(tuple(PLACE + name for name in NAMES)) and not path.endswith(")")


def remove_segments(paths: Iterable[str]) -> None:
    """Remove shared memory that MPI will not remove itself."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_abandoned(now: float | None = None) -> None:
    """Remove files of this user that no process uses: their job was killed with all its guards."""
    latest = (time.time() if now is None else now) - SETTLED
    # Nothing is removed where this process may not look, or may open no more files.
    with contextlib.suppress(OSError):
        left = {path for path in map(PLACE.__add__, os.listdir(PLACE)) if _is_segment(path)}
        left = {path for path in left if _is_older(path, latest)}
        if left:
            remove_segments(left - set(_in_use()))


def _is_older(path: str, latest: float) -> bool:
    with contextlib.suppress(OSError):
        about = os.stat(path)
        return about.st_uid == os.getuid() and about.st_mtime < latest
    return False


def _in_use() -> Iterable[str]:
    """Yield the files that any process has opened or mapped."""
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(*UNSEEN):
            for file in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(*UNSEEN):
                    yield os.readlink(f"/proc/{process}/fd/{file}")
        with contextlib.suppress(*UNSEEN):
            yield from _mapped(int(process))
