"""The layout of a checkpoint in HDF5: groups, attributes, and space for every tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifed.checkpoint.copies import Part
from mpifed.checkpoint.description import read_description_of_data, store_description
from mpifed.checkpoint.hdf5 import writing
from mpifed.checkpoint.integrity import BLOCK, FORMAT
from mpifed.data.base import Description
from mpifed.io.hdf5 import check_size
from mpifed.io.text import is_count, is_number
from mpifed.results.configurations import check_stored
from mpifed.results.results import check_rows

# The version of the file format, which every HDF5 since 1.10 writes and reads.
LIBRARY = ("v110", "v110")


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


@dataclass(frozen=True)
class Place:
    """Where the bytes of a tensor are in the file."""

    name: str
    offset: int


def lay_out(
    path: Path,
    meta: Meta,
    parts: Sequence[Part],
    arrays: Mapping[str, np.ndarray],
    n_clients: int,
) -> list[Place]:
    """Create the file of a checkpoint, complete but for the bytes of its tensors."""
    with writing(path, "w", userblock_size=BLOCK, libver=LIBRARY) as file:
        _describe(file, meta)
        server, clients = file.create_group("server"), file.create_group("clients")
        for name, array in arrays.items():
            server[f"exchange.{name}"] = array
        # Allocated at once: later it could not be while ranks write.
        room = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        room.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        room.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        places = []
        for part in parts:
            shape = (n_clients, *part.values.shape[1:]) if part.is_rows else part.values.shape
            group = clients if part.is_rows else server
            if not shape:
                group[part.name] = part.values  # h5py reserves no space for a single number
                continue
            made = group.create_dataset(part.name, shape, part.values.dtype, dcpl=room)
            if made.size:
                places.append(Place(part.name, int(made.id.get_offset())))
    return sorted(places, key=lambda place: place.offset)


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
        store_description(about, meta.data)
    if meta.simulated is not None:
        about["simulated"] = meta.simulated
    text = h5py.string_dtype()
    file["metrics/columns"] = np.array(meta.columns, dtype=object).astype(text)
    shape = (len(meta.rows), len(meta.columns))
    table = np.array(meta.rows, dtype=object).reshape(shape)
    file.create_dataset("metrics/rows", shape, dtype=text, data=table.astype(text))


def read_description(file: h5py.File) -> Meta:
    """Read and check what ``lay_out`` recorded of ``meta``."""
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
        read_description_of_data(file["meta"]),
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


def _texts(data: Any, dimensions: int) -> Any:
    """Return the texts of a data set; raise ``ValueError`` for another number of dimensions."""
    check_size(data)
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
    times = np.asarray(found[()])
    if not len(times) or not (np.isfinite(times[1:]) & (times[1:] >= 0)).all() or times[0] < 0:
        raise ValueError("/meta/simulated is not made of seconds, at least 0")
    return times


def _is_sum(value: Any) -> bool:
    return is_number(value) and 0 <= value < math.inf
