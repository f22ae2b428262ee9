"""A request to stop, where it comes before round 1: in work that may last and is in no checkpoint.

From round 1 on the engine itself asks between rounds. Before, whoever iterates calls
``raise_if_stop_requested`` now
and then; the ranks come together in ``agreement.agree``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mpifed.errors import StopRequested
from mpifed.supervision import heartbeat

_requested: ContextVar[Callable[[], bool]] = ContextVar("requested", default=lambda: False)


@contextmanager
def stop_requests_from(stop_requested: Callable[[], bool]) -> Iterator[None]:
    """While it lasts, ``raise_if_stop_requested`` asks ``stop_requested``."""
    token = _requested.set(stop_requested)
    try:
        yield
    finally:
        _requested.reset(token)


def raise_if_stop_requested() -> None:
    """Raises ``StopRequested`` where this rank has been asked to stop. Not collective.

    Else shows the rank's guard that it has come one step forward.
    """
    if _requested.get()():
        raise StopRequested
    heartbeat.step()
