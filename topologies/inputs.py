"""Checks of input files and of memory, against what the system has."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


class TopologyError(ValueError):
    """A graph, matrix or schedule that cannot be made as asked, in one sentence."""


KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Bytes that every process has: asking the system takes longer than using them.
NEGLIGIBLE = 1 << 20


def check_regular(path: str | Path) -> int:
    """Return the size of a regular file."""
    try:
        found = os.stat(path)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    return _size_of(found)


def _size_of(found: os.stat_result) -> int:
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {KINDS.get(kind, 'something')}, not a regular file")
    return found.st_size


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a regular file for reading bytes."""
    check_regular(path)
    # What has become a pipe since then does not make this wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _size_of(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """Return the content of a regular file."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {in_bytes(size)}; at most {in_bytes(most)} is read")
        lacking = beyond_memory(size)
        if lacking is not None:
            raise OSError(errno.EFBIG, f"reading it {lacking}")
        return file.read(size)


def check_archive(path: str | Path) -> None:
    """Check that a zip archive, such as an ``.npz`` file, fits in memory when unpacked."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        lacking = beyond_memory(sum(member.file_size for member in archive.infolist()))
    if lacking is not None:
        raise OSError(errno.EFBIG, f"unpacking it {lacking}")


def in_bytes(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} EB"


def beyond_memory(needed: float) -> str | None:
    """Return why some memory is not available, as the end of a sentence."""
    if needed <= NEGLIGIBLE:
        return None
    available = available_memory()
    if needed <= available:
        return None
    return f"needs {in_bytes(needed)} of memory, and {in_bytes(available)} is available"


def available_memory() -> int:
    """Return the memory that this process may still take."""
    return min([sys.maxsize, *_of_the_system(), *_of_control_groups(), *_of_the_process()])


def _of_the_system() -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = dict(line.split(":", 1) for line in lines)
        yield sum(int(found[name].split()[0]) for name in ("MemAvailable", "SwapFree")) << 10
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_control_groups() -> Iterator[int]:
    """What each control group of this process leaves; pages of files that may be dropped count."""
    mount = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, own = line.split(":", 2)
            if controllers == "":
                names = ("memory.max", "memory.current", "inactive_file")
                yield from _left_above(mount, own, *names)
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _left_above(mount / "memory", own, *names)


def _left_above(mount: Path, own: str, limit: str, used: str, droppable: str) -> Iterator[int]:
    place = mount / own.lstrip("/")
    for group in (place, *place.parents):
        # "max" means no limit; in a container the group itself may be out of sight.
        with contextlib.suppress(OSError, ValueError):
            most = int((group / limit).read_text(encoding="ascii"))
            taken = int((group / used).read_text(encoding="ascii"))
            lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
            counts = dict(line.split() for line in lines)
            yield max(0, most - taken + int(counts.get(droppable, 0)))
        if group == mount:
            return


def _of_the_process() -> Iterator[int]:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        yield max(0, most - pages * os.sysconf("SC_PAGE_SIZE"))
