"""What a checkpoint records about the data, so that its models can be made without them."""

from __future__ import annotations

import json
from typing import Any, get_args

import h5py
import numpy as np

from mpifed.data.base import Description, Task
from mpifed.io.hdf5 import whole
from mpifed.io.text import is_count

# Arrays of a description, a number for each client.
COUNTS = ("n_train", "n_val", "n_test")


def store_description(meta: h5py.Group, about: Description) -> None:
    """Store a description in the group ``meta`` of a checkpoint."""
    group = meta.create_group("data")
    group.attrs["source"], group.attrs["task"] = about.source, about.task
    group.attrs["input_shape"] = json.dumps(list(map(int, about.input_shape)))
    group.attrs["n_classes"] = int(about.n_classes)
    group.attrs["class_names"] = json.dumps(list(about.class_names))
    for name in (*COUNTS, "label_counts"):
        found = getattr(about, name)
        if found is not None:
            group[name] = np.asarray(found, np.int64)


def read_description_of_data(meta: h5py.Group) -> Description | None:
    """Return the description that a checkpoint holds; None in one of an earlier version."""
    if "data" not in meta:
        return None
    group = meta["data"]
    shape, names = json.loads(group.attrs["input_shape"]), json.loads(group.attrs["class_names"])
    n_classes, task = int(group.attrs["n_classes"]), str(group.attrs["task"])
    n_train, n_val, n_test = (_counts(group[name]) for name in COUNTS)
    is_shape = isinstance(shape, list) and all(is_count(size) for size in shape)
    is_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    is_task = task in get_args(Task) and is_count(n_classes)
    if not (is_shape and is_names and is_task and len(n_train) == len(n_val) == len(n_test)):
        raise ValueError("/meta/data is no description of a data set")
    found: dict[str, Any] = {"class_names": tuple(names), "task": task}
    if "label_counts" in group:
        found["label_counts"] = _counts(group["label_counts"])
    source = str(group.attrs["source"])
    return Description(source, tuple(shape), n_classes, n_train, n_val, n_test, **found)


def _counts(data: Any) -> np.ndarray:
    """Return numbers of samples, int64 (n,)."""
    found = whole(data)
    if found.ndim != 1 or found.dtype != np.int64 or (found < 0).any():
        raise ValueError(f"{data.name} holds no numbers of samples")
    return found
