"""Trackers by name, and the thread that sends them the rows of a run."""

from __future__ import annotations

import importlib
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from mpifed.errors import InputError, closest, in_words
from mpifed.trackers import MLflow, TensorBoard, TrackedRun, Tracker, Wandb
from mpifed.watchdog.heartbeat import waiting

# Names the tracker of commands without ``--track``.
TRACK_VARIABLE = "MPIFED_TRACK"

# Seconds that a tracker has after the last round, and where a run stops or fails.
PATIENCE, HURRY = 30.0, 5.0

# Seconds between two requests to a tracker at least: quick rounds are sent together.
EVERY = 5.0

# What opens a run in each tracker, and the modules that it needs.
TRACKERS: Mapping[str, tuple[Callable[[TrackedRun], Tracker], Sequence[str]]] = {
    "tensorboard": (TensorBoard, ("tensorboard", "torch.utils.tensorboard")),
    "mlflow": (MLflow, ("mlflow.tracking",)),
    "wandb": (Wandb, ("wandb",)),
}


def check_tracker(name: str) -> None:
    """Import what a tracker needs."""
    if not isinstance(name, str) or name not in TRACKERS:
        raise InputError(f"track is {name!r}; {closest(str(name), TRACKERS)}")
    for module in TRACKERS[name][1]:
        try:
            importlib.import_module(module)
        except Exception as error:  # a package may fail to import in any way
            raise InputError(
                f"track is '{name}', which cannot be imported: {in_words(error)}; install it with "
                f"python -m pip install 'mpifed[{name}]', or leave track out"
            ) from error


class Sending:
    """Rows on their way to a tracker, in a thread that can neither stop a run nor hold it up."""

    def __init__(self, name: str, open: Callable[[], Tracker]) -> None:
        self._name, self._open, self._status = name, open, ""
        self._waiting: deque[tuple[int, Mapping[str, float]]] = deque()
        self._end = threading.Event()
        # A daemon, for which the interpreter does not wait.
        self._thread = threading.Thread(target=self._work, name=f"to {name}", daemon=True)
        self._thread.start()

    def row(self, round: int, values: Mapping[str, float]) -> None:
        """Send a row; returns at once."""
        if self._thread.is_alive():
            finite = {name: value for name, value in values.items() if not math.isnan(value)}
            self._waiting.append((round, finite))

    def close(self, status: str, patience: float | None = None) -> None:
        """Wait, for a bounded time, until everything is sent; only the first call counts."""
        if self._end.is_set():
            return
        self._status = status
        self._end.set()
        if patience is None:
            patience = PATIENCE if status == "finished" else HURRY
        with waiting():
            self._thread.join(patience)
        if self._thread.is_alive():
            self._warn(f"it has not taken everything {patience:g} s after the last round")

    def _work(self) -> None:
        try:
            tracker = self._open()
            ended = False
            while not ended:
                ended = self._end.wait(EVERY)
                rows = [self._waiting.popleft() for _ in range(len(self._waiting))]
                if rows:
                    tracker.send(rows)
            tracker.close(self._status)
        except BaseException as error:  # a tracker may raise anything
            self._warn(in_words(error))

    def _warn(self, why: str) -> None:
        text = f"{self._name} is not told of the run any more: {why}"
        logging.getLogger("mpifed").warning(text)
