"""A thread that sends rows to a tracker, so that a tracker can neither stop a run nor hold
it up.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mpifed.errors import in_words
from mpifed.tracking.trackers import Tracker
from mpifed.watchdog.heartbeat import waiting

# Rows that may wait.
MOST = 1000

# Seconds that a tracker has after the last round, and where a run stops or fails.
PATIENCE, HURRY = 30.0, 5.0

# Seconds between two requests to a tracker at least: quick rounds are sent together.
EVERY = 5.0


@dataclass
class Sending:
    """Rows on their way to a tracker."""

    name: str
    open: Callable[[], Tracker]
    most: int = MOST
    _status: str = "failed"
    _dropped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False
    _waiting: queue.Queue[tuple[int, Mapping[str, float]]] = field(init=False)
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._waiting = queue.Queue(self.most)
        # A daemon, for which the interpreter does not wait.
        self._thread = threading.Thread(target=self._work, name=f"to {self.name}", daemon=True)
        self._thread.start()

    def row(self, round: int, values: Mapping[str, float]) -> None:
        """Send a row; returns at once."""
        if self._dropped.is_set():
            return
        try:
            self._waiting.put_nowait(
                (round, {n: v for n, v in values.items() if not math.isnan(v)})
            )
        except queue.Full:
            self._drop(f"{self.most} rows wait for it, so it is too slow or does not answer")

    def close(self, status: str, patience: float | None = None) -> None:
        """Wait, for a bounded time, until everything is sent; only the first call counts."""
        if self._closed:
            return
        self._closed, self._status = True, status
        self._end.set()
        if patience is None:
            patience = PATIENCE if status == "finished" else HURRY
        if self._dropped.is_set():
            return
        with waiting():
            self._thread.join(patience)
        if self._thread.is_alive():
            self._drop(f"it has not taken everything {patience:g} s after the last round")

    def _work(self) -> None:
        try:
            tracker = self.open()
            while not self._dropped.is_set():
                ended = self._end.wait(EVERY)
                rows = self._taken()
                if rows:
                    tracker.send(rows)
                if ended:
                    tracker.close(self._status)
                    return
        except BaseException as error:  # a tracker may raise anything
            self._drop(in_words(error))

    def _taken(self) -> list[tuple[int, Mapping[str, float]]]:
        rows = []
        while True:
            try:
                rows.append(self._waiting.get_nowait())
            except queue.Empty:
                return rows

    def _drop(self, why: str) -> None:
        with self._lock:
            first = not self._dropped.is_set()
            self._dropped.set()
        if first:
            text = f"{self.name} is not told of the run any more: {why}"
            logging.getLogger("mpifed").warning(text)
