"""Run directories as reports read them, and the columns of metrics.csv that they know."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.errors import InputError, closest
from mpifed.results.configurations import read_stored
from mpifed.results.results import DIGEST, read_clients, read_metrics, read_summary

ACCURACY, DECILE = "test_accuracy", "test_accuracy_p10"
# Columns that every metrics.csv has.
COLUMNS = (
    "round",
    "seconds",
    "train_loss",
    "test_accuracy",
    "test_accuracy_p10",
    "up_bits",
    "down_bits",
    "consensus_distance",
)


@dataclass(frozen=True)
class Measure:
    """The title and scale of a column."""

    title: str
    short: str
    log: bool = True
    factor: float = 1.0


SCORES = {
    ACCURACY: Measure("Test accuracy, average over clients (%)", "Average (%)", False, 100.0),
    DECILE: Measure("Test accuracy, bottom decile of clients (%)", "Bottom decile (%)", False, 100),
    "train_loss": Measure("Training loss, average over clients", "Training loss", log=False),
}
# Columns that validation and some algorithms add.
MEASURES = {
    "validation_loss": Measure("Validation loss, average over clients", "Validation loss"),
    "validation_accuracy": Measure(
        "Validation accuracy, average over clients (%)", "Validation accuracy (%)", False, 100.0
    ),
    "validation_recall_at_5": Measure(
        "Validation recall at 5, over all clients (%)", "Validation recall at 5 (%)", False, 100.0
    ),
    "train_nll": Measure("Training negative log-likelihood", "Train NLL", log=False),
    "test_nll": Measure("Test negative log-likelihood", "Test NLL", log=False),
    "validation_nll": Measure("Validation negative log-likelihood", "Validation NLL", log=False),
    "objective": Measure("Objective on the training data", "Objective"),
    "test_objective": Measure("Objective on the test data", "Test objective"),
    "surrogate_update": Measure("Squared update of surrogates, over γ²", "Surrogate update"),
    "parameter_update": Measure("Squared update of parameters, over γ²", "Parameter update"),
    "simulated_seconds": Measure(
        "Seconds of the simulated federation", "Simulated seconds", log=False
    ),
    "staleness_mean": Measure(
        "Mean staleness of what was mixed, in computations", "Mean staleness", log=False
    ),
    "staleness_max": Measure(
        "Largest staleness of what was mixed, in computations", "Largest staleness", log=False
    ),
    "epsilon": Measure("Epsilon of differential privacy", "Epsilon", log=False),
    "l2_uvp": Measure("L2-UVP: unexplained variance of the map (%)", "L2-UVP (%)"),
    "cosine": Measure("Cosine of the map with the optimal one", "Cosine", log=False),
}

# Words in the names of columns whose best value is the largest; others have the least.
LARGER_IS_BETTER = ("accuracy", "recall", "cosine")


def larger_is_better(column: str) -> bool:
    """Return whether the best value of ``column`` is the largest one."""
    return any(word in column for word in LARGER_IS_BETTER) and not column.endswith("_std")


@dataclass(frozen=True)
class Run:
    """One run directory."""

    path: Path
    config: dict[str, Any]
    metrics: dict[str, np.ndarray]
    client_accuracies: np.ndarray | None
    seconds: float
    finished: bool
    predicted: dict[str, float]
    diverged: bool = False

    @property
    def seed(self) -> Any:
        """The seed of the run."""
        return self.config.get("seed")

    @property
    def rounds(self) -> int | None:
        """The last evaluated round; None before the first evaluation."""
        return int(self.metrics["round"][-1]) if len(self.metrics["round"]) else None

    def last(self, column: str) -> float:
        """Return the last value of a column; NaN before the first evaluation."""
        return float(self.metrics[column][-1]) if len(self.metrics[column]) else np.nan


def find_runs(places: Iterable[Path]) -> list[Run]:
    """Return the runs in some directories."""
    found: dict[Path, Run] = {}
    for place in places:
        for directory in run_directories(place):
            found.setdefault(directory.resolve(), read_run(directory))
    return list(found.values())


def run_directories(place: Path) -> list[Path]:
    """Return the run directories in a place, sorted."""
    if not os.path.isdir(place):
        raise InputError(f"'{place}' is not a directory; it must be or contain a run directory")
    found = []
    for folder, inner, files in os.walk(place, onerror=_unreadable):
        if "config.yaml" in files:
            found.append(Path(folder))
            inner.clear()
    if not found:
        raise InputError(f"'{place}' holds no run: there is no config.yaml in it or below it")
    return sorted(found)


def _unreadable(error: OSError) -> None:
    raise InputError(f"'{error.filename}' cannot be read: {error.strerror}; leave it out")


def read_run(path: Path) -> Run:
    """Return the run in a directory."""
    finished = (path / "DONE").exists()
    config = read_stored(path / "config.yaml")
    metrics = _read_metrics(path / "metrics.csv", finished)
    # A run that was begun again has none; one that diverged, or was stopped, has.
    ended = finished or (path / "summary.json").exists()
    summary = read_summary(path / "summary.json") if ended else {}
    seconds = metrics["seconds"][-1] if len(metrics["seconds"]) else np.nan
    return Run(
        path,
        config,
        metrics,
        _read_client_accuracies(path / "clients.h5", finished),
        float(summary["seconds"]["total"] if finished else seconds),
        finished,
        summary.get("predicted_contraction") or {},
        summary.get("status") == "diverged",
    )


def _read_metrics(path: Path, finished: bool) -> dict[str, np.ndarray]:
    if not path.exists() and not finished:
        return {name: np.zeros(0) for name in (*COLUMNS, *MEASURES)}
    found = read_metrics(path, growing=not finished)
    missing = sorted(set(COLUMNS) - set(found.columns)) if found.columns else []
    if missing or (finished and not found.rows):
        raise InputError(
            f"'{path}' is damaged: it has no " + (f"column {missing[0]}" if missing else "rows")
        )
    nothing = np.full(len(found.rows), np.nan)
    return {
        name: found.numbers(name) if name in found.columns else nothing
        for name in (*COLUMNS, *MEASURES)
    }


def read_columns(run: Run, names: Sequence[str]) -> np.ndarray:
    """Return some columns of metrics.csv."""
    found = read_metrics(run.path / "metrics.csv", growing=not run.finished)
    there = [name for name in found.columns if name != DIGEST]
    for name in names:
        if name not in there:
            raise InputError(f"'{run.path}' has no column '{name}'; {closest(name, there)}")
    return np.array([found.numbers(name) for name in names]).T.reshape(-1, len(names))


def _read_client_accuracies(path: Path, finished: bool) -> np.ndarray | None:
    if not finished:  # it belongs to an evaluation that may not be the last row of metrics.csv
        return None
    accuracies = read_clients(path).results.get("test_accuracy")
    if accuracies is None or accuracies.ndim != 1:
        raise InputError(f"'{path}' is damaged: it has no test_accuracy of each client")
    return accuracies.astype(float) if np.isfinite(accuracies).all() else None
