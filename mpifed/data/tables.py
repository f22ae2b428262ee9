"""Users' own samples: inputs, targets and clients as arrays, checked and described."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from mpifed.data.archives import PARTS
from mpifed.data.base import Description, NewSamples, Task, bad_row, check_texts
from mpifed.data.partitioned import Pool, Source
from mpifed.data.partitions import share_of
from mpifed.data.preprocessing import NUMBERS, Preprocessing
from mpifed.errors import InputError, closest, one_line

# Whole numbers are guessed to be labels where so many at most are different, and stay what they
# are where all are below the other number.
MOST_GUESSED, MOST_LABELS = 1000, 1 << 20

# Clients to which samples without a source are dealt under ``clients=data``.
DEALT = 10

# A column that is wider, zero included, makes steps of the usual learning rates too long.
WIDE = 100.0

# Above it not all whole numbers are numbers of double precision.
MOST_EXACT = 2.0**53

Divisor = Annotated[int, Ge(1), Le(1 << 31)]
OwnTask = Literal["auto", "classification", "sequence", "multi_label", "regression", "unlabelled"]


# The task of targets, their values as ``Split.y`` holds them, how many classes, and their names.
Targets = tuple[Task, np.ndarray, int, tuple[str, ...]]


@dataclass(frozen=True)
class Columns:
    """Samples, one a row.

    ``preprocessing`` is what made x of a table, whose numbers come first, the other columns being 0
    or 1. Where it fills in means, NaN in x is a value that is missing. ``label`` is the name of the
    column of y.
    """

    x: np.ndarray
    y: np.ndarray | None = None
    client: np.ndarray | None = None
    is_test: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    divisor: int | None = None
    preprocessing: Preprocessing = Preprocessing()
    remarks: tuple[str, ...] = ()
    label: str | None = None

    @property
    def has_gaps(self) -> bool:
        """Whether values may be missing."""
        return self.preprocessing.missing == "mean"


def with_partition(options: dict[str, Any], n_training: int) -> dict[str, Any]:
    """Fill in partition and split, by whether samples have clients and marks for testing, as those
    in a directory of clients' files do.
    """
    directory = Path(os.path.expanduser(str(options.get("path") or os.devnull)))
    by_client = bool(options.get("client")) or directory.is_dir()
    marked = bool(options.get("test")) or all((directory / part).is_dir() for part in PARTS)
    automatic = {
        "partition": "natural" if by_client else "iid",
        "split": "published" if marked else "60_20_20",
    }
    return {**options, **{name: options.get(name) or automatic[name] for name in automatic}}


class OwnSamples:
    """What data sets of a user's own samples have in common, beside ``PooledDataset``.

    Parameters
    ----------
    partition : str, optional
        How samples are dealt to the clients. None is natural where each sample has a client, else
        iid.
    split : {'60_20_20', 'in_order', 'published'}, optional
        How a client's samples become training, validation and test samples: 60/20/20 at random, the
        same in the order of the source, or tested on those that are marked. None is published where
        samples are marked for tests, else 60_20_20.
    choose : {'random', 'first', 'largest'}
        Which sources are taken in the partition ``natural`` where there are more than clients.
    task : {'auto', 'classification', 'sequence', 'multi_label', 'regression', 'unlabelled'}
        What is to be learnt. ``sequence`` is a label at each position of x. ``auto`` is unlabelled
        without targets, classification for texts and for whole numbers of which at most 1000 are
        different, multi_label for several columns of 0 and 1, regression for the rest; columns with
        one 1 in each row are refused.
    divisor : int, optional
        A sample is x over this number, as 255 for pictures of bytes. None is 255 for pictures in
        parquet files, else 1.
    standardise : bool
        Whether inputs that are numbers get mean 0 and standard deviation 1 over the training
        samples of all clients together; those of tables (``csv``) do unless it is false.
    """

    description: Description
    _reading: Mapping[str, Any]

    @staticmethod
    @abstractmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, Columns]:
        """Return the beginning of messages about samples, the name of the data, and the samples."""

    def source(
        self, reading: Mapping[str, Any], task: OwnTask, divisor: int | None, standardise: bool
    ) -> Callable[[], Source]:
        """Return what reads the samples as a source, for ``PooledDataset``."""
        self._reading = reading

        def read_source() -> Source:
            prefix, name, columns = self.read(reading)
            try:
                return source_of(name, columns, task, divisor, standardise)
            except InputError as error:
                raise InputError(f"{prefix} {error}") from None

        return read_source

    @property
    def label(self) -> str | None:
        """Name of the column of targets in tables."""
        label: str | None = self._reading.get("label")
        return label

    def new_samples(self, samples: Any, label: str | None = None) -> NewSamples:
        """Read a file as that of the data, without its clients; see ``Dataset``."""
        preprocessing = self.description.preprocessing or Preprocessing()
        shape = self.description.input_shape
        if preprocessing.columns:
            return preprocessing.with_targets(samples, label or self.label, shape)
        file = next((name for name in ("path", "raw") if name in self._reading), None)
        if file is None or not isinstance(samples, Path):
            raise InputError("the data are arrays; allowed with them: holdout, or arrays (x, y)")
        of_nobody = {file: str(samples), "client": None, "test": None}
        _, _, columns = self.read({**self._reading, **of_nobody})
        return preprocessing.encode(columns.x, shape), columns.y

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Fill in partition and split, by whether samples have clients and marks for testing."""
        return with_partition(options, n_training)

    @classmethod
    def count_clients(cls, options: Mapping[str, Any], run_seed: int) -> int:
        """Return how many sources have enough samples; ``DEALT`` where they are no clients."""
        if options["partition"] != "natural":
            return DEALT
        _, _, columns = cls.read(options)
        if columns.client is None:
            return DEALT
        owner = numbered(columns.client, "client")[1]
        seed = run_seed if options["seed"] is None else options["seed"]
        used = owner[share_of(len(owner), options["fraction"], seed)]
        return max(1, int((np.bincount(used) >= options["min_samples"]).sum()))


def check_columns(
    path: Path, columns: Iterable[str], named: Iterable[tuple[str, str | None]]
) -> None:
    """Raise ``InputError`` with the options that name columns which a file does not have."""
    wrong = [
        f"data.{option} is '{one_line(name, 60)}', but there is no such column; "
        f"{closest(name, columns)}"
        for option, name in named
        if name is not None and name not in columns
    ]
    if wrong:
        raise InputError(f"'{path}' cannot be read: {'; '.join(wrong)}")


def source_of(
    name: str,
    columns: Columns,
    task: OwnTask,
    divisor: int | None = None,
    standardise: bool = False,
) -> Source:
    """Return checked columns as a source."""
    divisor, fit = divisor or columns.divisor, None
    is_text = columns.preprocessing.tokeniser is not None
    x = columns.x if is_text else _inputs(columns.x, columns.has_gaps)
    preprocessing = replace(columns.preprocessing, divisor=divisor or 1)
    scaled = () if is_text else _about_scale(x, columns, divisor, standardise)
    if standardise or columns.has_gaps:
        x, divisor = x.astype(np.float64) / (divisor or 1), 1
        fit = partial(fitted, x, preprocessing, standardise)
    for column, what in (
        (columns.y, "targets"),
        (columns.client, "clients"),
        (columns.is_test, "marks of test samples"),
    ):
        if column is not None and column.shape[:1] != x.shape[:1]:
            raise InputError(f"x has {len(x)} samples, but {what} have the shape {column.shape}")
    (task_of_targets, values, n_classes, class_names), remarks = read_targets(columns, task)
    owner, names = None, np.zeros(0)
    if columns.client is not None:
        names, owner = numbered(columns.client, "client")
    is_test = columns.is_test
    if is_test is not None:
        if is_test.ndim != 1 or not np.isin(is_test, (0, 1)).all():
            raise InputError("marks of test samples must be 0 or 1, one for each sample")
        is_test = is_test.astype(bool)
    pool = Pool(
        *(name, values, n_classes, x.shape[1:], x.dtype.name, divisor or 1),
        *(task_of_targets, class_names),
        preprocessing=preprocessing,
        remarks=(*columns.remarks, *scaled, *remarks),
    )
    client_names = tuple(map(str, names.tolist()))
    check_texts(class_names, "the name of a class")
    check_texts(client_names, "the name of a client")
    return Source(*(pool, lambda: [x], owner), is_test=is_test, names=client_names, fit=fit)


def fitted(
    x: np.ndarray, preprocessing: Preprocessing, standardise: bool, train: np.ndarray
) -> tuple[np.ndarray, Preprocessing]:
    """Return x (samples, ...) with numbers that are missing (NaN) replaced by their mean over the
    samples ``train``, and standardised by these, others as they are; and what does so again.
    """
    n = len(preprocessing.numbers) if preprocessing.columns else x.shape[1]
    numbers = x[:, :n]
    if preprocessing.missing == "mean":
        empty = ~np.isfinite(numbers[train]).any(axis=0)
        if empty.any():
            name = one_line(preprocessing.numbers[empty.argmax()], 60)
            raise InputError(f"no training sample has a value in the column '{name}'")
        filling = np.nanmean(numbers[train], axis=0)
        preprocessing = replace(preprocessing, filling=filling)
    if standardise:
        filled = preprocessing.scaled(numbers)[train]
        deviation = filled.std(axis=0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        preprocessing = replace(preprocessing, mean=filled.mean(axis=0), deviation=deviation)
    return np.concatenate([preprocessing.scaled(numbers), x[:, n:]], axis=1), preprocessing


def _about_scale(
    x: np.ndarray, columns: Columns, divisor: int | None, standardise: bool
) -> tuple[str, ...]:
    """Say whether numbers are standardised, and warn of those that are wide and are not."""
    if standardise:
        return ("inputs that are numbers are standardised (data.standardise)",)
    line = "inputs are not standardised (data.standardise)"
    if x.dtype == np.uint8:
        if divisor is not None or x.max() <= 1:
            return (line,)
        return (
            line,
            f"x holds bytes up to {x.max()}, which models see as they are; data.divisor=255 makes "
            "numbers in [0, 1] of pictures, data.divisor=1 says that this is meant",
        )
    rows = x.reshape(len(x), -1)
    with np.errstate(over="ignore"):
        width = np.fmax(np.fmax.reduce(rows), 0) - np.fmin(np.fmin.reduce(rows), 0)
    if divisor is not None or width.max() <= WIDE:
        return (line,)
    widest = int(width.argmax())
    names, others = columns.preprocessing.numbers, int((width > WIDE).sum()) - 1
    name = f"'{one_line(names[widest], 60)}'" if names else f"{widest} of x"
    low, high = np.fmin.reduce(rows[:, widest]), np.fmax.reduce(rows[:, widest])
    return (
        f"warning: {line}, and column {name} has values from {low:g} to {high:g}"
        f"{f', {others} more are as wide' if others else ''}: training may diverge; "
        "data.standardise=true scales them, data.divisor=1 says that this is meant",
    )


def _inputs(x: np.ndarray, has_gaps: bool) -> np.ndarray:
    """x in a type that is stored: bytes, float32 or float64."""
    if x.dtype.kind not in "biuf" or x.ndim < 2 or x.size == 0:
        raise InputError(
            f"x is {one_line(str(x.dtype), 40)} of shape {x.shape}; it must hold numbers, "
            "(samples, features) or (samples, ...), with a sample at least"
        )
    if x.dtype.kind != "f":
        return x if x.dtype == np.uint8 else x.astype(np.float64)
    x = x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64, copy=False)
    finite = (np.isfinite(x) | (has_gaps & np.isnan(x))).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        raise InputError(f"x of sample {finite.argmin()} has a value that is not finite")
    return x


def read_targets(columns: Columns, task: OwnTask) -> tuple[Targets, tuple[str, ...]]:
    """Return checked targets, with remarks on what ``auto`` has guessed and on labels all alike."""
    targets = _of_task(columns, _guessed(columns.y) if task == "auto" else task)
    guess = f"data.task={targets[0]} is guessed from the targets, with {targets[2]} classes"
    remarks = (guess,) if task == "auto" else ()
    if targets[0] == "classification" and len(np.unique(targets[1])) == 1:
        alike = "all samples have the same label; data.label may be another column"
        return targets, (*remarks, alike)
    return targets, remarks


def targets_like(x: np.ndarray, y: Any, description: Description) -> np.ndarray:
    """Return targets of new inputs, checked, as those of a description are."""
    if not len(x):
        raise InputError("it has no sample")
    if y is not None and np.shape(y)[:1] != (len(x),):
        raise InputError(f"x has {len(x)} samples, but targets have the shape {np.shape(y)}")
    if description.task == "classification" and y is not None:
        values = _labels_like(y, description.class_names)
    else:
        _, values, n_classes, _ = _of_task(Columns(x, y), description.task)
        if description.task != "sequence" and n_classes != description.n_classes:
            raise InputError(f"it has {n_classes} targets, and the data {description.n_classes}")
    bad = bad_row(torch.from_numpy(x), torch.from_numpy(values), description)
    if bad is not None:
        raise InputError(f"it has {bad[1]} in sample {bad[0]}")
    return values


def _labels_like(y: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Labels as the places of their names, or as they are where names are of other labels."""
    values, numbers = numbered(_in_a_row(y), "label")
    texts = [str(value) for value in values.tolist()]
    are_numbers = all(map(NUMBERS["point"].fullmatch, names))
    if _is_whole(values) and not (names and are_numbers):
        return values.astype(np.int64)[numbers]
    unknown = [text for text in texts if text not in names]
    if unknown:
        allowed = one_line(", ".join(names), 200) or "whole numbers"
        raise InputError(f"it has the label '{one_line(unknown[0], 60)}'; the data have {allowed}")
    return np.array([names.index(text) for text in texts])[numbers]


def _in_a_row(y: np.ndarray) -> np.ndarray:
    """Labels (samples,), also of one column or of one-hot rows."""
    y = y.reshape(-1) if y.shape == (len(y), 1) else y
    return y.argmax(axis=1) if y.ndim == 2 and y.dtype.kind in "biuf" and _is_one_hot(y) else y


def _guessed(y: np.ndarray | None) -> Task:
    if y is None:
        return "unlabelled"
    if y.dtype.kind not in "biuf":
        return "classification"
    if y.ndim == 2 and y.shape[1] > 1:
        if not np.isin(y, (0, 1)).all():
            return "regression"
        if _is_one_hot(y):
            raise InputError(
                f"targets are {y.shape[1]} columns with one 1 in each row: "
                "data.task=classification reads them as labels, data.task=multi_label as tags"
            )
        return "multi_label"
    are_labels = _is_whole(y) and len(np.unique(y)) <= MOST_GUESSED
    return "classification" if are_labels else "regression"


def _of_task(columns: Columns, task: Task) -> Targets:
    x_shape, y, names = columns.x.shape, columns.y, columns.class_names
    if task == "unlabelled":
        return task, np.zeros((x_shape[0], 0)), 0, ()
    if y is None:
        raise InputError(f"there are no targets, but data.task is '{task}'")
    if task == "classification":
        return _labels(y, names)
    if task == "sequence":
        if y.dtype.kind not in "biu" or y.shape != x_shape[:2] or y.min() < 0:
            raise InputError(
                f"targets are {one_line(str(y.dtype), 40)} of shape {y.shape}; data.task "
                f"'sequence' asks for whole numbers from 0 on of shape {x_shape[:2]}"
            )
        return _counted(task, y.astype(np.int64), names)
    y = y.reshape(len(y), -1) if y.ndim == 1 else y
    allowed = (0, 1) if task == "multi_label" else None
    if (
        y.dtype.kind not in "biuf"
        or (y.ndim != 2 or y.shape[1] < 1)
        or not (np.isfinite(y) if allowed is None else np.isin(y, allowed)).all()
    ):
        raise InputError(
            f"targets are {one_line(str(y.dtype), 40)} of shape {y.shape}; data.task '{task}' asks "
            f"for {'finite numbers' if allowed is None else '0 or 1'}, (samples, targets)"
        )
    if task == "multi_label":
        return task, y.astype(np.uint8), y.shape[1], names
    return task, y.astype(np.float64), y.shape[1], ()


def _labels(y: np.ndarray, names: tuple[str, ...]) -> Targets:
    """Whole numbers from 0 on stay; other numbers and texts become the place in their order."""
    y = _in_a_row(y)
    if y.ndim == 1 and _is_whole(y) and 0 <= y.min() <= y.max() < MOST_LABELS:
        return _counted("classification", y.astype(np.int64), names)
    values, numbers = numbered(y, "label")
    return _counted("classification", numbers, tuple(map(str, values.tolist())))


def _counted(task: Task, labels: np.ndarray, names: tuple[str, ...]) -> Targets:
    """Labels from 0 on, at least two."""
    n_classes = max(int(labels.max()) + 1, len(names), 2)
    return task, labels, n_classes, names if len(names) == n_classes else ()


def numbered(values: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in their order, and the place of each among them, int64."""
    texts = values.dtype.kind == "O" and all(isinstance(each, str) for each in values.tolist())
    if values.ndim != 1 or not (texts or values.dtype.kind in "biuU" or _is_whole(values)):
        raise InputError(
            f"each {what} must be a whole number or a text, in one row; they are "
            f"{one_line(str(values.dtype), 40)} of shape {values.shape}"
        )
    distinct, numbers = np.unique(values, return_inverse=True)
    return distinct, numbers.reshape(-1).astype(np.int64)


def _is_whole(values: np.ndarray) -> bool:
    if values.dtype.kind != "f":
        return values.dtype.kind in "biu"
    wide = values.astype(np.float64, copy=False)
    return bool(np.all(wide == np.floor(wide)) and np.all(np.abs(wide) < MOST_EXACT))


def _is_one_hot(y: np.ndarray) -> bool:
    """Whether each row of columns has one 1 and zeros beside it."""
    return bool(np.isin(y, (0, 1)).all() and np.all((y != 0).sum(axis=1) == 1))
