"""Run directories as reports read them, and the columns of metrics.csv that they know."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.components.registry import without_module
from mpifed.errors import InputError, closest
from mpifed.io.text import damaged
from mpifed.report.names import score_title
from mpifed.results.configurations import read_stored
from mpifed.results.results import DIGEST, STOPPED_AT, Result, read, read_clients
from mpifed.results.results import larger_is_better as larger_is_better

ACCURACY, DECILE, DISTANCE = "test_accuracy", "test_accuracy_p10", "consensus_distance"
# Columns that every metrics.csv has.
COLUMNS = ("round", "seconds", "train_loss", ACCURACY, DECILE, "up_bits", "down_bits", DISTANCE)


@dataclass(frozen=True)
class Measure:
    """What a column is, the words before the first comma being its name.

    ``is_own`` marks scores of a user's function, of which it is not known which way is better.
    """

    description: str
    percent: bool = False
    log: bool = False
    is_own: bool = False

    @property
    def factor(self) -> float:
        """What its values are multiplied by."""
        return 100.0 if self.percent else 1.0

    @property
    def title(self) -> str:
        """The title of its charts."""
        return self.description + " (%)" * self.percent

    @property
    def short(self) -> str:
        """The head of its column in tables."""
        return self.description.partition(",")[0] + " (%)" * self.percent


SCORES = {
    ACCURACY: Measure("Test accuracy, average over clients", percent=True),
    DECILE: Measure("Bottom decile, test accuracy of clients", percent=True),
    "train_loss": Measure("Training loss, average over clients"),
}
# Columns that validation and some algorithms add.
MEASURES = {
    "validation_loss": Measure("Validation loss, average over clients", log=True),
    "validation_accuracy": Measure("Validation accuracy, average over clients", percent=True),
    "validation_recall_at_5": Measure("Validation recall at 5, over all clients", percent=True),
    "train_nll": Measure("Training negative log-likelihood"),
    "test_nll": Measure("Test negative log-likelihood"),
    "validation_nll": Measure("Validation negative log-likelihood"),
    "train_perplexity": Measure("Training perplexity, of the next token", log=True),
    "test_perplexity": Measure("Test perplexity, of the next token", log=True),
    "validation_perplexity": Measure("Validation perplexity, of the next token", log=True),
    "objective": Measure("Objective, on the training data", log=True),
    "test_objective": Measure("Test objective", log=True),
    "surrogate_update": Measure("Surrogate update, squared, over γ²", log=True),
    "surrogate_update_estimate": Measure("Surrogate update, estimated from minibatches", log=True),
    "parameter_update": Measure("Parameter update, squared, over γ²", log=True),
    "simulated_seconds": Measure("Simulated seconds, of the federation"),
    "staleness_mean": Measure("Mean staleness, of what was mixed, in computations"),
    "staleness_max": Measure("Largest staleness, of what was mixed, in computations"),
    "epsilon": Measure("Epsilon, of differential privacy"),
    "l2_uvp": Measure("L2-UVP (%), unexplained variance of the map", log=True),
    "cosine": Measure("Cosine, of the map with the optimal one"),
    "test_accuracy_worst10": Measure("Worst tenth, mean accuracy of its clients", percent=True),
}


def measures_in(config: Mapping[str, Any]) -> dict[str, Measure]:
    """Return the columns of the scores that a run was configured to have, one for each score."""
    evaluation = config["evaluation"]
    names = evaluation.get("metrics") or []
    is_own = {
        without_module(name): ":" in name for name in ([names] if isinstance(names, str) else names)
    }

    def measure(name: str, before: str, where: str) -> Measure:
        title = score_title(name)
        title = before + (title if title.isupper() or not before else title.lower())
        return Measure(f"{title}, {where}", not is_own[name], is_own=is_own[name])

    measures = {f"test_{name}": measure(name, "", "over all test samples") for name in is_own}
    if evaluation.get("central"):
        what = "of the shared model on one test set"
        measures["central_test_accuracy"] = Measure(f"Central accuracy, {what}", percent=True)
        measures["central_test_loss"] = Measure(f"Central loss, {what}")
        measures |= {f"central_test_{name}": measure(name, "Central ", what) for name in is_own}
    return measures


@dataclass(frozen=True)
class Run:
    """One run directory; ``metrics`` has all columns, NaN where they are empty or missing.

    ``graph`` has p, the spectral gap and the degree of the mixing matrices, where they are known.
    """

    path: Path
    config: dict[str, Any]
    metrics: dict[str, np.ndarray]
    client_accuracies: np.ndarray | None
    seconds: float
    finished: bool
    predicted: dict[str, float]
    diverged: bool = False
    stopped: bool = False
    """Whether a condition of the user ended it."""
    graph: dict[str, float] = field(default_factory=dict)

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


def find_runs(directories: Iterable[Path]) -> list[Run]:
    """Return the runs in some directories."""
    unique: dict[Path, Path] = {}
    for above in directories:
        for directory in run_directories(above):
            unique.setdefault(directory.resolve(), directory)
    runs = [read_run(directory) for directory in unique.values()]
    for column in dict.fromkeys(name for run in runs for name in measures_in(run.config)):
        for run in runs:
            run.metrics.setdefault(column, np.full(len(run.metrics["round"]), np.nan))
    return runs


def run_directories(directory: Path) -> list[Path]:
    """Return the run directories in a directory, sorted."""
    if not os.path.isdir(directory):
        raise InputError(f"'{directory}' is not a directory; it must be or contain a run directory")
    runs = []
    for folder, inner, files in os.walk(directory, onerror=_unreadable):
        if "config.yaml" in files:
            runs.append(Path(folder))
            inner.clear()
    if not runs:
        raise InputError(f"'{directory}' holds no run: there is no config.yaml in it or below it")
    return sorted(runs)


def _unreadable(error: OSError) -> None:
    raise InputError(f"'{error.filename}' cannot be read: {error.strerror}; leave it out")


def read_run(path: Path) -> Run:
    """Return the run in a directory."""
    finished = (path / "DONE").exists()
    config, result = read_stored(path / "config.yaml"), read(path)
    metrics = _metrics(result, finished)
    # A run that was begun again has no summary; one that diverged, or was stopped, has.
    summary = result.summary if finished or result.status != "unfinished" else {}
    seconds = metrics["seconds"][-1] if len(metrics["seconds"]) else np.nan
    return Run(
        path,
        config,
        metrics,
        _client_accuracies(path / "clients.h5") if finished else None,
        float(summary["seconds"]["total"] if finished else seconds),
        finished,
        summary.get("predicted_contraction") or {},
        summary.get("status") == "diverged",
        summary.get("status") == STOPPED_AT,
        summary.get("graph", {}),
    )


def _metrics(result: Result, finished: bool) -> dict[str, np.ndarray]:
    path = result.directory / "metrics.csv"
    metrics = dict(result.metrics) if finished or path.exists() else {}
    metrics.pop(DIGEST, None)
    missing = [name for name in COLUMNS if name not in metrics]
    if metrics and missing:
        raise damaged(path, f"it has no column {missing[0]}")
    if finished and not (metrics and len(metrics["round"])):
        raise damaged(path, "it has no rows")
    nothing = np.full(len(metrics.get("round", ())), np.nan)
    return dict.fromkeys((*COLUMNS, *MEASURES), nothing) | metrics


def _client_accuracies(path: Path) -> np.ndarray | None:
    accuracies = read_clients(path).results.get(ACCURACY)
    if accuracies is None or accuracies.ndim != 1:
        raise damaged(path, "it has no test_accuracy of each client")
    return accuracies.astype(float) if np.isfinite(accuracies).all() else None


def check_column(runs: Sequence[Run], name: str) -> None:
    """Check that every run has measured a column, so that it can be drawn."""
    for run in runs:
        if name not in run.metrics:
            raise InputError(f"'{run.path}' has no column '{name}'; {closest(name, run.metrics)}")
