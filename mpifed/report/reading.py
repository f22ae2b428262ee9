"""Run directories: the configuration of a run, its measurements, and whether it finished."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

from mpifed.errors import InputError, closest
from mpifed.report.columns import COLUMNS, MEASURES

SECTIONS = ("data", "algorithm", "exchange")
RATE = ("p", "tau", "per_round")


@dataclass(frozen=True)
class Run:
    """One run directory.

    Attributes
    ----------
    path : Path
        The directory.
    config : dict[str, Any]
        The configuration.
    metrics : dict of str to ndarray of float64, shape (k,)
        The ``COLUMNS`` and ``MEASURES`` at the evaluated rounds, NaN where the file has no value.
    client_accuracies : ndarray of float64, shape (clients,), or None
        The test accuracies at the last evaluation.
    seconds : float
        Wall time in seconds.
    finished : bool
        Whether the run is complete.
    predicted : dict[str, float]
        The contraction of pure averaging in summary.json (p, tau, per_round); empty without.
    diverged : bool
        Whether the run ended because numbers were no longer finite.
    """

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
    """Return the runs in some directories.

    Parameters
    ----------
    places : Iterable[Path]
        Run directories, or directories with run directories at any depth.

    Returns
    -------
    list of Run
        The runs, each once.

    Raises
    ------
    InputError
        If a place is not a directory or has no runs, or if a file is damaged.
    """
    found: dict[Path, Run] = {}
    for place in places:
        if not place.is_dir():
            raise InputError(f"'{place}' is not a directory; it must be or contain a run directory")
        directories = sorted(_run_directories(place))
        if not directories:
            raise InputError(f"'{place}' holds no run: there is no config.yaml in it or below it")
        for directory in directories:
            found.setdefault(directory.resolve(), read_run(directory))
    return list(found.values())


def read_run(path: Path) -> Run:
    """Return the run in a directory.

    Parameters
    ----------
    path : Path
        The run directory.

    Returns
    -------
    Run
        The run.

    Raises
    ------
    InputError
        If a file is missing, damaged or foreign; the message names it.
    """
    finished = (path / "DONE").exists()
    config = _read_config(path / "config.yaml")
    metrics = _read_metrics(path / "metrics.csv", finished)
    summary = _read_summary(path / "summary.json", finished)
    seconds = metrics["seconds"][-1] if len(metrics["seconds"]) else np.nan
    return Run(
        path,
        config,
        metrics,
        _read_client_accuracies(path / "clients.h5", finished),
        float(summary.get("seconds", {}).get("total", seconds)),
        finished,
        summary.get("predicted_contraction") or {},
        not finished and _has_diverged(path / "summary.json"),
    )


def _run_directories(place: Path) -> Iterator[Path]:
    if (place / "config.yaml").is_file():
        yield place
        return
    for child in place.iterdir():
        if child.is_dir() and not child.is_symlink():
            yield from _run_directories(child)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _damaged(path, error) from None
    names = [isinstance(config, dict) and config.get(section) for section in SECTIONS]
    if not all(isinstance(name, dict) and isinstance(name.get("name"), str) for name in names):
        raise InputError(f"'{path}' is not a run configuration: it must name {', '.join(SECTIONS)}")
    return dict(config)


def _read_metrics(path: Path, finished: bool) -> dict[str, np.ndarray]:
    if not path.exists() and not finished:
        return {name: np.zeros(0) for name in (*COLUMNS, *MEASURES)}
    try:
        text = path.read_text(encoding="utf-8")
        if not finished:  # an unfinished run may be in the middle of a line
            text = text[: text.rfind("\n") + 1]
        elif text and not text.endswith("\n"):
            raise ValueError("its last line is cut")
        rows = list(csv.DictReader(text.splitlines(), strict=True))
        missing = sorted(set(COLUMNS) - set(rows[0])) if rows else []
        if missing or (finished and not rows):
            raise InputError(
                f"'{path}' is damaged: it has no " + (f"column {missing[0]}" if missing else "rows")
            )
        return {
            name: np.array([float(row.get(name) or "nan") for row in rows])
            for name in (*COLUMNS, *MEASURES)
        }
    except (OSError, UnicodeDecodeError, csv.Error, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _damaged(path, error) from None


def read_columns(run: Run, names: Sequence[str]) -> np.ndarray:
    """Return some columns of metrics.csv.

    Parameters
    ----------
    run : Run
        The run.
    names : Sequence[str]
        The columns, of all that the file has.

    Returns
    -------
    ndarray of float64, shape (evaluated rounds, names)
        The values, NaN where a field is empty.

    Raises
    ------
    InputError
        For a column that does not exist, or a file that cannot be read.
    """
    path = run.path / "metrics.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        values = [[float(row[name] or "nan") for name in names] for row in rows]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"'{path}' cannot be read: {error}") from None
    except KeyError as error:
        there = [name for name in rows[0] if name != "state_digest"]
        raise InputError(
            f"'{run.path}' has no column {error}; {closest(str(error.args[0]), there)}"
        ) from None
    return np.array(values).reshape(-1, len(names))


def _read_summary(path: Path, finished: bool) -> dict[str, Any]:
    if not finished:
        return {}
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(summary["seconds"]["total"], (int, float)):
            raise TypeError("seconds.total is not a number")
        rate = summary.get("predicted_contraction")
        if rate and not all(isinstance(rate[key], (int, float)) for key in RATE):
            raise TypeError(f"{', '.join(RATE)} of predicted_contraction must be numbers")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(path, error) from None
    return dict(summary)


def _has_diverged(path: Path) -> bool:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["status"] == "diverged"
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(path, error) from None


def _read_client_accuracies(path: Path, finished: bool) -> np.ndarray | None:
    if not finished:  # it belongs to an evaluation that may not be the last row of metrics.csv
        return None
    try:
        with h5py.File(path) as file:
            accuracies = np.asarray(file["test_accuracy"], float)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None
    return accuracies if np.isfinite(accuracies).all() else None


def _damaged(path: Path, error: Exception) -> InputError:
    if isinstance(error, KeyError):
        return InputError(f"'{path}' is damaged: it has no {error.args[0]}")
    if isinstance(error, FileNotFoundError):
        return InputError(f"'{path}' is missing")
    return InputError(f"'{path}' is damaged: {' '.join(str(error).split())}")
