"""Progress that a rank shows the supervisor of its node, in a page of memory that they share."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

from mpifed.errors import StopRequested
from mpifed.watchdog.launcher import started_at
from mpifed.watchdog.meeting import Meeting

# Seconds that a rank may take no step, unless the configuration says otherwise.
STALL_LIMIT = 3600.0

NUMBERS = ("steps", "round", "waiting", "begun", "ending", "code", "planned")
TEXTS = {"clients": 256, "leader": 384, "failure": 3392, "log": 4096}


class Page(ctypes.Structure):
    """What a rank shows; ``code`` is its exit code once it has reported its failure, else zero."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in NUMBERS),
        ("limit", ctypes.c_double),
        *((name, ctypes.c_char * size) for name, size in TEXTS.items()),
    )

    def set_text(self, name: str, text: str) -> None:
        """Set a text, cut to the room it has."""
        setattr(self, name, text.encode(errors="replace")[: TEXTS[name]])

    def text(self, name: str) -> str:
        """Return a text; empty before it is set."""
        return str(getattr(self, name).decode(errors="ignore"))


def new_pages(count: int) -> list[Page]:
    """Allocate pages that a process shares with its later children."""
    import mmap  # here, since every guard would import it

    memory = mmap.mmap(-1, ctypes.sizeof(Page) * count)
    pages = [Page.from_buffer(memory, ctypes.sizeof(Page) * index) for index in range(count)]
    for page in pages:
        page.round, page.limit = -1, STALL_LIMIT
    return pages


class _ThisRank:
    """The page of this process, which none but itself sees where it has no supervisor."""

    page = Page(round=-1)
    watched = False
    began = -1.0
    gate: int | None = None
    meeting: Meeting | None = None


def begin(
    page: Page,
    began: float = -1.0,
    gate: int | None = None,
    meeting: Meeting | None = None,
) -> None:
    """Show progress on this page from now on; ``gate`` is for :func:`await_forks`, and ``meeting``
    is what :func:`meeting` returns.
    """
    _ThisRank.page, _ThisRank.began, _ThisRank.watched = page, began, True
    _ThisRank.gate, _ThisRank.meeting = gate, meeting


def watched() -> bool:
    """Whether this process has a supervisor."""
    return _ThisRank.watched


def meeting() -> Meeting | None:
    """Return where this rank meets those that its supervisor has forked too."""
    return _ThisRank.meeting


def await_forks() -> None:
    """Wait until the other ranks of this node are forked: in MPI this one would spin until then."""
    gate, _ThisRank.gate = _ThisRank.gate, None
    if gate is not None:
        os.read(gate, 1)
        os.close(gate)


def step() -> None:
    """Show that this rank has made progress."""
    _ThisRank.page.steps += 1


def at_round(number: int) -> None:
    """Show that this rank has begun round ``number``."""
    _ThisRank.page.round = number
    step()


def set_waiting(yes: bool) -> None:
    """Show whether this rank waits for messages of others."""
    _ThisRank.page.waiting = yes
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
    _ThisRank.page.limit = math.inf if limit is None else limit


def set_planned(size: float) -> None:
    """Note the bytes of samples that this rank is to hold, for reports of its death."""
    _ThisRank.page.planned = int(size)


def set_log(path: str) -> None:
    """Name the file in which a failure is to be noted as well: with a launcher, stderr may end."""
    _ThisRank.page.set_text("log", path)


def leader() -> str:
    """Return where rank 0's supervisor listens, if this is rank 0 and it does."""
    return _ThisRank.page.text("leader")


def mpi_has_begun(leader: str) -> None:
    """Show that MPI has begun, and where rank 0's supervisor listens."""
    _ThisRank.page.set_text("leader", leader)
    _ThisRank.page.begun = True


def set_failure(message: str) -> None:
    """Have the supervisor report a failure before MPI has begun, unless rank 0 does."""
    _ThisRank.page.set_text("failure", message)


def failure_reported(code: int) -> None:
    """Show that this rank has reported its failure and ends the job with this exit code."""
    _ThisRank.page.code = code


def announce_orderly_end() -> None:
    """Show that this rank now ends in order, which needs no report."""
    _ThisRank.page.ending = True


def since_start() -> float:
    """Return wall seconds since the launcher started this rank; CPU seconds if unknown."""
    at = _ThisRank.began if watched() else started_at("self")
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
    others = f" and {len(clients) - 3} more" if len(clients) > 3 else ""
    return f"clients {', '.join(map(str, clients[:3]))}{others}"


def set_hosted_clients(clients: Sequence[int]) -> None:
    """Remember which clients this rank hosts, for reports of its failure."""
    _ThisRank.page.set_text("clients", describe_clients(clients))


def hosted_clients() -> str:
    """Return the clients of this rank as ``' (clients 0 to 24)'``; empty before they are known."""
    text = _ThisRank.page.text("clients")
    return f" ({text})" if text else ""


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
