"""Files and words from outside: checks, bounds of memory, messages, and files that are replaced."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import resource
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from numbers import Integral
from pathlib import Path
from time import process_time
from typing import IO, Any


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


def check_memory(needed: float, what: str) -> None:
    """Refuse what would take more memory than is available, before it is made."""
    lacking = beyond_memory(needed)
    if lacking is not None:
        raise TopologyError(f"{what} {lacking}")


# Bytes that a mixing matrix takes for each node, without its edges, at least.
MATRIX_NODE_BYTES = 64


def node_count(owner: str, n: Any) -> int:
    """Return the number of nodes as an int."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise TopologyError(f"{owner}: n is {n!r}; it must be an integer of at least 1")
    check_memory(MATRIX_NODE_BYTES * int(n), f"{owner}: n is {n}, which")
    return int(n)


def check_nodes(owner: str, n: int | None, found: int, source: str) -> None:
    """Check that a source has as many nodes as are asked for; None asks for no number."""
    if n not in (None, found):
        raise TopologyError(f"{owner}: n is {n}, but {source} has {found} nodes")


def available_memory() -> int:
    """Return the memory that this process may still take, by the system and by its own limit."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):  # which not every system has
        found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
        available = int(found[1]) << 10 if found else available
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return available if limit == resource.RLIM_INFINITY else min(available, limit)


# Smallest similarity, by difflib's measure, of a name that is suggested.
ALIKE = 0.6

# Names that users give to what is called otherwise.
SYNONYMS = {"gpu": "cuda"}

# Letters of a name from which on it is taken for the beginning of another.
BEGUN = 3


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` was likely meant to be; None if none is alike."""
    import difflib  # here, since every guard would import it

    names, letters = list(known), sorted(name)
    if SYNONYMS.get(name.lower()) in names:
        return SYNONYMS[name.lower()]
    swapped = [each for each in names if sorted(each) == letters]
    begun = [each for each in names if len(name) >= BEGUN and each.startswith(name)]
    return next(iter(swapped or difflib.get_close_matches(name, names, 1, ALIKE) or begun), None)


def closest(name: str, known: Iterable[str]) -> str:
    """Return the allowed names as the end of a message, after the one that was likely meant."""
    names = list(known)
    meant = nearest(name, names)
    near = f"did you mean {meant!r}? " if meant else ""
    return f"{near}allowed: {', '.join(names)}"


# Largest length of a message, in characters.
LONGEST = 500

# Replaces the middle of a text.
CUT = " [...] "


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return ``text`` as one printable line, without its middle where it is too long."""
    text = _cut(text, 4 * longest)  # escapes only lengthen it
    line = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in " ".join(text.split())
    )
    return _cut(line, longest)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = (longest - len(CUT)) // 2
    return text[:half].rstrip() + CUT + text[-half:].lstrip()


# What argparse says of a word that is none of those allowed.
CHOICE = r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)"

ARGUMENTS_KINDS = {"int": "a whole number", "float": "a number"}

HELP = "--help shows how the command is used"


def number(kind: type, allowed: str, holds: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return the ``type`` of an argument that is a number."""

    def read(text: str) -> Any:
        try:
            value = kind(text) if text.isascii() and "_" not in text else None
        except ValueError:
            value = None
        if value is None or not holds(value):
            given = repr(text) if value is None else text
            raise argparse.ArgumentTypeError(f"is {given}; it must be {allowed}")
        return value

    return read


def choice_in(message: str) -> tuple[str, str, list[str]] | None:
    """Return the argument, the word given and those allowed where argparse refuses a choice."""
    found = re.fullmatch(CHOICE, message)
    if found is None:
        return None
    place, given, known = found.groups()
    return place, given, [name.strip("'") for name in known.split(", ")]


def sentence(message: str, options: Iterable[str]) -> str:
    """Return what argparse says as a sentence: what was wrong, where, and what is allowed."""
    if found := re.fullmatch(r"argument (.+?): invalid (int|float) value: (.*)", message):
        place, kind, given = found.groups()
        return f"{place} is {given}; it must be {ARGUMENTS_KINDS[kind]}"
    if found := re.fullmatch(r"argument (.+?): (is .*)", message, re.DOTALL):
        return f"{found[1]} {found[2]}"
    if found := re.fullmatch(r"argument (.+?): expected .*arguments?", message):
        return f"{found[1]} has no value; {HELP}"
    if found := re.fullmatch(r"argument (.+?): ignored explicit argument (.*)", message):
        return f"{found[1]} is {found[2]}, but it takes no value; {HELP}"
    unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
    near = nearest(unknown[1], options) if unknown else None
    return f"{message}; " + (f"did you mean {near}? " if near else "") + HELP


NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY


def check_replaceable(path: Path) -> None:
    """Check that a file may be written: it is a regular one, or does not exist yet."""
    try:
        found = path.is_symlink() or path.exists()
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    if found and (path.is_symlink() or not path.is_file()):
        kind = "a link" if path.is_symlink() else "a directory" if path.is_dir() else "a device"
        raise OSError(errno.EEXIST, f"it is {kind}, not a regular file")
    if not path.parent.is_dir():
        raise OSError(errno.ENOENT, f"there is no directory {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, f"the directory {str(path.parent)!r} is not writable")


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield a new file, open for writing bytes, which replaces ``path`` at the end of the
    block.
    """
    path = Path(path)
    check_replaceable(path)
    partial = path.with_name(f".{path.name}.partial")
    # A process that was killed may have left one.
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, NEW, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


# What is imported when it is first used, so that a wrong word is refused without it.
LATE = ("scipy.linalg", "scipy.sparse.csgraph", "scipy.sparse.linalg")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process so far, with all imports behind it."""
    for name in LATE:
        import_module(name)
    return process_time()


def one_thread() -> AbstractContextManager[object]:
    """Return a context in which BLAS uses one thread, if threadpoolctl is installed."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limits
