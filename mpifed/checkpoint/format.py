"""How a checkpoint lies in its HDF5 file: groups, attributes, and room for every tensor.

The file that ``lay_out`` makes is complete but for the bytes of the tensors. Each is contiguous and
has its place from the beginning, so it can be filled in without HDF5, in order, by a thread that
lets others compute.
"""

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
from mpifed.checkpoint.hdf5 import writing
from mpifed.checkpoint.integrity import BLOCK, FORMAT
from mpifed.reading.configurations import check_stored
from mpifed.reading.hdf5 import check_size
from mpifed.reading.results import check_rows
from mpifed.reading.text import is_count, is_number

LIBRARY = ("v110", "v110")
"""The form of the HDF5 file: one that every HDF5 since 1.10 writes and reads."""


@dataclass(frozen=True)
class Meta:
    """What a checkpoint says of itself, besides the state.

    ``horizon`` is the R of learning-rate schedules; ``columns`` and ``rows`` are metrics.csv.
    """

    round: int
    seed: int
    horizon: int
    configuration: dict[str, Any]
    columns: list[str]
    rows: list[list[str]]
    ledger: dict[str, int]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Place:
    """Where the bytes of the tensor ``name`` begin in the file."""

    name: str
    offset: int


def lay_out(
    path: Path,
    meta: Meta,
    parts: Sequence[Part],
    arrays: Mapping[str, np.ndarray],
    n_clients: int,
) -> list[Place]:
    """Makes the file; returns the places of all tensors that have bytes, by rising offset.

    Raises ``OSError`` if the disk does not take it.
    """
    with writing(path, "w", userblock_size=BLOCK, libver=LIBRARY) as file:
        _describe(file, meta)
        server, clients = file.create_group("server"), file.create_group("clients")
        for name, array in arrays.items():
            server[f"exchange.{name}"] = array
        # Room on disk at once: later it could not be made while ranks write.
        room = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        room.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        room.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        places = []
        for part in parts:
            shape = (n_clients, *part.values.shape[1:]) if part.is_rows else part.values.shape
            group = clients if part.is_rows else server
            if not shape:
                group[part.name] = part.values  # h5py gives a single number no place of its own
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
    text = h5py.string_dtype()
    file["metrics/columns"] = np.array(meta.columns, dtype=object).astype(text)
    shape = (len(meta.rows), len(meta.columns))
    table = np.array(meta.rows, dtype=object).reshape(shape)
    file.create_dataset("metrics/rows", shape, dtype=text, data=table.astype(text))


def read_description(file: h5py.File) -> Meta:
    """What ``lay_out`` wrote of ``meta``, checked.

    A seal says that a file is as it was sealed, and not who sealed it.

    Raises
    ------
    KeyError, TypeError, ValueError
        If it is of another format, or says what no run says.
    """
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
    """The texts of a data set with this many dimensions."""
    check_size(data)
    if data.ndim != dimensions:
        raise ValueError(f"{data.name} has the shape {data.shape}")
    return data.asstr()[()]


def _count(about: Mapping[str, Any], name: str) -> int:
    value = about[name]
    if not isinstance(value, np.integer) or not is_count(int(value)):
        raise ValueError(f"/meta has no whole number for {name}")
    return int(value)


def _is_sum(value: Any) -> bool:
    return is_number(value) and 0 <= value < math.inf
