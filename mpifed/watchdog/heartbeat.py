"""Progress that a rank shows the supervisor of its node, in a page of memory that they share."""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from mpifed.errors import StopRequested
from mpifed.watchdog.launcher import started_at

# Seconds that a rank may take no step, unless the configuration says otherwise.
STALL_LIMIT = 3600.0

# Bytes of the page of a rank.
PAGE = mmap.PAGESIZE

_FIELDS = ("steps", "round", "waiting", "begun", "ending", "reported", "code")
_NUMBER, _LIMIT = struct.Struct("=q"), struct.Struct("=d")
_AT = {name: 8 * place for place, name in enumerate(_FIELDS)}
_LIMIT_AT = 8 * len(_FIELDS)

# Where texts begin and end, two bytes of length first.
_TEXTS = {"clients": (128, 384), "leader": (384, 768), "failure": (768, 4096)}


class Signs(NamedTuple):
    """What a rank shows; ``reported`` once it has reported its failure, with its exit code."""

    steps: int
    round: int
    waiting: int
    begun: int
    ending: int
    reported: int
    code: int


class Page:
    """The page of one rank in the memory of its node."""

    def __init__(self, memory: mmap.mmap, place: int = 0) -> None:
        self._memory, self._at = memory, place * PAGE

    def write(self, name: str, number: int) -> None:
        """Set a number."""
        _NUMBER.pack_into(self._memory, self._at + _AT[name], number)

    def read(self) -> Signs:
        """Return all numbers."""
        return Signs(*(_NUMBER.unpack_from(self._memory, self._at + at)[0] for at in _AT.values()))

    def set_limit(self, limit: float | None) -> None:
        """Set the stall limit; None for no limit."""
        value = math.inf if limit is None else limit
        _LIMIT.pack_into(self._memory, self._at + _LIMIT_AT, value)

    @property
    def limit(self) -> float:
        """The stall limit in seconds."""
        return float(_LIMIT.unpack_from(self._memory, self._at + _LIMIT_AT)[0])

    def write_text(self, name: str, text: str) -> None:
        """Set a text, cut to the room it has."""
        begin, end = (self._at + at for at in _TEXTS[name])
        data = text.encode(errors="replace")[: end - begin - 2]
        self._memory[begin + 2 : begin + 2 + len(data)] = data
        self._memory[begin : begin + 2] = len(data).to_bytes(2, "little")

    def text(self, name: str) -> str:
        """Return a text; empty before it is set."""
        begin = self._at + _TEXTS[name][0]
        length = int.from_bytes(self._memory[begin : begin + 2], "little")
        return bytes(self._memory[begin + 2 : begin + 2 + length]).decode(errors="ignore")


def new_pages(count: int) -> mmap.mmap:
    """Allocate memory that a process shares with its later children."""
    memory = mmap.mmap(-1, PAGE * count)
    for page in (Page(memory, place) for place in range(count)):
        page.write("round", -1)
        page.set_limit(STALL_LIMIT)
    return memory


class _Own:
    """The page of this process, if it has a supervisor."""

    page: Page | None = None
    began = -1.0
    steps = 0
    hosted_clients = ""


class _ImportsAreSteps:
    """Finds no module, but is asked for each: thousands, before a rank does anything else."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        step()


def begin(page: Page, began: float = -1.0) -> None:
    """Show progress on this page from now on."""
    _Own.page, _Own.began, _Own.steps = page, began, 0
    if _ImportsAreSteps not in sys.meta_path:
        sys.meta_path.insert(0, _ImportsAreSteps)


def watched() -> bool:
    """Whether this process has a supervisor."""
    return _Own.page is not None


def step() -> None:
    """Show that this rank has made progress."""
    if _Own.page is not None:
        _Own.steps += 1
        _Own.page.write("steps", _Own.steps)


def at_round(number: int) -> None:
    """Show that this rank has begun round ``number``."""
    _write("round", number)
    step()


def set_waiting(yes: bool) -> None:
    """Show whether this rank waits for messages of others."""
    _write("waiting", yes)
    step()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Show that this rank waits for others while the context lasts."""
    set_waiting(True)
    try:
        yield
    finally:
        set_waiting(False)


def set_stall_limit(limit: float | None) -> None:
    """Set the seconds that this rank may take no step; None for no limit."""
    if _Own.page is not None:
        _Own.page.set_limit(limit)


def leader() -> str:
    """Return where rank 0's supervisor listens, if this is rank 0 and it does."""
    return _Own.page.text("leader") if _Own.page is not None else ""


def mpi_has_begun(leader: str) -> None:
    """Show that MPI has begun, and where rank 0's supervisor listens."""
    if _Own.page is not None:
        _Own.page.write_text("leader", leader)
    _write("begun", True)


def set_failure(message: str) -> None:
    """Have the supervisor report a failure before MPI has begun, unless rank 0 does."""
    if _Own.page is not None:
        _Own.page.write_text("failure", message)


def failure_reported(code: int) -> None:
    """Show that this rank has reported its failure and ends the job with this exit code."""
    _write("code", code)
    _write("reported", True)


def announce_orderly_end() -> None:
    """Show that this rank now ends in order, which needs no report."""
    _write("ending", True)


def _write(name: str, number: int) -> None:
    if _Own.page is not None:
        _Own.page.write(name, number)


def since_start() -> float:
    """Return wall seconds since the launcher started this rank; CPU seconds if unknown."""
    at = _Own.began if watched() else started_at()
    if at < 0 or not hasattr(time, "CLOCK_BOOTTIME"):
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - at


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


def set_hosted_clients(clients: Sequence[int]) -> None:
    """Remember which clients this rank hosts, for reports of its failure."""
    place = describe_clients(clients)
    _Own.hosted_clients = f" ({place})"
    if _Own.page is not None:
        _Own.page.write_text("clients", place)


def hosted_clients() -> str:
    """Return the clients of this rank as ``' (clients 0 to 24)'``; empty before they are known."""
    return _Own.hosted_clients


# Whether a rank is asked to stop before round 1, during work that may last and is in no checkpoint.
_requested: ContextVar[Callable[[], bool]] = ContextVar("requested", default=lambda: False)


@contextlib.contextmanager
def stop_requests_from(stop_requested: Callable[[], bool]) -> Iterator[None]:
    """Make :func:`raise_if_stop_requested` call ``stop_requested`` while the context lasts."""
    token = _requested.set(stop_requested)
    try:
        yield
    finally:
        _requested.reset(token)


def raise_if_stop_requested() -> None:
    """Raise if this rank has been asked to stop, else show its guard a step. Not collective."""
    if _requested.get()():
        raise StopRequested
    step()
