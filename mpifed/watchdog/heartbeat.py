"""Signs of life that a rank gives the guard that watches it, without MPI."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mpifed.watchdog.launcher import started_at

_STEPS, _ROUND, _WAITING = (struct.Struct("=q") for _ in range(3))
_AT = {"steps": 0, "round": 8, "waiting": 16}

# Seconds that a rank may take no step forward, unless the configuration says otherwise.
STALL_LIMIT = 3600.0

# The line on the pipe that says that what follows is an end in order.
ORDERLY = "."


class Signs(NamedTuple):
    """What a rank shows its guard."""

    steps: int
    round: int
    waiting: bool


def new_board(memory: int = -1) -> mmap.mmap:
    """Allocate a page that a process shares with its later children."""
    board = mmap.mmap(memory, mmap.PAGESIZE)
    _ROUND.pack_into(board, _AT["round"], -1)
    return board


def read(board: mmap.mmap) -> Signs:
    """Read what the rank shows on ``board`` now."""
    steps, round, waiting = (_STEPS.unpack_from(board, place)[0] for place in _AT.values())
    return Signs(steps, round, bool(waiting))


class Ends(NamedTuple):
    """What connects a rank to its guard."""

    board: mmap.mmap
    memory: int
    pipe: int
    port: int | None
    guard: int
    began: float

    @classmethod
    def of_memory(cls, memory: int, pipe: int, **said: Any) -> Ends:
        """Return the ends in another process, with the descriptors there; see :meth:`said`."""
        return cls(mmap.mmap(memory, mmap.PAGESIZE), memory, pipe, **said)

    def said(self) -> dict[str, Any]:
        """Return what :meth:`of_memory` needs beside descriptors."""
        return {"port": self.port, "guard": self.guard, "began": self.began}


class _Own:
    """What this process writes to, if it has a guard."""

    board: mmap.mmap | None = None
    pipe: int | None = None
    port: int | None = None
    guard: int | None = None
    began = -1.0
    steps = 0
    hosted_clients = ""


class _ImportsAreSteps:
    """Finds no module, but is asked for each: thousands, before a rank does anything else."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        step()


def begin(
    board: mmap.mmap,
    pipe: int,
    port: int | None,
    guard: int | None = None,
    began: float = -1.0,
) -> None:
    """Connect this process to its guard; called in the process of the rank."""
    _Own.board, _Own.pipe, _Own.port, _Own.steps = board, pipe, port, 0
    _Own.guard, _Own.began = guard, began
    if _ImportsAreSteps not in sys.meta_path:
        sys.meta_path.insert(0, _ImportsAreSteps)


def pause() -> None:
    """Disconnect this process from its guard until the next :func:`begin`."""
    _Own.board = _Own.pipe = _Own.port = _Own.guard = None


def watched() -> bool:
    """Whether this process has a guard."""
    return _Own.board is not None


def step() -> None:
    """Show that this rank has made progress."""
    if _Own.board is not None:
        _Own.steps += 1
        _STEPS.pack_into(_Own.board, 0, _Own.steps)


def at_round(number: int) -> None:
    """Show that this rank has begun round ``number``."""
    if _Own.board is not None:
        _ROUND.pack_into(_Own.board, _AT["round"], number)
        step()


def set_waiting(yes: bool) -> None:
    """Show whether this rank waits for messages of others."""
    if _Own.board is not None:
        _WAITING.pack_into(_Own.board, _AT["waiting"], yes)
        step()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Show that this rank waits for others while the context lasts."""
    set_waiting(True)
    try:
        yield
    finally:
        set_waiting(False)


def port() -> int | None:
    """Return the UDP port of this rank's guard; None without one."""
    return _Own.port


def guard() -> int:
    """Return the process id of this rank's guard; of its parent without one."""
    return _Own.guard if _Own.guard is not None else os.getppid()


def began() -> float:
    """Return when this rank was started, in seconds since the system was; negative if unknown."""
    return _Own.began


def since_start() -> float:
    """Return wall seconds since the launcher started this rank; CPU seconds if unknown."""
    at = began() if watched() else started_at()
    if at < 0 or not hasattr(time, "CLOCK_BOOTTIME"):
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - at


def send_to_guard(**what: Any) -> None:
    """Send the guard a message."""
    _write(json.dumps(what) + "\n")


def announce_orderly_end() -> None:
    """Notify the guard that the rank now ends in order, which needs no report."""
    _write(ORDERLY + "\n")
    if _Own.pipe is not None:
        os.close(_Own.pipe)
        _Own.pipe = None


def _write(line: str) -> None:
    data = line.encode()
    if _Own.pipe is None:
        return
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(_Own.pipe, data) :]


def describe_clients(clients: Sequence[int]) -> str:
    """Describe clients in words."""
    if not clients:
        return "no clients"
    if len(clients) == 1:
        return f"client {clients[0]}"
    if clients[-1] - clients[0] == len(clients) - 1:
        return f"clients {clients[0]} to {clients[-1]}"
    more = f" and {len(clients) - 3} more" if len(clients) > 3 else ""
    return f"clients {', '.join(map(str, clients[:3]))}{more}"


def remember_clients(place: str) -> None:
    """Remember which clients this rank hosts, in words, for :func:`hosted_clients`."""
    _Own.hosted_clients = f" ({place})"


def hosted_clients() -> str:
    """Return the clients of this rank as ``' (clients 0 to 24)'``; empty before they are known."""
    return _Own.hosted_clients
