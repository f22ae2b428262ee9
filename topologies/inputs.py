"""Files and words from outside: their readers, bounds of memory, the parser of commands."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import errno
import io
import os
import re
import resource
import stat
import sys
import zipfile
from collections.abc import Callable, Iterable
from importlib import import_module
from numbers import Integral
from pathlib import Path, PurePosixPath
from time import process_time
from typing import IO, Any, NoReturn

# Bytes that every process has: asking the system takes longer than using them.
NEGLIGIBLE = 1 << 20

# Bytes that a mixing matrix takes for each node, without its edges, at least.
MATRIX_NODE_BYTES = 64

# Files of a control group by the name of its controller, which version 2 leaves empty: the limit,
# what is used, and which line of memory.stat says what the system takes back where it must.
GROUP_FILES = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}

# What launchers call the number of a process in its job, and the number of processes.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")

# In ASCII, signs as wide as they are, so that columns of tables stay below each other.
PLAIN = {"±": "~", "–": "-", "−": "-", "×": "x", "·": "."}

# What is imported when it is first used, so that a wrong word is refused without it.
LATE = ("scipy.linalg", "scipy.sparse.csgraph", "scipy.sparse.linalg")


class InputError(ValueError):
    """A wrong configuration or input: the field, the value given, and what is allowed."""


class RunError(RuntimeError):
    """A failure while running that the input did not cause (a full disk, a diverged client)."""


# What the functions of this package raise where a graph, a matrix or a schedule cannot be made.
TopologyError = InputError


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a regular file for reading bytes; a pipe or a device would have no end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def check_regular(path: str | Path) -> None:
    """Check that a path is that of a regular file."""
    open_regular(path).close()


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
    available = available_memory() if needed > NEGLIGIBLE else needed
    if needed <= available:
        return None
    return f"needs {in_bytes(needed)} of memory, and {in_bytes(available)} is available"


def check_memory(needed: float, what: str) -> None:
    """Refuse what would take more memory than is available, before it is made."""
    lacking = beyond_memory(needed)
    if lacking is not None:
        raise TopologyError(f"{what} {lacking}")


def node_count(owner: str, n: Any) -> int:
    """Return the number of nodes as an int."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise TopologyError(f"{owner}: n is {n!r}; it must be an integer of at least 1")
    check_memory(MATRIX_NODE_BYTES * int(n), f"{owner}: n is {n}, which")
    return int(n)


def check_nodes(owner: str, n: int | None, count: int, source: str) -> None:
    """Check that a source has as many nodes as are asked for; None asks for no number."""
    if n not in (None, count):
        raise TopologyError(f"{owner}: n is {n}, but {source} has {count} nodes")


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


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the allowed name that ``name`` was likely meant to be; None if none is alike."""
    import difflib  # here, since every guard would import it

    return next(iter(difflib.get_close_matches(name, list(names), 1)), None)


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return the allowed names as the end of a message, after the one that was likely meant."""
    names = list(allowed)
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else ""
    return f"{hint}allowed: {', '.join(names)}"


def launched_rank() -> int | None:
    """Return the number of this process in its job; None without a launcher."""
    return in_environment(RANK_VARIABLES)


def is_silent() -> bool:
    """Return whether another process of the job answers: the first of several does."""
    return bool(launched_rank()) and (in_environment(SIZE_VARIABLES) or 1) > 1


def in_environment(names: Iterable[str]) -> int | None:
    """Return the number in the first of these environment variables that has one."""
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal() and value.isascii()), None)


def discard_output() -> None:
    """Send standard output nowhere: Python flushes once more at its end, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    return PLAIN.get(sign, sign.encode("ascii", "backslashreplace").decode()), error.start + 1


def escape_unshown() -> None:
    """Let what standard output cannot show, in ASCII say, appear as a like sign or its code."""
    codecs.register_error("plain", _plain)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="plain")


def say(text: str, end: str = "\n") -> None:
    """Print at once; where the reader has left, what goes on without one goes on in silence."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        discard_output()
        if not isinstance(error, BrokenPipeError):
            raise RunError(f"standard output cannot be written: {error.strerror}") from error


def number(kind: type, allowed: str, holds: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return the ``type`` of an argument that is a number."""

    def read(text: str) -> Any:
        try:
            value = kind(text) if text.isascii() and "_" not in text else None
        except ValueError:
            value = None
        if value is None or not holds(value):
            typed = repr(text) if value is None else text
            raise argparse.ArgumentTypeError(f"is {typed}; it must be {allowed}")
        return value

    return read


class Parser(argparse.ArgumentParser):
    """argparse, except that a wrong argument raises ``InputError``."""

    def format_help(self) -> str:
        """Return the help, without the marks of code in docstrings."""
        return super().format_help().replace("``", "")

    def _print_message(self, message: str, file: Any = None) -> None:
        if not is_silent():
            say(message, end="")  # argparse would say nothing of a full disk

    def error(self, message: str) -> NoReturn:
        """Raise the message of argparse, with what may be meant."""
        if match := re.fullmatch(
            r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)", message
        ):
            argument, choice, allowed = match.groups()
            names = [name.strip("'") for name in allowed.split(", ")]
            raise InputError(f"{argument} is {choice!r}; {closest(choice, names)}")
        if match := re.fullmatch(r"argument (.+?): (is .*)", message, re.DOTALL):
            raise InputError(f"{match[1]} {match[2]}")
        unknown = re.match(r"unrecognized arguments: --([\w-]+)(?:[ =]([^- ]\S*))?", message)
        hint = ""
        if unknown:
            near = [nearest(f"--{unknown[1]}", self._option_string_actions) or ""]
            if unknown[2] and any("key=value" in str(each.metavar) for each in self._actions):
                near.append(f"{unknown[1].replace('-', '_')}={unknown[2]}")
            hint = f"did you mean {' or '.join(filter(None, near))}? " if any(near) else ""
        raise InputError(f"{message}; {hint}--help shows how the command is used")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process so far, with all imports behind it."""
    for name in LATE:
        import_module(name)
    return process_time()
