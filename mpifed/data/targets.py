"""Targets of a user's own samples: which task they are of, and labels as numbers from 0 on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifed.data.base import Task
from mpifed.errors import InputError, one_line

MOST_LABELS = 1 << 20
"""Labels are counted from 0 on, so that a large one is more likely a mistake."""

MOST_EXACT = 2.0**53
"""Above it not all whole numbers are numbers of double precision."""

SHOWN = 5
"""Labels that a line of the log shows."""


@dataclass(frozen=True)
class Targets:
    """Targets as ``Split.y`` holds them.

    Attributes
    ----------
    task : str
        See ``Description``.
    values : ndarray
        (samples,) for labels, (samples, L) for sequences, else (samples, n_classes).
    n_classes : int
        Labels, tags or target columns.
    class_names : tuple of str
        Names of the labels, or empty.
    remarks : tuple of str
        Lines for the log: what was guessed, and which labels never occur.
    """

    task: Task
    values: np.ndarray
    n_classes: int
    class_names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def read_targets(
    said: str,
    y: np.ndarray | None,
    task: Task | None,
    x_shape: tuple[int, ...],
    names: tuple[str, ...] = (),
) -> Targets:
    """Return checked targets.

    The task is guessed by values, whatever their type: whole numbers and texts are labels, columns
    of 0 and 1 are tags, other numbers are regressed on. Columns with one 1 in each row are refused
    then, since they are labels as often as tags.

    Parameters
    ----------
    said : str
        The beginning of messages, as ``data.path is 'file.npz', where``.
    y : ndarray or None
        (samples,) or (samples, targets), numbers or texts; None for unlabelled data.
    task : str or None
        What is to be learnt; None guesses.
    x_shape : tuple of int
        Shape of the inputs, (samples, ...).
    names : tuple of str
        Names of the labels 0, 1, ...

    Raises
    ------
    InputError
        If the targets do not fit the task, or the task is to be named.
    """
    if task is None:
        task, reason = _guessed(said, y)
        found = _of_task(said, y, task, x_shape, names)
        return Targets(
            task, found.values, found.n_classes, found.class_names,
            (_guess_in_words(found, reason), *found.remarks),
        )  # fmt: skip
    return _of_task(said, y, task, x_shape, names)


def _guessed(said: str, y: np.ndarray | None) -> tuple[Task, str]:
    """The task, and why."""
    if y is None:
        return "unlabelled", "there are no targets"
    if y.ndim != 2 or y.shape[1] == 1:
        if y.dtype.kind not in "biuf":
            return "classification", "targets are texts"
        if _is_whole(y):
            return "classification", "targets are whole numbers"
        return "regression", "targets are not all whole numbers"
    columns = f"{y.shape[1]} columns"
    if y.dtype.kind not in "biuf" or not np.isin(y, (0, 1)).all():
        return "regression", f"targets have {columns} that are not all 0 or 1"
    if _is_one_hot(y):
        raise InputError(
            f"{said} targets are {columns} with one 1 in each row: "
            "data.task=classification reads them as labels, data.task=multi_label as tags"
        )
    return "multi_label", f"targets are 0 or 1 in {columns}"


def _guess_in_words(found: Targets, reason: str) -> str:
    said = f"data.task={found.task}, since {reason}"
    if found.task != "classification":
        return said
    what = f"{found.n_classes} labels"
    if found.class_names:
        shown = ", ".join(one_line(name, 20) for name in found.class_names[:SHOWN])
        what += f" in their order ({shown}{', ...' * (found.n_classes > SHOWN)})"
    other = "" if "texts" in reason else "; data.task=regression predicts numbers"
    return f"{said}: {what}{other}"


def _of_task(
    said: str, y: np.ndarray | None, task: Task, x_shape: tuple[int, ...], names: tuple[str, ...]
) -> Targets:
    if task == "unlabelled":
        return Targets(task, np.zeros((x_shape[0], 0)), 0)
    if y is None:
        raise InputError(f"{said} there are no targets, but data.task is '{task}'")
    if task == "classification":
        return _labels(said, y, names)
    if task == "sequence":
        return _labels_at_positions(said, y, x_shape, names)
    if y.dtype.kind not in "biuf":
        raise InputError(f"{said} targets hold {one_line(str(y.dtype), 40)}, not numbers ({task})")
    y = y.reshape(len(y), -1) if y.ndim == 1 else y
    if y.ndim != 2 or y.shape[1] < 1:
        raise InputError(f"{said} targets have the shape {y.shape}, not (samples, targets)")
    if task == "multi_label":
        if not np.isin(y, (0, 1)).all():
            raise InputError(f"{said} a target is neither 0 nor 1, but data.task is 'multi_label'")
        return Targets(task, y.astype(np.uint8), y.shape[1], names)
    if not np.isfinite(y).all():
        raise InputError(f"{said} a target is not finite")
    return Targets(task, y.astype(np.float64), y.shape[1])


def _labels(said: str, y: np.ndarray, names: tuple[str, ...]) -> Targets:
    """Whole numbers from 0 on stay; other numbers and texts become the place in their order."""
    y = y.reshape(-1) if y.shape == (len(y), 1) else y
    if y.ndim == 2 and y.dtype.kind in "biuf" and _is_one_hot(y):
        y = y.argmax(axis=1)
    if y.ndim != 1:
        raise InputError(
            f"{said} labels have the shape {y.shape}, not (samples,), and are not one-hot"
        )
    if y.dtype.kind == "f" and _is_whole(y):
        y = y.astype(np.int64)
    if y.dtype.kind in "biu" and y.min() >= 0:
        n_classes = max(int(y.max()) + 1, len(names))
        if n_classes > MOST_LABELS:
            raise InputError(
                f"{said} a label is {n_classes - 1}; labels are numbers from 0 on, at most "
                f"{MOST_LABELS - 1}; data.task=regression reads numbers that are no labels"
            )
        n_classes = max(n_classes, 2)
        y = y.astype(np.int64)
        own = names if len(names) == n_classes else ()
        return Targets("classification", y, n_classes, own, _absent(y, n_classes))
    values, places = numbered(said, y, "label")
    n_classes = max(len(values), 2)
    texts = tuple(map(str, values.tolist()))
    return Targets("classification", places, n_classes, texts, _absent(places, n_classes))


def _absent(labels: np.ndarray, n_classes: int) -> tuple[str, ...]:
    absent = np.flatnonzero(np.bincount(labels.reshape(-1), minlength=n_classes) == 0)
    if not len(absent):
        return ()
    shown = ", ".join(map(str, absent[:SHOWN])) + ", ..." * (len(absent) > SHOWN)
    verb = "never occurs" if len(absent) == 1 else "never occur"
    return (
        f"{len(absent)} of the {n_classes} labels {verb} ({shown}), but models have an output for "
        "each",
    )


def _labels_at_positions(
    said: str, y: np.ndarray, x_shape: tuple[int, ...], names: tuple[str, ...]
) -> Targets:
    if y.dtype.kind not in "biu" or y.shape != x_shape[:2] or y.min() < 0 or y.max() > MOST_LABELS:
        raise InputError(
            f"{said} targets are {one_line(str(y.dtype), 40)} of shape {y.shape}; data.task "
            f"'sequence' asks for whole numbers from 0 on of shape {x_shape[:2]}"
        )
    n_classes = max(int(y.max()) + 1, len(names), 2)
    own = names if len(names) == n_classes else ()
    y = y.astype(np.int64)
    return Targets("sequence", y, n_classes, own, _absent(y, n_classes))


def numbered(said: str, values: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in their order, and the place of each among them, int64.

    Parameters
    ----------
    said : str
        The beginning of messages.
    values : ndarray
        Whole numbers or texts, (samples,).
    what : str
        What each of them is, for messages.

    Raises
    ------
    InputError
        If they are anything else.
    """
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values.tolist()):
        values = values.astype(str)
    is_whole = values.dtype.kind in "biuU" or (values.dtype.kind == "f" and _is_whole(values))
    if values.ndim != 1 or not is_whole:
        raise InputError(
            f"{said} each {what} must be a whole number or a text, in one row; they are "
            f"{one_line(str(values.dtype), 40)} of shape {values.shape}"
        )
    distinct, places = np.unique(values, return_inverse=True)
    return distinct, places.reshape(-1).astype(np.int64)


def marks(said: str, values: np.ndarray) -> np.ndarray:
    """Return marks of test samples, 0 or 1 (samples,), as bool; ``InputError`` for others."""
    if values.ndim != 1 or values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise InputError(f"{said} marks of test samples must be 0 or 1, one for each sample")
    return values.astype(bool)


def _is_whole(values: np.ndarray) -> bool:
    if values.dtype.kind != "f":
        return True
    wide = values.astype(np.float64, copy=False)
    return bool(np.all(wide == np.floor(wide)) and np.all(np.abs(wide) < MOST_EXACT))


def _is_one_hot(y: np.ndarray) -> bool:
    """Whether each row of columns has one 1 and zeros beside it."""
    return bool(np.isin(y, (0, 1)).all() and np.all((y != 0).sum(axis=1) == 1))
