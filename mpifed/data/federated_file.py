"""The federated HDF5 file: all clients' shards, each client's rows together, in client order."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import h5py
import numpy as np
import torch

from mpifed.data.archives import reading
from mpifed.data.base import (
    SPLITS,
    TOKEN_TYPES,
    Dataset,
    Description,
    Shards,
    Split,
    SplitName,
    Task,
    agreed,
    bad_row,
    check_texts,
    empty_split,
)
from mpifed.data.preprocessing import Preprocessing, preprocessing_from
from mpifed.errors import InputError, RunError, closest, one_line
from mpifed.io import hdf5
from mpifed.io.atomic import replacing
from mpifed.io.hdf5 import disk_reason
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.watchdog.heartbeat import raise_if_stop_requested

VERSION = 1

# Bytes of x that are held at once while a file is written, if no client has more.
BLOCK = 256 << 20
STORED = ("uint8", *TOKEN_TYPES, "float32", "float64")
# Every whole number up to it is one of float64.
LARGEST_DIVISOR = 2**53 - 1
AS_THEY_ARE = Preprocessing().text


@dataclass(frozen=True)
class Contents:
    """What a federated file holds, apart from its rows."""

    description: Description
    partition: str
    seed: int
    stored: str = "float32"
    divisor: int = 1

    def offsets(self, split: str) -> np.ndarray:
        """Return the first row of each client in ``split``, and the end; int64 (n_clients + 1,)."""
        counts = getattr(self.description, f"n_{split}")
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @property
    def stored_targets(self) -> str:
        """Type of y in files that mpifed writes."""
        task = self.description.task
        if task == "sequence" and np.issubdtype(self.stored, np.integer):
            smallest = np.min_scalar_type(self.description.n_classes - 1)
            return np.promote_types(self.stored, smallest).name
        if task == "regression":
            return self.stored if self.stored != "uint8" else "float64"
        return "int64" if task in ("classification", "sequence") else "uint8"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open ``path`` for reading; what is wrong with it becomes an ``InputError``."""
    if not path.exists():
        raise InputError(f"data.path is '{path}', but there is no such file")
    with reading(path), hdf5.opened(path) as file:
        yield file


def read_contents(path: Path) -> Contents:
    """Return what the federated file ``path`` holds, checked without reading its rows."""
    with opened(path) as file:
        return _contents(file)


class FederatedFile(Dataset):
    """A federated HDF5 file, as `python -m mpifed.data` writes it.

    Parameters
    ----------
    path : str
        The file.
    """

    def __init__(
        self, n_clients: int, run_seed: int, communicator: Communicator, *, path: str
    ) -> None:
        self._path = Path(os.path.expanduser(path))
        self.contents = agreed(communicator, lambda: read_contents(self._path))
        self.description, self.divisor = self.contents.description, self.contents.divisor
        stored = self.contents.stored
        self.is_uint8, self.tokens_in = stored == "uint8", stored if stored in TOKEN_TYPES else None
        count = self.description.n_clients
        if count != n_clients:
            raise InputError(
                f"clients is {n_clients}, but data.path '{path}' holds {count} clients; "
                f"set clients={count} or write another file"
            )

    @classmethod
    def count_clients(cls, options: Mapping[str, Any], run_seed: int) -> int:
        """Return how many clients the file holds."""
        return read_contents(Path(os.path.expanduser(options["path"]))).description.n_clients

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``, which every rank reads itself."""
        with opened(self._path) as file:
            train, val, test = (self._read(file, n, client_ids, dtype) for n in SPLITS)
            return Shards(client_ids, train, val, test)

    def _read(
        self, file: h5py.File, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype
    ) -> Split:
        description, offsets = self.description, self.contents.offsets(name)
        split, done = empty_split(description, name, client_ids, dtype), 0
        are_labels = description.task in ("classification", "sequence")
        # Clients whose rows follow each other are read at once.
        for run in np.split(client_ids, np.flatnonzero(np.diff(client_ids) != 1) + 1):
            if not len(run) or offsets[run[0]] == offsets[run[-1] + 1]:
                continue
            raise_if_stop_requested()
            stored = slice(offsets[run[0]], offsets[run[-1] + 1])
            rows = slice(done, done + stored.stop - stored.start)
            file[f"{name}/x"].read_direct(split.x.numpy(), stored, rows)
            targets = file[f"{name}/y"][stored].astype(np.int64 if are_labels else np.float64)
            split.y[rows].copy_(torch.from_numpy(targets))
            done = rows.stop
        if dtype.is_floating_point and self.divisor != 1:
            split.x.div_(self.divisor)
        bad = bad_row(split.x, split.y, description)
        if bad is not None:
            client = client_ids[np.searchsorted(split.offsets, bad[0], side="right") - 1]
            raise ValueError(f"/{name} has {bad[1]} of client {client}")
        return split


def _contents(file: h5py.File) -> Contents:
    version = _attribute(file, "version", int, VERSION)
    if version != VERSION:
        raise ValueError(f"its version is {version}, and only {VERSION} is known here")
    task = _attribute(file, "task", str, "classification")
    if task not in get_args(Task):
        raise ValueError(f"its attribute 'task' is '{task}'; {closest(task, get_args(Task))}")
    n_classes = _attribute(file, "n_classes", int)
    if (n_classes != 0) if task == "unlabelled" else (n_classes < 1):
        raise ValueError(
            f"its attribute 'n_classes' is {n_classes}, but its task is '{task}'; it must be 0 for "
            "'unlabelled' and at least 1 for others"
        )
    counts = [_counts(file, split, task, n_classes) for split in SPLITS]
    forms = {
        (*_form(_dataset(file, f"{s}/x")), len(n)) for s, n in zip(SPLITS, counts, strict=True)
    }
    if len(forms) > 1:
        raise ValueError(
            "train, val and test differ in shape, type or divisor of x, or in the number of clients"
        )
    ((shape, stored, divisor, _),) = forms
    for what, count in (("training", counts[0]), ("test", counts[2])):
        if count.min() < 1 and (what == "training" or count.any()):
            raise ValueError(f"client {count.argmin()} has no {what} sample")
    n_train, n_val, n_test = counts
    description = Description(
        *(_attribute(file, "source", str), shape, n_classes, n_train, n_val, n_test),
        task=cast(Task, task),
        class_names=_names(file, "class_names", n_classes),
        label_counts=_label_counts(file, n_classes),
        client_names=_names(file, "client_names", len(n_train)),
        preprocessing=_preprocessing(file),
    )
    partition, seed = _attribute(file, "partition", str), _attribute(file, "seed", int)
    return Contents(description, partition, seed, stored, divisor)


def _names(file: h5py.File, what: str, count: int) -> tuple[str, ...]:
    if what not in file:
        return ()
    names = json.loads(hdf5.all_values(_dataset(file, what)).tobytes())
    if not isinstance(names, list) or list(map(type, names)) != [str] * count:
        raise ValueError(f"/{what} is not a list of {count} texts in JSON, as bytes")
    check_texts(names, f"'{file.filename}' cannot be read: a name in /{what}")
    return tuple(names)


def _preprocessing(file: h5py.File) -> Preprocessing:
    if "preprocessing" not in file:
        return Preprocessing()
    return preprocessing_from(hdf5.all_values(_dataset(file, "preprocessing")).tobytes().decode())


def _label_counts(file: h5py.File, n_classes: int) -> np.ndarray | None:
    if "label_counts" not in file:
        return None
    counts = hdf5.all_values(_dataset(file, "label_counts"))
    if counts.dtype.kind not in "iu" or counts.shape != (n_classes,) or counts.min(initial=0) < 0:
        raise ValueError(f"/label_counts is not {n_classes} whole numbers from 0 on")
    return counts.astype(np.int64)


def _counts(file: h5py.File, split: str, task: str, n_classes: int) -> np.ndarray:
    """Samples of each client, after checking that the three data sets of ``split`` agree."""
    x, y, offsets = (_dataset(file, f"{split}/{name}") for name in ("x", "y", "offsets"))
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1:
        raise ValueError(f"/{split}/offsets is not one row of whole numbers")
    positions = x.shape[1:2] or ("positions of x",)
    per_sample = {"classification": (), "sequence": positions}.get(task, (n_classes,))
    kinds = {"classification": "iu", "regression": "biuf", "unlabelled": "biuf"}.get(task, "biu")
    if y.dtype.kind not in kinds or y.ndim != 1 + len(per_sample) or y.shape[1:] != per_sample:
        axes = ", ".join(["samples", *map(str, per_sample)])
        raise ValueError(
            f"/{split}/y is {y.dtype} of shape {y.shape}, but task '{task}' asks for "
            f"{'real' if 'f' in kinds else 'whole'} numbers of shape ({axes})"
        )
    rows = hdf5.all_values(offsets).astype(np.int64)
    if len(rows) < 2 or rows[0] != 0 or np.any(rows[1:] < rows[:-1]):
        raise ValueError(f"/{split}/offsets must begin with 0 and never fall")
    if not x.shape[:1] == y.shape[:1] == (rows[-1],):
        raise ValueError(
            f"/{split} has x of shape {x.shape} and y of shape {y.shape}, but its offsets "
            f"end at {rows[-1]}"
        )
    return np.diff(rows)


def _form(x: h5py.Dataset) -> tuple[tuple[int, ...], str, int]:
    """Shape of a sample, type and divisor of x."""
    divisor = _attribute(x, "divisor", int, 1)
    if x.dtype.name not in STORED or 0 in x.shape[1:] or not 1 <= divisor <= LARGEST_DIVISOR:
        raise ValueError(
            f"{x.name} is {x.dtype} of shape {x.shape} over {divisor}; it must be {STORED}, with a "
            f"number in each sample, over 1 to {LARGEST_DIVISOR}"
        )
    return tuple(map(int, x.shape[1:])), x.dtype.name, divisor


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    dataset = file.get(name)
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
        raise ValueError(f"it has no data set /{name}")
    return dataset


def _attribute(owner: Any, name: str, kind: type, default: Any = None) -> Any:
    value = owner.attrs.get(name, default)
    if not isinstance(value, (str, bytes) if kind is str else (int, np.integer)):
        words = "a text" if kind is str else "a whole number"
        raise ValueError(f"its attribute '{name}' is {one_line(repr(value), 80)}, not {words}")
    if isinstance(value, str):  # h5py escapes what is no text in UTF-8
        value = value.encode("utf-8", "replace")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else kind(value)


def write(
    path: Path, contents: Contents, blocks: Iterable[Shards], options: Mapping[str, Any]
) -> None:
    """Write the shards of all clients, in their order, to a file, which replaces one there."""
    try:
        # Two jobs may make the same file at once. This format has checksums of all that HDF5
        # itself needs to find the rows.
        with (
            replacing(path, secrets.token_hex(8)) as partial,
            h5py.File(partial, "w", libver=("v108", "v108")) as file,
        ):
            _lay_out(file, contents, options)
            for block in blocks:
                _append(file, contents, block)
    except (OSError, RuntimeError) as error:
        if not (isinstance(error, OSError) or "errno" in str(error)):
            raise  # not of HDF5, but of what makes the blocks
        raise RunError(f"'{path}' cannot be written: {disk_reason(error)}") from error


def _lay_out(file: h5py.File, contents: Contents, options: Mapping[str, Any]) -> None:
    description = contents.description
    file.attrs["version"] = VERSION
    _set_text(file, "source", description.source)
    _set_text(file, "partition", contents.partition)
    file.attrs["seed"] = contents.seed
    file.attrs["n_classes"] = description.n_classes
    _set_text(file, "task", description.task)
    _set_text(file, "options", json.dumps(dict(options), sort_keys=True))
    for what in ("class_names", "client_names"):
        if getattr(description, what):
            names = json.dumps(getattr(description, what)).encode()
            file.create_dataset(what, data=np.frombuffer(names, np.uint8))
    if description.preprocessing is not None and description.preprocessing.text != AS_THEY_ARE:
        text = description.preprocessing.text.encode()
        file.create_dataset("preprocessing", data=np.frombuffer(text, np.uint8))
    if description.label_counts is not None:
        file.create_dataset("label_counts", data=description.label_counts, dtype=np.int64)
    for split in SPLITS:
        offsets = contents.offsets(split)
        group = file.create_group(split)
        group.create_dataset("offsets", data=offsets)
        group.create_dataset("y", (offsets[-1], *description.target_shape), contents.stored_targets)
        x = group.create_dataset("x", (offsets[-1], *description.input_shape), contents.stored)
        x.attrs["divisor"] = contents.divisor


def _set_text(file: h5py.File, name: str, text: str) -> None:
    # Of fixed length: texts of variable length lie in a heap without checksum, and HDF5 2.0 was
    # seen to search a damaged one endlessly.
    form = h5py.string_dtype("utf-8", max(1, len(text.encode())))
    file.attrs.create(name, text, dtype=form)


def _append(file: h5py.File, contents: Contents, shards: Shards) -> None:
    first, last = shards.client_ids[[0, -1]]
    for name in SPLITS:
        rows = slice(*contents.offsets(name)[[first, last + 1]])
        split = getattr(shards, name)
        file[f"{name}/x"][rows] = split.x.numpy()
        if split.y.numel():
            file[f"{name}/y"][rows] = split.y.numpy()


def make(dataset: Dataset, output: Path, options: Mapping[str, Any], seed: int, dtype: str) -> None:
    """Write what ``dataset`` holds, made with ``options``, to a federated file."""
    description = dataset.description
    stored = "uint8" if dataset.divisor > 1 or dataset.is_uint8 else dataset.tokens_in or dtype
    partition = str(options.get("partition", "natural"))
    made_by = seed if dataset.seed is None else dataset.seed
    contents = Contents(description, partition, made_by, stored, dataset.divisor)
    row = math.prod(description.input_shape) * np.dtype(stored).itemsize
    sizes = description.n_samples * row
    check_memory(
        float(sizes.max()),
        f"client {sizes.argmax()}, of samples of shape {description.input_shape},",
    )
    block = np.cumsum(sizes) // BLOCK
    groups = np.split(np.arange(len(block)), np.flatnonzero(np.diff(block)) + 1)
    shards = (dataset.load(clients, getattr(torch, stored)) for clients in groups)
    write(output, contents, shards, options)
