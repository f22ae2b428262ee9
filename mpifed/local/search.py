"""A long search of clients on their own, seen from outside: it tells how far it is, and can be
stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from mpifed.federation.clients import Clients
from mpifed.supervision.stop_requests import raise_if_stop_requested

EVERY = 10.0
"""Seconds between two lines of the log, at least."""

log = logging.getLogger("mpifed")


class Search:
    """The search for the optima of ``clients``, all that are hosted here."""

    def __init__(self, clients: Clients) -> None:
        self._count = len(clients)
        size = clients.federation.communicator.size
        self._where = f" of rank {clients.federation.communicator.rank}" if size > 1 else ""
        self._told = time.monotonic()

    def at(self, iteration: int, left: int, norm: Callable[[], Any]) -> None:
        """Called at every iteration; ``left`` clients have not finished, and ``norm()`` is their
        largest gradient norm.

        Raises ``StopRequested`` where this rank has been asked to stop.
        """
        raise_if_stop_requested()
        now = time.monotonic()
        if now - self._told < EVERY:
            return
        self._told = now
        log.info(
            f"local optima: {iteration} iterations, {left} of {self._count} clients{self._where} "
            f"go on, largest gradient norm {float(norm()):.2e}"
        )
