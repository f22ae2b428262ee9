"""Calls a function in a copy of this process, which is thrown away with all that it has
changed.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from mpifed.watchdog import heartbeat
from mpifed.watchdog.launcher import die_with_parent, stat_of

# Seconds after which the process that waits shows its guard that it does.
STEP = 0.2

# Seconds without computing after which a copy waits, likely for a thread that it has not.
STILL = 2.0

# Seconds that a copy may compute meanwhile.
LONGEST = 3600.0

# How what the copy writes begins.
RETURNED, SAID = b"=", b":"

# Audit events of Python after which something outside the process is not as it was.
LASTING = frozenset(
    (
        *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
        *("os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr"),
        *("os.kill", "os.killpg", "signal.pthread_kill"),
        *("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"),
        *("subprocess.Popen", "socket.connect", "socket.bind", "socket.sendto", "sqlite3.connect"),
    )
)

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Outcome(NamedTuple):
    """What is known of a function that was called in a copy."""

    returned: bool
    said: str | None


def in_throwaway(action: Callable[[], str | None], cpu_seconds: float, seconds: float) -> Outcome:
    """Call ``action`` in a copy of this process, and wait for it."""
    parent = os.getpid()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the copy has not
        child = os.fork()
    if child == 0:
        _call(action, writing, cpu_seconds, parent)
    os.close(writing)
    try:
        answer = _answer(reading, child, time.monotonic() + seconds)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
    if not answer:
        return Outcome(False, None)
    text = answer[1:].decode(errors="replace")
    return Outcome(True, text if answer[:1] == SAID else None)


@contextmanager
def meanwhile(action: Callable[[], object], copies: int) -> Iterator[None]:
    """Call ``action`` again and again in copies of this process while the context lasts."""
    parent, children = os.getpid(), []
    try:
        for _ in range(copies):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                _repeat(action, parent)
            children.append(child)
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _repeat(action: Callable[[], object], parent: int) -> NoReturn:
    try:
        _begin(parent, cpu_seconds=LONGEST)
        while True:
            action()
    finally:
        os._exit(0)


def _answer(reading: int, copy: int, latest: float) -> bytes:
    """Return what a copy writes before it ends, or nothing if it is late or only waits."""
    answer, seen, moved = b"", None, time.monotonic()
    while time.monotonic() < latest:
        if select.select([reading], [], [], STEP)[0]:
            piece = os.read(reading, 1 << 16)
            if not piece:
                return answer
            answer += piece
        heartbeat.step()
        state = _asleep(copy)
        if state is None or state != seen:
            seen, moved = state, time.monotonic()
        elif time.monotonic() - moved > STILL:
            return b""
    return b""


def _asleep(process: int) -> tuple[str, str] | None:
    """Return the ticks of user and system time of a process that sleeps, None of any other."""
    try:
        fields = stat_of(process)
    except OSError:  # where there is no /proc
        return None
    return (fields[11], fields[12]) if fields[0] == "S" else None


def _call(action: Callable[[], str | None], writing: int, cpu: float, parent: int) -> NoReturn:
    """Call ``action`` in the copy, say what it returned, and end."""
    try:
        _begin(parent, cpu)
        said = action()
        text = RETURNED if said is None else SAID + said.encode(errors="replace")
        while text:
            text = text[os.write(writing, text) :]
    finally:
        os._exit(0)


def _begin(parent: int, cpu_seconds: float) -> None:
    """Part from ``parent``, and let this process change nothing that lasts."""
    die_with_parent(parent)
    heartbeat.pause()
    gc.disable()  # no finalizer of what the original has
    faulthandler.disable()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CPU: max(1, round(cpu_seconds)),
    }
    for kind, wanted in limits.items():
        most = resource.getrlimit(kind)[1]
        least = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(kind, (least, most))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.dont_write_bytecode = True
    sys.addaudithook(_end_where_it_lasts)


def _end_where_it_lasts(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & WRITING
        if not writes or isinstance(path, int) or path == os.devnull:
            return
    elif event not in LASTING:
        return
    os._exit(0)
