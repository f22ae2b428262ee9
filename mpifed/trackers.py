"""Trackers: how a run is opened, sent and closed in TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# The project, or experiment, of runs where the environment names none.
PROJECT = "mpifed"

# Characters of a value of the configuration in MLflow, whose older servers take no more.
LONGEST = 500

# Values of the configuration, and numbers of rows, in one request to MLflow.
AT_ONCE, MOST = 100, 1000

# Rounds with their numbers by column.
Rows = Sequence[tuple[int, Mapping[str, float]]]


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


def flat(configuration: Mapping[str, Any], front: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and values of a nested configuration, as text."""
    for key, value in configuration.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{front}{key}.")
        else:
            yield f"{front}{key}", str(value)
