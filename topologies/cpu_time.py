"""CPU seconds of this process, without those of imports."""

from __future__ import annotations

from importlib import import_module
from time import process_time

# What is imported when it is first used, so that a wrong word is refused without it.
LATE = ("scipy.linalg", "scipy.sparse.csgraph", "scipy.sparse.linalg")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process so far, with all imports behind it."""
    for name in LATE:
        import_module(name)
    return process_time()
