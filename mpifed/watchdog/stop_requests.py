"""Requests to stop before round 1, during work that may last and is in no checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mpifed.errors import StopRequested
from mpifed.watchdog import heartbeat

_requested: ContextVar[Callable[[], bool]] = ContextVar("requested", default=lambda: False)


@contextmanager
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
    heartbeat.step()
