"""Trackers by name, and the thread that sends them the rows of a run."""

from __future__ import annotations

import importlib
import logging
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mpifed.errors import InputError, closest, in_words
from mpifed.watchdog.heartbeat import waiting

# Names the tracker of commands without ``--track``.
TRACK_VARIABLE = "MPIFED_TRACK"

# The project, or experiment, of runs where the environment names none.
PROJECT = "mpifed"

# Characters of a value of the configuration in MLflow, whose older servers take no more.
LONGEST = 500

# Values of the configuration, and numbers of rows, in one request to MLflow.
AT_ONCE, MOST = 100, 1000

# Rounds with their numbers by column.
Rows = Sequence[tuple[int, Mapping[str, float]]]

# Seconds that a tracker has after the last round, and where a run stops or fails.
PATIENCE, HURRY = 30.0, 5.0

# Seconds between two requests to a tracker at least: quick rounds are sent together.
EVERY = 5.0


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker learns of a run before its first row; ``identifier`` is the tracker's own."""

    directory: Path
    name: str
    configuration: Mapping[str, Any]
    first: int
    identifier: str | None
    remember: Callable[[str], None]


class Tracker(Protocol):
    """A run as it is open in a tracker."""

    def send(self, rows: Rows) -> None:
        """Send rows, in their order."""

    def close(self, status: str) -> None:
        """End with 'finished', 'stopped' or 'failed'."""


class TensorBoard:
    """Event files in the folder ``tensorboard`` of the run directory."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.directory / "tensorboard"
        # Rows of an earlier part that are recorded again are hidden from the first new one on.
        again = run.first if folder.is_dir() else None
        self._writer = SummaryWriter(str(folder), purge_step=again, flush_secs=10)
        table = "\n".join(f"| {key} | {value} |" for key, value in flat(run.configuration))
        self._writer.add_text("configuration", f"| key | value |\n| --- | --- |\n{table}")

    def send(self, rows: Rows) -> None:
        for round, values in rows:
            for name, value in values.items():
                self._writer.add_scalar(name, value, round)

    def close(self, status: str) -> None:
        self._writer.close()


class MLflow:
    """A run of MLflow, where ``MLFLOW_TRACKING_URI`` says."""

    STATUS: Mapping[str, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        if run.identifier is not None:
            self._run = run.identifier
            self._client.update_run(self._run, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(name)
        )
        self._run = self._client.create_run(experiment_id, run_name=run.name).info.run_id
        run.remember(self._run)
        self._configuration(run)

    def _configuration(self, run: TrackedRun) -> None:
        from mlflow.entities import Param, RunTag

        values = [Param(key, value[:LONGEST]) for key, value in flat(run.configuration)]
        for start in range(0, len(values), AT_ONCE):
            self._client.log_batch(self._run, params=values[start : start + AT_ONCE])
        tag = RunTag("mpifed.directory", str(run.directory.resolve()))
        self._client.log_batch(self._run, tags=[tag])

    def send(self, rows: Rows) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(n, value, now, round) for round, row in rows for n, value in row.items()]
        for start in range(0, len(metrics), MOST):
            self._client.log_batch(self._run, metrics=metrics[start : start + MOST])

    def close(self, status: str) -> None:
        self._client.set_terminated(self._run, self.STATUS[status])


class Wandb:
    """A run of Weights & Biases; its variables, as ``WANDB_MODE``, say where it is sent."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        # Silent also means that a missing login is an error and no question in the terminal.
        settings = wandb.Settings(silent=True, console="off")
        wandb.setup(settings=settings)
        name = run.identifier or secrets.token_hex(4)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=name,
            resume="allow",
            name=run.name,
            dir=str(run.directory),
            config=dict(run.configuration),
            settings=settings,
        )
        run.remember(name)
        # Repeated rounds may not have the number of an earlier step, so steps are wandb's own.
        self._run.define_metric("*", step_metric="round")

    def send(self, rows: Rows) -> None:
        for round, values in rows:
            self._run.log({**values, "round": round})

    def close(self, status: str) -> None:
        self._run.finish(exit_code=int(status == "failed"))


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


def flat(configuration: Mapping[str, Any], front: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and values of a nested configuration, as text."""
    for key, value in configuration.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{front}{key}.")
        else:
            yield f"{front}{key}", str(value)


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
