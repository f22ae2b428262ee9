"""Signs of life: what a rank tells the guard that watches it, without a word over MPI.

A page of memory that rank and guard share holds the round, a count of steps forward and whether the
rank waits for others. Writing there costs a fraction of a microsecond, so it is done at every step
of local training and at every message; the guard looks a few times a second. A pipe carries what is
said once: with whom the rank works, and that it ends in order.

Without a guard (one process, or a program of the user's own) all of this does nothing.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_STEPS, _ROUND, _WAITING = (struct.Struct("=q") for _ in range(3))
_AT = {"steps": 0, "round": 8, "waiting": 16}

STALL_LIMIT = 3600.0
"""Seconds that a rank may take no step forward, unless the configuration says otherwise."""

ORDERLY = "."
"""The line on the pipe that says that what follows is an end in order."""


@dataclass(frozen=True)
class Signs:
    """What a rank shows. ``round`` is -1 before training."""

    steps: int
    round: int
    waiting: bool


def new_board() -> mmap.mmap:
    """A page that a process and its later children share."""
    board = mmap.mmap(-1, mmap.PAGESIZE)
    _ROUND.pack_into(board, _AT["round"], -1)
    return board


def read(board: mmap.mmap) -> Signs:
    """What the rank shows now."""
    steps, round, waiting = (_STEPS.unpack_from(board, place)[0] for place in _AT.values())
    return Signs(steps, round, bool(waiting))


class _Own:
    """What this process writes to, if it has a guard."""

    board: mmap.mmap | None = None
    pipe: int | None = None
    port: int | None = None
    steps = 0
    whereabouts = ""


class _ImportsAreSteps:
    """Finds no module, but is asked for each: thousands, before a rank does anything else."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        step()


def begin(board: mmap.mmap, pipe: int, port: int | None) -> None:
    """Called once in the rank's process. ``port`` is the UDP port on which its guard listens."""
    _Own.board, _Own.pipe, _Own.port = board, pipe, port
    sys.meta_path.insert(0, _ImportsAreSteps)


def watched() -> bool:
    """Whether this process has a guard."""
    return _Own.board is not None


def step() -> None:
    """Shows that this rank has come one step forward."""
    if _Own.board is not None:
        _Own.steps += 1
        _STEPS.pack_into(_Own.board, 0, _Own.steps)


def at_round(number: int) -> None:
    """Shows that this rank has begun round ``number``."""
    if _Own.board is not None:
        _ROUND.pack_into(_Own.board, _AT["round"], number)
        step()


def waits(yes: bool) -> None:
    """Shows whether this rank waits for messages of others."""
    if _Own.board is not None:
        _WAITING.pack_into(_Own.board, _AT["waiting"], yes)
        step()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Shows, while it lasts, that this rank waits for others."""
    waits(True)
    try:
        yield
    finally:
        waits(False)


def port() -> int | None:
    """The UDP port of this rank's guard."""
    return _Own.port


def tell(**what: Any) -> None:
    """Passes plain data on to the guard."""
    _write(json.dumps(what) + "\n")


def announce() -> None:
    """Tells the guard that what follows is an end in order, which needs no report."""
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


def place(clients: Sequence[int]) -> str:
    """Ascending clients in words: 'clients 0 to 24', 'client 3', 'clients 1, 5, 9 and 20 more'."""
    if not clients:
        return "no clients"
    if len(clients) == 1:
        return f"client {clients[0]}"
    if clients[-1] - clients[0] == len(clients) - 1:
        return f"clients {clients[0]} to {clients[-1]}"
    more = f" and {len(clients) - 3} more" if len(clients) > 3 else ""
    return f"clients {', '.join(map(str, clients[:3]))}{more}"


def settle_in(place: str) -> None:
    """Remembers the clients of this rank, in words, for its last ones."""
    _Own.whereabouts = f" ({place})"


def whereabouts() -> str:
    """' (clients 0 to 24)' once it is known whom this rank hosts; empty before."""
    return _Own.whereabouts
