"""What a rank that is forked from another process takes over from the one its launcher started."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import select
import signal
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mpifed.errors import EXIT_FAILED
from mpifed.watchdog.launcher import stat_of
from mpifed.watchdog.rank_process import PASSED_ON

# Descriptors that are handed over at most; the kernel sends 253 in one message.
MOST = 200

PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 15, 35, 14

# The kernel's ``struct prctl_mm_map``.
_MAP = struct.Struct("=12QIi")

# Its first numbers as fields of ``/proc/self/stat``; None is the end of the heap.
_BOUNDARIES = (26, 27, 45, 46, 47, None, 28, 48, 49)


class Belongings(NamedTuple):
    """What a launcher gave a process."""

    environment: dict[str, str]
    descriptors: list[int]
    processors: list[int]
    group: int
    session: int

    @classmethod
    def of_this_process(cls) -> Belongings:
        """Return the belongings of this process."""
        return cls(
            dict(os.environ),
            list(inherited_descriptors()),
            sorted(os.sched_getaffinity(0)),
            os.getpgid(0),
            os.getsid(0),
        )


def inherited_descriptors(pipes: bool = False) -> Iterator[int]:
    """Yield the descriptors that the launcher gave this process, ascending."""
    for number in open_descriptors():
        with contextlib.suppress(OSError):
            is_pipe = stat.S_ISFIFO(os.fstat(number).st_mode)
            if os.get_inheritable(number) and (pipes or number <= 2 or not is_pipe):
                yield number


def open_descriptors() -> list[int]:
    """Return all open descriptors of this process, ascending."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the directory's own, which is closed by now
            os.fstat(int(name))
            found.append(int(name))
    return sorted(found)


def take_over(belongings: Belongings, received: Sequence[int], kept: Sequence[int]) -> list[int]:
    """Put ``belongings`` in place of this process's own."""
    _join_group(belongings)
    free = max([2, *belongings.descriptors]) + 1
    moved = [_moved(number, free) for number in received]
    others = [_moved(number, free) for number in kept]
    for number, place in zip(moved, belongings.descriptors, strict=True):
        os.dup2(number, place, inheritable=True)
        os.close(number)
    os.sched_setaffinity(0, belongings.processors)
    replace_environment(belongings.environment)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            terminal = stream is sys.stderr or os.isatty(stream.fileno())
            stream.reconfigure(line_buffering=terminal)
    return others


def _join_group(belongings: Belongings) -> None:
    """Enter the process group of the stub, so that what is sent to it comes here too."""
    os.setpgid(0, belongings.group if belongings.session == os.getsid(0) else 0)


def _moved(number: int, free: int) -> int:
    """Move a descriptor to the next free place from ``free`` on."""
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, free)
    os.close(number)
    return moved


def replace_environment(variables: dict[str, str]) -> None:
    """Replace all variables of this process, also as ``/proc`` shows them to others."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    with contextlib.suppress(OSError, AttributeError, ValueError, IndexError):
        _show_environment(variables)


class _Shown:
    """The memory to which ``/proc`` points."""

    environment: Any = None


def _show_environment(variables: dict[str, str]) -> None:
    """Point the kernel at a copy of the variables; else it shows those of the first process."""
    numbers = stat_of("self")
    libc = ctypes.CDLL(None)
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_long]
    text = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    shown = ctypes.create_string_buffer(text, len(text) + 1)
    first = ctypes.addressof(shown)
    places = [libc.sbrk(0) if at is None else int(numbers[at - 3]) for at in _BOUNDARIES]
    form = ctypes.create_string_buffer(_MAP.pack(*places, first, first + len(text), 0, 0, -1))
    words = (PR_SET_MM_MAP, ctypes.addressof(form), _MAP.size, 0)
    if not libc.prctl(PR_SET_MM, *map(ctypes.c_ulong, words)):
        _Shown.environment = shown


def call_process(name: str) -> None:
    """Set the name of this process in ``ps`` and ``top``, 15 characters at most."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()))


def end_with(leash: int) -> None:
    """Have the kernel kill this process when the other end of a pipe is closed."""
    fcntl.fcntl(leash, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(leash, fcntl.F_GETFL)
    fcntl.fcntl(leash, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([leash], [], [], 0)[0]:  # closed before
        os._exit(EXIT_FAILED)


class _Held:
    """The signals that were blocked before others were held back."""

    mask: set[int | signal.Signals] | None = None


def hold_signals() -> None:
    """Block what a guard passes on, here and in processes forked from this one."""
    _Held.mask = signal.pthread_sigmask(
        signal.SIG_BLOCK, [getattr(signal, name) for name in PASSED_ON]
    )


def release_signals() -> None:
    """Deliver, in a forked rank, what has come since, now that the rank can handle it."""
    if _Held.mask is not None:
        mask, _Held.mask = _Held.mask, None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
