"""The layout of a checkpoint in HDF5, besides the state: groups, attributes and metrics."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from mpifed.checkpoint.integrity import BLOCK, FORMAT
from mpifed.data.base import Description
from mpifed.data.preprocessing import preprocessing_from
from mpifed.io.hdf5 import check_size
from mpifed.results.configurations import check_stored
from mpifed.results.results import check_metrics, line_of

# The version of the file format, which every HDF5 since 1.10 writes and reads.
LIBRARY = ("v110", "v110")

# Lists of texts of a description, and its arrays, a number for each client or for each class.
NAMES = ("class_names", "client_names")
COUNTS = ("n_train", "n_val", "n_test", "label_counts")


@dataclass(frozen=True)
class Meta:
    """What a checkpoint records besides the state."""

    round: int
    seed: int
    horizon: int
    configuration: dict[str, Any]
    metrics: str
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
    group = file.create_group("meta")
    group.attrs["format"] = FORMAT
    group.attrs["round"] = meta.round
    group.attrs["seed"] = meta.seed
    group.attrs["horizon"] = meta.horizon
    group.attrs["configuration"] = json.dumps(meta.configuration)
    group.attrs["ledger"] = json.dumps(meta.ledger)
    group.attrs["seconds"] = json.dumps(meta.seconds)
    if meta.data is not None:
        _store_data(group, meta.data)
    if meta.simulated is not None:
        group["simulated"] = meta.simulated
    _store_text(file, "metrics/csv", meta.metrics)


def _store_text(group: h5py.Group, name: str, text: str) -> None:
    content = np.frombuffer(text.encode(), np.uint8)
    group.create_dataset(name, data=content, chunks=content.shape, compression="gzip")


def _stored_text(data: h5py.Dataset) -> str:
    check_size(data)
    return bytes(data[()]).decode()


def read_description(file: h5py.File) -> Meta:
    """Read what ``description`` recorded of ``meta``."""
    attributes = file["meta"].attrs
    if attributes["format"] != FORMAT:
        raise ValueError(
            f"/meta says format {attributes['format']}, and this mpifed reads {FORMAT}"
        )
    configuration = json.loads(attributes["configuration"])
    check_stored(configuration)
    n = configuration["clients"]
    for name, data in file["clients"].items():
        if data.shape[:1] != (n,):
            raise ValueError(f"it holds '{name}' of shape {data.shape} for {n} clients")
    metrics = _metrics(file["metrics"])
    check_metrics(metrics)
    return Meta(
        int(attributes["round"]),
        int(attributes["seed"]),
        int(attributes["horizon"]),
        configuration,
        metrics,
        json.loads(attributes["ledger"]),
        json.loads(attributes["seconds"]),
        _read_data(file["meta"]["data"]) if "data" in file["meta"] else None,
        stored_array(file["meta"]["simulated"]) if "simulated" in file["meta"] else None,
    )


def _metrics(group: h5py.Group) -> str:
    """Return the text of metrics.csv up to the checkpoint."""
    if "rows" in group:  # of earlier versions: a table of texts
        lines = [stored_array(group["columns"]), *stored_array(group["rows"])]
        return "".join(line_of(list(map(str, line))) for line in lines)
    return _stored_text(group["csv"])


def _store_data(meta: h5py.Group, data: Description) -> None:
    """Store a description in the group ``meta`` of a checkpoint."""
    group = meta.create_group("data")
    group.attrs["source"], group.attrs["task"] = data.source, data.task
    group.attrs["input_shape"] = json.dumps(list(map(int, data.input_shape)))
    group.attrs["n_classes"] = int(data.n_classes)
    for name in NAMES:
        group.attrs[name] = json.dumps(list(getattr(data, name)))
    for name in COUNTS:
        counts = getattr(data, name)
        if counts is not None:
            group[name] = np.asarray(counts, np.int64)
    if data.preprocessing is not None:
        _store_text(group, "preprocessing", data.preprocessing.text)


def _read_data(group: h5py.Group) -> Description:
    """Return the description that a checkpoint holds."""
    attributes = group.attrs
    counts: dict[str, Any] = {name: stored_array(group[name]) for name in COUNTS if name in group}
    names: dict[str, Any] = {n: tuple(json.loads(attributes[n])) for n in NAMES if n in attributes}
    return Description(
        attributes["source"],
        tuple(json.loads(attributes["input_shape"])),
        int(attributes["n_classes"]),
        **counts,
        **names,
        task=attributes["task"],
        preprocessing=preprocessing_from(_stored_text(group["preprocessing"]))
        if "preprocessing" in group
        else None,
    )


def stored_array(data: Any) -> np.ndarray:
    """Return all values of a data set, of which the file must have as many as it declares."""
    check_size(data)
    if data.id.get_storage_size() < data.size * data.id.get_type().get_size():
        raise ValueError(f"{data.name} declares {data.size} values that are not in the file")
    values: np.ndarray = (data.asstr() if data.dtype.kind == "O" else data)[()]
    return values
