"""The content of a checkpoint in HDF5 besides the state: groups, attributes and metrics."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import h5py
import numpy as np

from mpifed.checkpoint.integrity import BLOCK, FORMAT
from mpifed.data.base import Description, Task
from mpifed.io.hdf5 import check_size, whole
from mpifed.io.text import is_count, is_number
from mpifed.results.configurations import check_stored
from mpifed.results.results import check_rows

# The version of the file format, which every HDF5 since 1.10 writes and reads.
LIBRARY = ("v110", "v110")

# Arrays of a description, a number for each client.
COUNTS = ("n_train", "n_val", "n_test")


@dataclass(frozen=True)
class Meta:
    """What a checkpoint records besides the state."""

    round: int
    seed: int
    horizon: int
    configuration: dict[str, Any]
    columns: list[str]
    rows: list[list[str]]
    ledger: dict[str, int]
    seconds: dict[str, float]
    data: Description | None = None
    simulated: np.ndarray | None = None


def description(meta: Meta, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the HDF5 file of a checkpoint without the tensors of the state."""
    # Made in memory: HDF5 cannot close a file on a disk that becomes full.
    content = io.BytesIO()
    with h5py.File(content, "w", userblock_size=BLOCK, libver=LIBRARY) as file:
        _describe(file, meta)
        server = file.create_group("server")
        file.create_group("clients")
        for name, array in arrays.items():
            server[f"exchange.{name}"] = array
    return content.getvalue()


def _describe(file: h5py.File, meta: Meta) -> None:
    about = file.create_group("meta")
    about.attrs["format"] = FORMAT
    about.attrs["round"] = meta.round
    about.attrs["seed"] = meta.seed
    about.attrs["horizon"] = meta.horizon
    about.attrs["configuration"] = json.dumps(meta.configuration)
    about.attrs["ledger"] = json.dumps(meta.ledger)
    about.attrs["seconds"] = json.dumps(meta.seconds)
    if meta.data is not None:
        _store_data(about, meta.data)
    if meta.simulated is not None:
        about["simulated"] = meta.simulated
    text = h5py.string_dtype()
    file["metrics/columns"] = np.array(meta.columns, dtype=object).astype(text)
    shape = (len(meta.rows), len(meta.columns))
    table = np.array(meta.rows, dtype=object).reshape(shape)
    file.create_dataset("metrics/rows", shape, dtype=text, data=table.astype(text))


def read_description(file: h5py.File) -> Meta:
    """Read and check what ``description`` recorded of ``meta``."""
    about = file["meta"].attrs
    if _count(about, "format") != FORMAT:
        raise ValueError(f"/meta says format {about['format']}, and this mpifed reads {FORMAT}")
    configuration = json.loads(about["configuration"])
    check_stored(configuration)
    columns = [str(name) for name in _texts(file["metrics/columns"], 1)]
    rows = [[str(item) for item in row] for row in _texts(file["metrics/rows"], 2)]
    check_rows(columns, rows)
    meta = Meta(
        _count(about, "round"),
        _count(about, "seed"),
        _count(about, "horizon"),
        configuration,
        columns,
        rows,
        json.loads(about["ledger"]),
        json.loads(about["seconds"]),
        _read_data(file["meta"]),
        _clock(file["meta"]),
    )
    if rows and int(dict(zip(columns, rows[-1], strict=True))["round"]) > meta.round:
        raise ValueError("/metrics has a row of a later round")
    for name, found in (("ledger", meta.ledger), ("seconds", meta.seconds)):
        if not isinstance(found, dict) or not all(_is_sum(value) for value in found.values()):
            raise ValueError(f"/meta has a {name} that is not made of numbers, at least 0")
    if not all(isinstance(bits, int) for bits in meta.ledger.values()):
        raise ValueError("/meta has a ledger that is not made of whole numbers")
    return meta


def _store_data(meta: h5py.Group, about: Description) -> None:
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


def _read_data(meta: h5py.Group) -> Description | None:
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
    _check_stored(data)
    found = whole(data)
    if found.ndim != 1 or found.dtype != np.int64 or (found < 0).any():
        raise ValueError(f"{data.name} holds no numbers of samples")
    return found


def _check_stored(data: Any) -> None:
    """Check that a data set has as many bytes in the file as it declares."""
    check_size(data)
    if data.id.get_storage_size() < data.size * data.id.get_type().get_size():
        raise ValueError(f"{data.name} declares {data.size} values that are not in the file")


def _texts(data: Any, dimensions: int) -> Any:
    """Return the texts of a data set; raise ``ValueError`` for another number of dimensions."""
    _check_stored(data)
    if data.ndim != dimensions:
        raise ValueError(f"{data.name} has the shape {data.shape}")
    return data.asstr()[()]


def _count(about: Mapping[str, Any], name: str) -> int:
    value = about[name]
    if not isinstance(value, np.integer) or not is_count(int(value)):
        raise ValueError(f"/meta has no whole number for {name}")
    return int(value)


def _clock(about: h5py.Group) -> np.ndarray | None:
    if "simulated" not in about:
        return None
    found = about["simulated"]
    if not isinstance(found, h5py.Dataset) or found.dtype != np.float64 or found.ndim != 1:
        raise ValueError("/meta/simulated is not a row of float64 numbers")
    _check_stored(found)
    times = np.asarray(found[()])
    if not len(times) or not (np.isfinite(times[1:]) & (times[1:] >= 0)).all() or times[0] < 0:
        raise ValueError("/meta/simulated is not made of seconds, at least 0")
    return times


def _is_sum(value: Any) -> bool:
    return is_number(value) and 0 <= value < math.inf
