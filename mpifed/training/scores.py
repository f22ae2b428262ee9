"""The scores of ``evaluation.metrics``: of each client, and of all clients' samples together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mpifed.components.registry import find, with_options, without_module
from mpifed.data.base import Description
from mpifed.errors import InputError, RunError, note, one_line
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator
from topologies.errors import excerpt
from topologies.schema import check_options

FIELD = "evaluation.metrics"

# What a score may read, by the task of the data.
READS = {
    "classification": ("counts", "y_true", "y_pred", "y_score"),
    "regression": ("y_true", "y_pred"),
}

# Samples whose numbers are gathered at once.
PIECE = 1 << 20


@dataclass(frozen=True)
class Metric:
    """A score: its name, which ends its columns, what it reads, and whether it is one number."""

    name: str
    function: Callable[..., Any]
    reads: tuple[str, ...]
    is_number: bool

    def __call__(self, **values: np.ndarray) -> Any:
        """Return the score as a float, or as an array where it is not one number."""
        try:
            score = self.function(**{name: values[name] for name in self.reads})
        except BaseException as error:
            note(error, f"{FIELD} '{self.name}'")
            raise
        if not self.is_number:
            return np.asarray(score)
        if not isinstance(score, (int, float, np.number)):
            raise RunError(
                f"{FIELD} '{self.name}' returned {one_line(repr(score), 60)}; it must return a "
                "number"
            )
        return float(score)


@dataclass(frozen=True)
class Samples:
    """What is predicted for the samples of some clients, client after client."""

    ids: np.ndarray
    counts: np.ndarray
    values: dict[str, np.ndarray]


def metrics_of(names: Sequence[str], description: Description) -> list[Metric]:
    """Return the scores with these names for some data, which memory must have room for."""
    metrics = [_metric(name, description) for name in names]
    classes, n = description.n_classes, description.n_clients
    if not all(metric.is_number for metric in metrics):
        check_memory(8.0 * n * classes**2, f"{FIELD} has a table of {classes} classes a client: it")
    if any(metric.reads != ("counts",) for metric in metrics):
        samples = float(np.maximum(description.n_test, description.n_val).sum(dtype=np.float64))
        check_memory(
            8 * samples * (description.n_outputs + 2),
            f"{FIELD} brings the predictions for {samples:.0f} samples to one rank, which",
        )
    return metrics


def _metric(text: str, description: Description) -> Metric:
    name, values = with_options(text, FIELD)
    function = find("metric", name, FIELD)
    if values:
        function = partial(function, **check_options(function, values, FIELD))
    parameters = inspect.signature(function).parameters.values()
    reads = tuple(
        each.name for each in parameters
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    )  # fmt: skip
    names = READS["classification"]
    if not reads or not {*reads} <= {*names}:
        raise InputError(
            f"{FIELD} has {excerpt(text)}, whose parameters are {', '.join(reads) or 'none'}; a "
            f"score reads some of: {', '.join(names)}"
        )
    if not {*reads} <= {*READS.get(description.task, ())}:
        tasks = [task for task, readable in READS.items() if {*reads} <= {*readable}]
        raise InputError(
            f"{FIELD} has {excerpt(text)}, but the task of '{description.source}' is "
            f"{description.task}; such a score is for: {', '.join(tasks)}"
        )
    returned = str(inspect.signature(function).return_annotation)
    is_number = reads != ("counts",) or "ndarray" not in returned
    return Metric(without_module(name), function, reads, is_number)


def of_samples(metrics: Sequence[Metric]) -> list[str]:
    """Return what the scores read of each sample."""
    reads = {name for metric in metrics for name in metric.reads}
    names = [("y_true", "y_pred") if name == "counts" else (name,) for name in sorted(reads)]
    return list(dict.fromkeys(name for some in names for name in some))


def scores_by_client(
    metrics: Sequence[Metric], samples: Samples, n_classes: int
) -> dict[str, np.ndarray]:
    """Return the scores of each client by name, (clients, ...); NaN without a sample."""
    ends = np.cumsum(samples.counts)
    columns: dict[str, list[Any]] = {metric.name: [] for metric in metrics}
    for client, n, end in zip(samples.ids, samples.counts, ends, strict=True):
        part = {name: values[end - n : end] for name, values in samples.values.items()}
        try:
            scores = _scored(metrics, part, n_classes) if n else {}
        except BaseException as error:
            note(error, f"client {client}")
            raise
        for metric in metrics:
            nothing = np.nan if metric.is_number else _counts({}, n_classes)
            columns[metric.name].append(scores.get(metric.name, nothing))
    return {name: np.array(values) for name, values in columns.items()}


def scores_of_all(
    communicator: Communicator,
    metrics: Sequence[Metric],
    parts: Sequence[Samples],
    n_classes: int,
) -> dict[str, float | None]:
    """Return the scores of all ranks' samples together, by name, on rank 0; collective.

    Samples are in the order of the clients' numbers, so that no bit depends on ranks.
    """
    scores: dict[str, float | None] = {}
    numbers = [metric for metric in metrics if metric.is_number]
    of_counts = [metric for metric in numbers if metric.reads == ("counts",)]
    if of_counts:
        counts = np.zeros((n_classes, n_classes), np.int64)
        for part in parts:
            counts += _counts(part.values, n_classes)
        total = communicator.sum(counts.reshape(-1)).reshape(counts.shape)
        scores |= {metric.name: metric(counts=total) for metric in of_counts}
    others = [metric for metric in numbers if metric not in of_counts]
    if others:
        gathered = in_client_order(communicator, parts, of_samples(others))
        if gathered is not None:
            scores |= _scored(others, gathered, n_classes) if gathered else {}
    ordered = {metric.name: scores.get(metric.name) for metric in numbers}
    return {
        name: None if score is None or np.isnan(score) else score for name, score in ordered.items()
    }


def in_client_order(
    communicator: Communicator, parts: Sequence[Samples], names: Sequence[str]
) -> dict[str, np.ndarray] | None:
    """Return values of all ranks' samples in the order of clients, on rank 0; collective."""
    ids = np.concatenate([np.zeros(0, np.int64), *(part.ids for part in parts)])
    counts = np.concatenate([np.zeros(0, np.int64), *(part.counts for part in parts)])
    n, size = int(counts.sum()), communicator.size
    most, at_once = int(communicator.max(np.array([float(n)]))[0]), max(1, PIECE // size)
    of_ranks = communicator.gather_object((ids, counts))
    to = None if of_ranks is None else _positions(of_ranks)
    every: dict[str, np.ndarray] = {}
    for name in names:
        filled = [part.values[name] for part in parts if name in part.values]
        for first in range(0, most, at_once):
            piece = _rows(filled, first, first + at_once)
            pieces = communicator.gather_object(piece)
            if pieces is None or to is None:
                continue
            for rank, rows in enumerate(pieces):
                if rows is None:
                    continue
                if name not in every:
                    total = sum(map(len, to))
                    every[name] = np.empty((total, *rows.shape[1:]), rows.dtype)
                every[name][to[rank][first : first + len(rows)]] = rows
    return None if to is None else every


def _rows(arrays: Sequence[np.ndarray], first: int, last: int) -> np.ndarray | None:
    """Return rows of arrays that follow each other; None without any."""
    parts, begin = [], 0
    for array in arrays:
        part = array[max(0, first - begin) : max(0, last - begin)]
        parts += [part] if len(part) else []
        begin += len(array)
    return np.concatenate(parts) if parts else None


def _positions(of_ranks: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Return where each rank's samples are in the order of clients."""
    ids, counts = (np.concatenate(each) for each in zip(*of_ranks, strict=True))
    order = np.argsort(ids, kind="stable")
    starts = np.empty(len(ids), np.int64)
    starts[order] = np.cumsum(counts[order]) - counts[order]
    before = np.cumsum(counts) - counts  # of a client's samples, rank by rank
    positions = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    ends = np.cumsum([int(of_rank.sum()) for _, of_rank in of_ranks])
    return np.split(positions, ends[:-1])


def _scored(
    metrics: Sequence[Metric], values: dict[str, np.ndarray], n_classes: int
) -> dict[str, Any]:
    counts = {}
    if any("counts" in metric.reads for metric in metrics):
        counts["counts"] = _counts(values, n_classes)
    return {metric.name: metric(**values, **counts) for metric in metrics}


def _counts(values: dict[str, np.ndarray], n_classes: int) -> np.ndarray:
    """Return how often each label was predicted as each, int64 (classes, classes)."""
    if "y_true" not in values:
        return np.zeros((n_classes, n_classes), np.int64)
    cells = values["y_true"] * n_classes + values["y_pred"]
    return np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)
