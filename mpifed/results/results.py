"""Results in a run directory: metrics.csv, clients.h5 and summary.json, checked."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from mpifed.errors import InputError
from mpifed.io.text import damaged, is_count, is_number, read_json, read_text

ROUND = re.compile(r"[0-9]{1,18}")
# The only column of metrics.csv that is not numeric.
DIGEST = "state_digest"

RATE = ("p", "tau", "per_round")

# How a run ends that is complete: after its last round, or where a condition of the user held.
FINISHED, STOPPED_AT = "finished", "stopped_at"
COMPLETE = (FINISHED, STOPPED_AT)

# Words in the names of columns whose best value is the largest; others have the least.
LARGER_IS_BETTER = ("accuracy", "recall", "cosine", "f1", "auc")


def larger_is_better(column: str) -> bool:
    """Return whether the best value of ``column`` is the largest one."""
    return any(word in column for word in LARGER_IS_BETTER) and not column.endswith("_std")


@dataclass(frozen=True)
class Metrics:
    """The content of metrics.csv."""

    columns: list[str]
    rows: list[list[str]]

    def texts(self, name: str) -> list[str]:
        """Return the column called ``name`` as text."""
        index = self.columns.index(name)
        return [row[index] for row in self.rows]

    def numbers(self, name: str) -> np.ndarray:
        """Return a column as float64 (rows,), NaN where a field is empty."""
        return np.array([_number(text) for text in self.texts(name)], dtype=np.float64)


def read_metrics(path: Path, growing: bool = False) -> Metrics:
    """Read a metrics.csv."""
    return metrics_in(metrics_text(path, growing))


def metrics_text(path: Path, growing: bool = False) -> str:
    """Return the text of a metrics.csv, checked."""
    text = read_text(path)
    if growing:
        text = text[: text.rfind("\n") + 1]
    elif not text.endswith("\n"):
        raise damaged(path, "its last line is cut")
    try:
        if text or not growing:
            check_metrics(text)
    except ValueError as error:
        raise damaged(path, str(error)) from None
    return text


def metrics_in(text: str) -> Metrics:
    """Return the content of the text of a metrics.csv."""
    columns, *rows = list(_lines(text)) or [[]]
    return Metrics(columns, rows)


def line_of(row: Sequence[str]) -> str:
    """Return a line of metrics.csv."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(row)
    return buffer.getvalue()


def _lines(text: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), strict=True)


def check_metrics(text: str) -> None:
    """Check the text of a metrics.csv; its rows are not held in memory."""
    lines = _lines(text)
    try:
        _check_rows(next(lines, []), lines)
    except csv.Error as error:
        raise ValueError(str(error)) from None


def _check_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    if "round" not in columns or len(set(columns)) != len(columns) or not all(columns):
        raise ValueError("it has no column round, or a column has no name of its own")
    last = -1
    for number, row in enumerate(rows, 1):
        if len(row) != len(columns):
            raise ValueError(f"row {number} has {len(row)} fields for {len(columns)} columns")
        named = dict(zip(columns, row, strict=True))
        if not ROUND.fullmatch(named["round"]) or int(named["round"]) <= last:
            raise ValueError(f"rounds are not whole numbers that rise in row {number}")
        last = int(named["round"])
        for name, value in named.items():
            if name != DIGEST:
                _number(value)


def _number(text: str) -> float:
    if not text.isascii() or "_" in text:
        raise ValueError(f"{text!r} is not a number")
    return float(text) if text else math.nan


def read_summary(path: Path) -> dict[str, Any]:
    """Read a summary.json."""
    summary = read_json(path)
    if not isinstance(summary, dict) or not isinstance(summary.get("status"), str):
        raise damaged(path, "it has no status")
    if not is_count(summary.get("rounds")):
        raise damaged(path, "rounds is not a whole number, at least 0")
    seconds, rate = summary.get("seconds"), summary.get("predicted_contraction")
    if summary["status"] in COMPLETE or seconds is not None:
        total = seconds.get("total") if _are_numbers(seconds) else None
        if total is None or not 0 <= total < math.inf:
            raise damaged(path, "seconds are not numbers with a total, at least 0")
    if rate is not None and not (_are_numbers(rate) and {*RATE} <= rate.keys()):
        raise damaged(path, f"{', '.join(RATE)} of predicted_contraction must be numbers")
    if not _are_numbers(summary.get("graph", {})):
        raise damaged(path, "graph has values that are no numbers")
    for name in ("test_accuracy", "test_accuracy_p10", "test_loss"):
        if summary.get(name) is not None and not is_number(summary[name]):
            raise damaged(path, f"{name} is not a number")
    return summary


def _are_numbers(table: Any) -> TypeGuard[dict[str, float]]:
    return isinstance(table, dict) and all(map(is_number, table.values()))


@dataclass(frozen=True)
class ClientsFile:
    """The content of clients.h5."""

    results: dict[str, np.ndarray]
    learnt: dict[str, np.ndarray]
    class_names: tuple[str, ...] = ()


def read_clients(path: Path) -> ClientsFile:
    """Read a clients.h5."""
    from mpifed.io import hdf5  # imports h5py, which the other files do not need

    try:
        with hdf5.opened(path) as file:
            group = file.get("learnt", {})
            learnt = {name: hdf5.all_values(group[name]) for name in group}
            results = {
                name: hdf5.all_values(data) for name, data in file.items() if name != "learnt"
            }
            classes = np.char.decode(np.array(file.attrs.get("class_names", []), "S"), "utf-8")
        _check_results(results)
    except FileNotFoundError:
        raise InputError(f"'{path}' is missing") from None
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise damaged(path, str(getattr(error, "strerror", None) or error)) from None
    return ClientsFile(results, learnt, tuple(classes.tolist()))


def _check_results(results: dict[str, np.ndarray]) -> None:
    ids = results.get("client_id", np.zeros(1))
    rise = ids.ndim == 1 and (ids[:1] >= 0).all() and (ids[1:] > ids[:-1]).all()
    if ids.dtype.kind not in "iu" or not rise:
        raise ValueError("client_id has no rising numbers of clients, from 0 on")
    for name, values in results.items():
        kinds = "U" if name == "client_name" else "biuf"
        if values.dtype.kind not in kinds or values.shape[:1] != ids.shape:
            raise ValueError(
                f"{name} is {values.dtype} of shape {values.shape}, not numbers of "
                f"{len(ids)} clients"
            )


@dataclass(frozen=True)
class Result:
    """A run. Its files are read on first access."""

    directory: Path
    status: str

    def __fspath__(self) -> str:
        """Return the directory, so that ``mpifed.load`` takes a result."""
        return str(self.directory)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        return read_summary(self.directory / "summary.json")

    @cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv: float64, NaN where empty; ``state_digest`` as text."""
        path = self.directory / "metrics.csv"
        table = read_metrics(path, growing=self.status == "unfinished")
        return {
            name: np.array(table.texts(name)) if name == DIGEST else table.numbers(name)
            for name in table.columns
        }

    @cached_property
    def clients(self) -> dict[str, np.ndarray]:
        """The datasets of clients.h5 by name, each (clients, ...)."""
        return self._clients_file.results

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the labels; empty where the data have none."""
        return self._clients_file.class_names

    @cached_property
    def learnt(self) -> dict[str, np.ndarray]:
        """Results that belong to no client, by name: a dictionary, means, potentials."""
        return self._clients_file.learnt

    def frame(self) -> Any:
        """Return ``metrics`` as a pandas DataFrame with a row for each recorded round."""
        import pandas

        columns = {**self.metrics, "round": self.metrics["round"].astype(np.int64)}
        return pandas.DataFrame(columns).set_index("round")

    @cached_property
    def _clients_file(self) -> ClientsFile:
        return read_clients(self.directory / "clients.h5")


def read(run: str | os.PathLike[str]) -> Result:
    """Return the results of a run from its directory, also while it goes on."""
    directory = Path(os.fspath(run))
    if not (directory / "config.yaml").is_file():
        raise InputError(f"run is '{directory}', which holds no run: there is no config.yaml in it")
    summary = directory / "summary.json"
    return Result(directory, read_summary(summary)["status"] if summary.exists() else "unfinished")
