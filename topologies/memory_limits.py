"""The memory that a process may still take, and refusals of what needs more."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from pathlib import Path, PurePosixPath

from topologies.errors import TopologyError

# Bytes that every process has: asking the system takes longer than using them.
NEGLIGIBLE = 1 << 20

# Files of a control group by the name of its controller, which version 2 leaves empty: the limit,
# what is used, and which line of memory.stat says what the system takes back where it must.
GROUP_FILES = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def in_bytes(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} EB"


def beyond_memory(needed: float) -> str | None:
    """Return why some memory is not available, as the end of a sentence."""
    available = available_memory() if needed > NEGLIGIBLE else needed
    if needed <= available:
        return None
    return f"needs {in_bytes(needed)} of memory, and {in_bytes(available)} is available"


def check_memory(needed: float, what: str) -> None:
    """Refuse what would take more memory than is available, before it is made."""
    lacking = beyond_memory(needed)
    if lacking is not None:
        raise TopologyError(f"{what} {lacking}")


def available_memory() -> int:
    """Return the memory that this process may still take, by the system and by its own limits."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):  # which not every system has
        line = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
        available = int(line[1]) << 10 if line else available
    available = min([available, *left_of_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return available if limit == resource.RLIM_INFINITY else min(available, limit)


def left_of_groups(groups: Path, mounted: Path) -> list[int]:
    """Return the memory that each control group with a limit leaves to a process.

    ``groups`` is a file as /proc/self/cgroup; ``mounted`` is where the groups are.
    """
    left = []
    with contextlib.suppress(OSError):  # which not every system has
        for line in groups.read_text("utf-8", "replace").splitlines():
            _, controller, name = line.split(":", 2)
            if controller not in GROUP_FILES:
                continue
            folder, most, used, cached = GROUP_FILES[controller]
            group = PurePosixPath(name)
            for group_folder in (
                mounted / folder / str(g).lstrip("/") for g in (group, *group.parents)
            ):
                # A group without a limit says "max", and not every group is seen from a container.
                with contextlib.suppress(OSError, ValueError):
                    limit, taken = (int((group_folder / file).read_text()) for file in (most, used))
                    stat = re.search(
                        rf"^{cached} (\d+)", (group_folder / "memory.stat").read_text(), re.M
                    )
                    left.append(max(0, limit - taken + (int(stat[1]) if stat else 0)))
    return left
