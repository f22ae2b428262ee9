"""Samples in Python's containers: arrays, pairs of them, data sets, and those of clients or splits
in mappings and lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from mpifed.errors import InputError, closest, one_line

# Other types of floating-point tensors become float32, which holds all their values.
NUMPY_HAS = (torch.float16, torch.float32, torch.float64)

PREFIX = "data is mpifed.arrays(...), where"

# The splits that a mapping may hold in place of clients.
PARTS = ("train", "test")

# Usual names of inputs and of targets in samples that are mappings.
INPUTS = ("image", "img", "x", "features", "pixel_values", "input", "inputs", "data")
TARGETS = ("label", "labels", "y", "target", "targets", "class", "fine_label")


@dataclass(frozen=True)
class Names:
    """The columns of samples that are mappings: of inputs, targets and clients; None is usual."""

    features: str | None = None
    label: str | None = None
    client: str | None = None


@dataclass(frozen=True)
class Samples:
    """Samples in arrays, as in ``tables.Columns``."""

    x: np.ndarray
    y: np.ndarray | None = None
    client: np.ndarray | None = None
    is_test: np.ndarray | None = None
    class_names: tuple[str, ...] = ()


def array_of(values: Any, what: str) -> np.ndarray:
    """Return numbers or texts of the argument ``what`` as an array; ``InputError`` for others."""
    try:
        if isinstance(values, torch.Tensor):
            if values.is_floating_point() and values.dtype not in NUMPY_HAS:
                values = values.float()
            return np.asarray(values.detach().cpu().numpy())
        if np.ma.is_masked(values):
            raise TypeError("it has masked values")
        array = np.asarray(values)
        if array.dtype.kind == "O":  # as pandas' columns are
            texts = {isinstance(each, str) for each in array.reshape(-1).tolist()}
            array = np.array(array.tolist()) if len(texts) == 1 else array
        if array.dtype.kind not in "biufU":
            raise TypeError(
                f"it is {array.dtype} of shape {array.shape}, a {type(values).__name__}"
            )
    except (TypeError, ValueError, RuntimeError) as error:  # of numpy, or of torch
        raise InputError(
            f"{PREFIX} {what} is no array of numbers or texts: {one_line(str(error), 200)}"
        ) from None
    return array


def is_table(values: Any) -> bool:
    """Return whether ``values`` is a table of pandas."""
    return hasattr(values, "iloc") and hasattr(values, "columns")


def is_dataset(values: Any) -> bool:
    """Return whether ``values`` is a data set of torch or Hugging Face, or a list of samples."""
    if isinstance(values, (list, tuple)) and values:
        first = values[0]
        if isinstance(first, tuple):
            return len(first) == 2 and not isinstance(first[0], Dataset) and np.ndim(first[0]) > 0
        return isinstance(first, Mapping) and not is_split(first)
    return isinstance(values, Dataset) or hasattr(values, "column_names")


def is_pair(values: Any) -> bool:
    """Return whether ``values`` are two arrays of as many samples, inputs and targets.

    A list of two arrays of one shape is itself an array.
    """
    return are_two_arrays(values) and len(values[0]) == len(values[1])


def are_two_arrays(values: Any) -> bool:
    """Return whether ``values`` are arrays of inputs and targets, also of unequal lengths."""
    if not isinstance(values, (list, tuple)) or len(values) != 2:
        return False
    x, y = (tuple(getattr(each, "shape", ())) for each in values)
    is_array = isinstance(values, list) and x == y
    return not is_array and len(x) >= 2 and len(y) >= 1


def check_lengths(pair: Any, whose: str) -> None:
    """Refuse arrays of inputs and targets of unequal lengths."""
    samples, labels = map(len, pair)
    if samples != labels:
        raise InputError(f"{whose} has {samples} samples and {labels} labels; they must be as many")


def is_split(values: Any) -> bool:
    """Return whether ``values`` is a mapping of splits, of which one is for training."""
    return isinstance(values, Mapping) and "train" in values


def is_by_client(values: Any, is_sequence: bool = False) -> bool:
    """Return whether ``values`` is a mapping or a list of clients' samples.

    Pairs of two arrays of one length are clients' samples, or where ``is_sequence`` samples with a
    label at each position.
    """
    if isinstance(values, Mapping):
        return bool(values) and not is_split(values) and all(map(_has_samples, values.values()))
    if not isinstance(values, (list, tuple)) or not values or is_pair(values):
        return False
    return all(
        isinstance(each, Dataset)
        or hasattr(each, "column_names")
        or is_split(each)
        or (is_pair(each) and not is_sequence)
        for each in values
    )


def _has_samples(values: Any) -> bool:
    is_array = len(getattr(values, "shape", ())) >= 2
    return is_array or are_two_arrays(values) or is_split(values) or is_dataset(values)


def samples_of(values: Any, names: Names, is_sequence: bool = False) -> Samples:
    """Return all samples of a container as arrays, read once from first to last."""
    if is_by_client(values, is_sequence):
        return _by_client(values, names)
    if is_split(values):
        return _by_split(values, names)
    if is_dataset(values):
        return _read(values, names)
    if is_pair(values):
        return Samples(array_of(values[0], "x"), array_of(values[1], "y"))
    return Samples(array_of(values, "x"))


def _by_client(values: Any, names: Names) -> Samples:
    """The samples of a mapping or a list of clients', numbered in a list."""
    mapping = values if isinstance(values, Mapping) else dict(enumerate(values))
    are_numbers = all(isinstance(name, (int, np.integer)) for name in mapping)
    parts = []
    for name, each in mapping.items():
        if are_two_arrays(each):
            check_lengths(each, f"client {name}")
        part = samples_of(each, names)
        whose = int(name) if are_numbers else str(name)
        parts.append((f"client {whose!r}", replace(part, client=np.full(len(part.x), whose))))
    return merged(parts)


def _by_split(values: Mapping[str, Any], names: Names) -> Samples:
    """The samples of both splits, those for testing marked."""
    others = [str(name) for name in values if name not in PARTS]
    if others:
        raise InputError(
            f"{PREFIX} there are the splits train and {', '.join(others)}; allowed: train and "
            "test (evaluation.validation_fraction holds out training samples)"
        )
    parts = []
    for name, each in values.items():
        part = samples_of(each, names)
        marks = np.full(len(part.x), name == "test")
        parts.append((f"the split {name}", replace(part, is_test=marks)))
    return merged(parts)


def merged(parts: Sequence[tuple[str, Samples]]) -> Samples:
    """Return the samples of all parts, which messages call by their names, one after another."""
    _, first = parts[0]
    for name, part in parts:
        for what in ("y", "client", "is_test"):
            if (getattr(part, what) is None) != (getattr(first, what) is None):
                which = {"y": "targets", "client": "clients", "is_test": "test samples"}[what]
                raise InputError(f"{PREFIX} some parts have {which}, and others, as {name}, none")
        for what in ("x", "y"):
            array, before = getattr(part, what), getattr(first, what)
            if array is not None and array.shape[1:] != before.shape[1:]:
                raise InputError(
                    f"{PREFIX} {what} of {name} has samples of shape {array.shape[1:]}, and of "
                    f"{parts[0][0]} {before.shape[1:]}"
                )

    together: dict[str, Any] = {
        what: np.concatenate([getattr(part, what) for _, part in parts])
        for what in ("x", "y", "client", "is_test")
        if getattr(first, what) is not None
    }
    return replace(first, **together)


def _read(dataset: Any, names: Names) -> Samples:
    """All samples of a data set, which are pairs or mappings."""
    rows = (dataset[number] for number in range(len(dataset)))
    first = next(rows, None)
    if first is None:
        raise InputError(f"{PREFIX} the data set {type(dataset).__name__} is empty")
    if isinstance(first, Mapping):
        return _of_mappings(dataset, first, rows, names)
    pairs = ((array_of(x, "x"), array_of(y, "y")) for x, y in chain([first], rows))
    inputs, targets = zip(*pairs, strict=True)
    return Samples(_stacked(inputs, "x"), _stacked(targets, "y"))


def _of_mappings(
    dataset: Any, first: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], names: Names
) -> Samples:
    """The columns of samples that are mappings."""
    for option, name in vars(names).items():
        if name is not None and name not in first:
            raise InputError(
                f"{PREFIX} {option} is '{one_line(str(name), 60)}', but samples have no such "
                f"column; {closest(str(name), first)}"
            )
    label = names.label or next(filter(first.__contains__, TARGETS), None)
    features = names.features or next(filter(first.__contains__, INPUTS), None)
    others = [name for name in first if name not in (label, names.client)]
    features = features or (others[0] if len(others) == 1 else None)
    if features is None or np.ndim(first[features]) == 0:
        raise InputError(
            f"{PREFIX} samples have the columns {one_line(', '.join(map(str, first)), 200)}, and "
            "none is known to hold arrays of inputs: features=NAME, label=NAME and client=NAME "
            "name them, and mpifed.frame(...) reads tables of numbers and texts"
        )
    named = [("x", features), ("y", label), ("client", names.client)]
    columns: dict[str, list[np.ndarray]] = {what: [] for what, name in named if name}
    for row in chain([first], rows):
        for what, name in named:
            if name is not None:
                columns[what].append(array_of(row[name], what))
    arrays = {what: _stacked(column, what) for what, column in columns.items()}
    described = getattr(dataset, "features", None)
    class_names = getattr(described.get(label), "names", None) if described else None
    return Samples(**arrays, class_names=tuple(map(str, class_names or ())))


def _stacked(arrays: Sequence[np.ndarray], what: str) -> np.ndarray:
    """Arrays of one shape as the rows of another."""
    shapes = list(dict.fromkeys(array.shape for array in arrays))
    if len(shapes) > 1:
        raise InputError(
            f"{PREFIX} {what} has samples of the shapes {shapes[0]} and {shapes[1]}; allowed: one"
        )
    return np.stack(arrays)
