"""Users' own samples: inputs, targets and clients as arrays, checked and described."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from mpifed.data.base import Task
from mpifed.data.dealt import Source
from mpifed.data.grouped import GroupedDataset, GroupedName
from mpifed.data.pooled import PIECE, Pool
from mpifed.errors import InputError, one_line
from mpifed.mpi.communicator import Communicator

OwnTask = Literal["auto", "classification", "sequence", "multi_label", "regression", "unlabelled"]

MOST_LABELS = 1 << 20
"""Labels are counted from 0 on, so that a large one is more likely a mistake."""


@dataclass(frozen=True)
class Columns:
    """Samples, one a row.

    Attributes
    ----------
    x : ndarray
        Inputs, numbers (samples, ...).
    y : ndarray or None
        Targets: (samples,) or (samples, targets).
    client : ndarray or None
        Whose each sample is, whole numbers or texts (samples,).
    is_test : ndarray or None
        Whether each sample is for testing, true or false or 0 or 1 (samples,).
    coarse : ndarray or None
        Coarse labels, (samples,).
    class_names : tuple of str
        Names of the labels.
    """

    x: np.ndarray
    y: np.ndarray | None = None
    client: np.ndarray | None = None
    is_test: np.ndarray | None = None
    coarse: np.ndarray | None = None
    class_names: tuple[str, ...] = ()


class OwnDataset(GroupedDataset):
    """Samples of a user's own, as inputs, targets and clients.

    Parameters
    ----------
    task : {'auto', 'classification', 'sequence', 'multi_label', 'regression', 'unlabelled'}
        What is to be learnt. ``sequence`` is a label at each position of x. ``auto`` is unlabelled
        without targets, classification for whole numbers and texts, multi_label for several columns
        of 0 and 1, regression for the rest.
    divisor : int
        A sample is x over this number, as 255 for pictures of bytes.
    partition : str, optional
        How samples are dealt to the clients. None is natural where each sample has a client, else
        iid.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        read: Callable[[], tuple[str, str, Columns]],
        *,
        task: OwnTask = "auto",
        divisor: Annotated[int, Ge(1), Le(1 << 31)] = 1,
        partition: GroupedName | None = None,
        **options: Any,
    ) -> None:
        def find() -> Source:
            said, name, columns = read()
            if columns.client is None and partition == "natural":
                raise InputError(
                    "data.partition is 'natural', but no client of each sample is given "
                    "(data.client)"
                )
            return source_of(said, name, columns, task, divisor)

        options["partition"] = partition or "iid"
        super().__init__(n_clients, run_seed, communicator, find, **options)

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Fill in the partition, by whether there is a column of clients."""
        own = "natural" if options.get("client") else "iid"
        return {**options, "partition": options["partition"] or own}


def source_of(said: str, name: str, columns: Columns, task: OwnTask, divisor: int) -> Source:
    """Return checked columns as a source.

    Parameters
    ----------
    said : str
        The beginning of messages, as ``data.path is 'file.npz', where``.
    name : str
        Name of the data set.
    columns : Columns
        The samples.
    task : str
        What is to be learnt.
    divisor : int
        A sample is x over this number.

    Raises
    ------
    InputError
        If shapes or types do not fit, or a value is not finite.
    """
    x = _inputs(said, columns.x)
    for column, what in (
        (columns.y, "targets"),
        (columns.client, "clients"),
        (columns.is_test, "marks of test samples"),
        (columns.coarse, "coarse labels"),
    ):
        if column is not None and (column.ndim < 1 or len(column) != len(x)):
            raise InputError(f"{said} x has {len(x)} samples, but {what} {column.shape}")
    found: Task = _guessed(columns.y) if task == "auto" else task
    labels, n_classes, names = _targets(said, columns, found, len(x))
    pool = Pool(name, labels, n_classes, x.shape[1:], x.dtype.name, divisor, found, names)
    owner = coarse = is_test = None
    if columns.client is not None:
        owner = _numbered(said, columns.client, "client")[1]
    if columns.coarse is not None:
        coarse = _numbered(said, columns.coarse, "coarse label")[1]
    if columns.is_test is not None:
        is_test = _marks(said, columns.is_test)
    return Source(pool, lambda: _pieces(x), owner, coarse, is_test)


def _pieces(x: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(x), PIECE):
        yield np.ascontiguousarray(x[start : start + PIECE])


def _inputs(said: str, x: np.ndarray) -> np.ndarray:
    """x in a type that is stored: bytes, float32 or float64."""
    if x.dtype.kind not in "biuf":
        raise InputError(f"{said} x holds {one_line(str(x.dtype), 40)}, not numbers")
    if x.ndim < 2 or x.size == 0:
        raise InputError(
            f"{said} x has the shape {x.shape}; it must be (samples, ...), with a sample at least"
        )
    if x.dtype.kind == "f":
        x = x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64, copy=False)
        finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
        if not finite.all():
            raise InputError(f"{said} x of sample {finite.argmin()} has a value that is not finite")
        return x
    return x if x.dtype == np.uint8 else x.astype(np.float64)


def _guessed(y: np.ndarray | None) -> Task:
    if y is None:
        return "unlabelled"
    if y.ndim == 2 and y.shape[1] > 1:
        whole = y.dtype.kind in "biu" and bool(np.isin(y, (0, 1)).all())
        return "multi_label" if whole else "regression"
    return "regression" if y.dtype.kind == "f" else "classification"


def _targets(
    said: str, columns: Columns, task: Task, count: int
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Targets as ``Split.y`` holds them, ``n_classes``, and names of the labels."""
    y = columns.y
    if task == "unlabelled":
        return np.zeros((count, 0)), 0, ()
    if y is None:
        raise InputError(f"{said} there are no targets, but data.task is '{task}'")
    if task == "classification":
        return _labels(said, y, columns.class_names)
    if task == "sequence":
        return _labels_at_positions(said, columns)
    if y.dtype.kind not in "biuf":
        raise InputError(f"{said} targets hold {one_line(str(y.dtype), 40)}, not numbers ({task})")
    y = y.reshape(count, -1) if y.ndim == 1 else y
    if y.ndim != 2 or y.shape[1] < 1:
        raise InputError(f"{said} targets have the shape {y.shape}, not (samples, targets)")
    if task == "multi_label":
        if not np.isin(y, (0, 1)).all():
            raise InputError(f"{said} a target is neither 0 nor 1, but data.task is 'multi_label'")
        return y.astype(np.uint8), y.shape[1], columns.class_names
    if not np.isfinite(y).all():
        raise InputError(f"{said} a target is not finite")
    return y.astype(np.float64), y.shape[1], ()


def _labels(
    said: str, y: np.ndarray, names: tuple[str, ...]
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Whole numbers from 0 on stay; other numbers and texts become the place in their order."""
    y = y.reshape(-1) if y.shape == (len(y), 1) else y
    if y.ndim != 1:
        raise InputError(f"{said} labels have the shape {y.shape}, not (samples,)")
    if y.dtype.kind == "f" and np.isfinite(y).all() and np.all(y == np.floor(y)):
        y = y.astype(np.int64) if np.abs(y).max() < 2.0**53 else y
    if y.dtype.kind in "biu" and y.min() >= 0:
        n_classes = max(int(y.max()) + 1, len(names))
        if n_classes > MOST_LABELS:
            raise InputError(
                f"{said} a label is {n_classes - 1}; labels are numbers from 0 on, at most "
                f"{MOST_LABELS - 1}"
            )
        return y.astype(np.int64), max(n_classes, 2), names if len(names) == n_classes else ()
    values, places = _numbered(said, y, "label")
    return places, max(len(values), 2), tuple(map(str, values.tolist()))


def _labels_at_positions(said: str, columns: Columns) -> tuple[np.ndarray, int, tuple[str, ...]]:
    x, y = columns.x, columns.y
    assert y is not None
    if y.dtype.kind not in "biu" or y.shape != x.shape[:2] or y.min() < 0 or y.max() > MOST_LABELS:
        raise InputError(
            f"{said} targets are {one_line(str(y.dtype), 40)} of shape {y.shape}; data.task "
            f"'sequence' asks for whole numbers from 0 on of shape {x.shape[:2]}"
        )
    n_classes = max(int(y.max()) + 1, len(columns.class_names), 2)
    names = columns.class_names if len(columns.class_names) == n_classes else ()
    return y.astype(np.int64), n_classes, names


def _numbered(said: str, values: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values in their order, and the place of each among them, int64."""
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values.tolist()):
        values = values.astype(str)
    is_whole = values.dtype.kind in "biuU" or (
        values.dtype.kind == "f" and bool(np.all(values == np.floor(values)))
    )
    if values.ndim != 1 or not is_whole:
        raise InputError(
            f"{said} each {what} must be a whole number or a text, in one row; they are "
            f"{one_line(str(values.dtype), 40)} of shape {values.shape}"
        )
    distinct, places = np.unique(values, return_inverse=True)
    return distinct, places.reshape(-1).astype(np.int64)


def _marks(said: str, values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise InputError(f"{said} marks of test samples must be 0 or 1, one for each sample")
    return values.astype(bool)
