"""Checks of input files and of memory, against what the system has.

Names that were likely meant where another was typed.

Messages on one printable line, short enough to be read.

Where a user's own code is: the file and the line of a definition, and of what it raised.

What is said of a wrong argument of a command, in place of what argparse says.

Files that are replaced whole: a reader sees the old content or the new, never a part.

The CPU seconds that results and tables name.

One BLAS thread where more would cost time and change the last digits.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import inspect
import os
import re
import resource
import stat
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from numbers import Integral
from pathlib import Path
from time import process_time
from types import CodeType, FrameType
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

# Replaces the middle of a word.
CUT = "[...]"

# Replaces words in the middle of a text.
GAP = f" {CUT} "

# Characters of a word, and of a text in quotes, up to which they are left whole if others can be
# shortened; no sentence of ours has such words.
LONG_WORD, LONG_QUOTE = 64, 100

# A list of eight items or more, without what may follow it as in ", or a path".
LISTED = r"(?:[^\s,;]+, ){7,}(?!or\b|and\b)[^\s,;]+"

# A text in quotes, which are not those of words such as isn't.
QUOTED = r"""(?<!\w)(['"])((?:(?!\1(?:[\s;,.:)\]}]|$)).)+)\1(?=[\s;,.:)\]}]|$)"""


def one_line(text: str, longest: int = LONGEST) -> str:
    r"""Return ``text`` as one printable line."""
    if len(text) > 4 * longest:  # escapes may still lengthen it; the rest is not needed
        text = _both(text[: 2 * longest], text[-2 * longest :])
    line = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in " ".join(text.split())
    )
    for shortened in (_with_shorter_words, _with_shorter_quotes, _with_shorter_lists, _ends):
        if len(line) <= longest:
            break
        line = shortened(line, longest)
    return line


def _both(begin: str, end: str) -> str:
    """Return the beginning and the end of a longer text, joined between two words if there are."""
    if " " not in begin[-LONG_WORD:] or " " not in end[:LONG_WORD]:
        return begin + CUT + end
    begin, end = begin.rpartition(" ")[0], end.partition(" ")[2]
    return begin + (f" {CUT}, " if begin.endswith(",") else GAP) + end


def _with_shorter_words(line: str, longest: int) -> str:
    words, least = line.split(" "), min(LONG_WORD, longest // 2)
    excess = len(line) - longest
    for place in sorted(range(len(words)), key=lambda place: -len(words[place])):
        long = len(words[place])
        if excess <= 0 or long <= least:
            break
        kept = max(least, long - excess) - len(CUT)
        words[place] = words[place][: kept // 2] + CUT + words[place][long - (kept - kept // 2) :]
        excess -= long - len(words[place])
    return " ".join(words)


def _with_shorter_quotes(line: str, longest: int) -> str:
    import re  # here, since every guard would import it

    least, found = min(LONG_QUOTE, longest // 2), list(re.finditer(QUOTED, line))
    for quote in sorted(found, key=lambda quote: len(quote[2]), reverse=True):
        excess, given = len(line) - longest, quote[2]
        if excess <= 0 or len(given) <= least:
            break
        line = line.replace(given, _ends(given, max(least, len(given) - excess)), 1)
    return line


def _with_shorter_lists(line: str, longest: int) -> str:
    import re

    for listed in sorted(re.findall(LISTED, line), key=len, reverse=True):
        excess = len(line) - longest
        if excess <= 0:
            break
        line = line.replace(listed, _fewer(listed.split(", "), len(listed) - excess), 1)
    return line


def _fewer(items: list[str], room: int) -> str:
    """Return a list without items in its middle, in ``room`` characters if two fit into it."""
    text = ", ".join(items)
    for left in range(len(items) - 1, 1, -1):
        if len(text) <= room:
            break
        begin, hidden, end = left - left // 2, len(items) - left, len(items) - left // 2
        said = CUT if CUT in items[begin:end] else f"[{hidden} more]"
        text = ", ".join([*items[:begin], said, *items[end:]])
    return text


def _ends(text: str, longest: int) -> str:
    """Return a text without words in its middle; all that follows its last semicolon stays."""
    room = longest - len(GAP)
    last = len(text) - text.rfind("; ") - 2
    after = max(room // 3, last if last <= 2 * room // 3 else 0)
    begin, end = text[: room - after], text[len(text) - after :]
    if text[len(begin)] != " ":
        begin = begin.rpartition(" ")[0] or begin
    if text[-len(end) - 1] != " ":
        end = end.partition(" ")[2] or end
    return begin.rstrip() + GAP + end.lstrip()


# The folders of the packages that call a user's code, which lie side by side.
OURS = tuple(Path(__file__).parents[1] / name for name in ("topologies", "mpifed"))

LIBRARY = Path(os.__file__).parent
INSTALLED = {"site-packages", "dist-packages"}


def is_ours(file: str) -> bool:
    """Return whether a file belongs to the packages that call a user's code."""
    return any(Path(file).is_relative_to(folder) for folder in OURS)


def is_users(file: str) -> bool:
    """Return whether a file is a user's: of no package that is installed, nor of Python's own."""
    path = Path(file)
    foreign = INSTALLED.intersection(path.parts) or path.is_relative_to(LIBRARY)
    return not (foreign or file.startswith("<") or is_ours(file))


def place(file: str, line: int) -> str:
    """Return a file, as seen from the working directory, and a line of it."""
    path, here = Path(file), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}, line {line}"


def defined_at(made: Any) -> str:
    """Return where a user's function, method or class is defined."""
    while isinstance(made, functools.partial):
        made = made.func
    made = inspect.unwrap(made) if callable(made) else made
    code = getattr(getattr(made, "__func__", made), "__code__", None)
    if isinstance(code, CodeType):
        return place(code.co_filename, code.co_firstlineno) if is_users(code.co_filename) else ""
    if not inspect.isclass(made):
        return ""
    try:
        file = inspect.getfile(made)
        if not is_users(file):
            return ""
        return place(file, inspect.getsourcelines(made)[1])
    except (OSError, TypeError):  # of a module without a file, as in a notebook
        return ""


def within(made: Any) -> str:
    """Return ``defined_at`` as the end of a sentence; empty where there is no such place."""
    where = defined_at(made)
    return f" (in {where})" if where else ""


def frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield where an exception came through, from the outermost call on."""
    yield from traceback.walk_tb(error.__traceback__)


def name_of(code: CodeType) -> str:
    """Return the name of a function, with that of its class where Python knows it."""
    return str(getattr(code, "co_qualname", code.co_name))  # new in Python 3.11


def passed_at(frame: FrameType, line: int) -> str:
    """Return a place that an exception came through, as the continuation of a sentence."""
    name = name_of(frame.f_code)
    function = f" ({name})" if name != "<module>" else ""
    return f" in {place(frame.f_code.co_filename, line)}{function}"


def raised_at(error: BaseException) -> str:
    """Return the last place in a user's files that an exception came through."""
    users = [each for each in frames(error) if is_users(each[0].f_code.co_filename)]
    return passed_at(*users[-1]) if users else ""


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
