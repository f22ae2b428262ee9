"""Progress and interruption of a long search that clients do alone."""

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
    """Reports in the log on the search for the optima of ``clients``, and stops it on request.

    Parameters
    ----------
    clients : Clients
        All clients hosted here.
    """

    def __init__(self, clients: Clients) -> None:
        self._count = len(clients)
        ranks = clients.federation.communicator
        self._where = f" of rank {ranks.numbers[ranks.rank]}" if ranks.size > 1 else ""
        self._reported = time.monotonic()

    def at(self, iteration: int, left: int, norm: Callable[[], Any]) -> None:
        """Report an iteration; every iteration calls it.

        Parameters
        ----------
        iteration : int
            Number of the iteration.
        left : int
            Clients that have not finished.
        norm : callable
            Returns their largest gradient norm; called only where a line is written.

        Raises
        ------
        StopRequested
            Where this rank has been asked to stop.
        """
        raise_if_stop_requested()
        now = time.monotonic()
        if now - self._reported < EVERY:
            return
        self._reported = now
        log.info(
            f"local optima: {iteration} iterations, {left} of {self._count} clients{self._where} "
            f"not finished, largest gradient norm {float(norm()):.2e}"
        )
