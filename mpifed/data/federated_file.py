"""The federated HDF5 file: all clients' shards, each client's rows together, in client order."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import h5py
import numpy as np

from mpifed.data.base import Description, Shards, SplitName, Task
from mpifed.data.named_files import check_there
from mpifed.errors import InputError, RunError, closest, one_line
from mpifed.io import hdf5
from mpifed.io.atomic import replacing
from mpifed.io.hdf5 import disk_reason

VERSION = 1
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")
STORED = ("uint8", "float32", "float64")
# Every whole number up to it is one of float64.
LARGEST_DIVISOR = 2**53 - 1

TASKS: tuple[str, ...] = get_args(Task)
# What the root must have; docs/data.md says more.
ATTRIBUTES = {
    "n_classes": "a whole number, 0 for task 'unlabelled'",
    "source": "a text, where the samples are from",
    "partition": "a text, how they were dealt to clients",
    "seed": "a whole number, of the partition",
}


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
        """Type of y in files that mpifed writes, and in which y travels between ranks."""
        task = self.description.task
        if task == "regression":
            return self.stored if self.stored != "uint8" else "float64"
        return "int64" if task in ("classification", "sequence") else "uint8"

    def same_rows(self, other: Contents) -> bool:
        """Return whether both hold rows of one form, for the same clients, in the same places."""
        mine, others = self.description, other.description
        return (
            (self.stored, self.divisor, mine.input_shape, mine.n_classes, mine.source)
            == (other.stored, other.divisor, others.input_shape, others.n_classes, others.source)
            and (self.partition, self.seed, mine.task) == (other.partition, other.seed, others.task)
            and all(np.array_equal(self.offsets(s), other.offsets(s)) for s in SPLITS)
        )


@contextlib.contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open ``path`` for reading; whatever HDF5 cannot read becomes an ``InputError``."""
    try:
        with hdf5.opened(path) as file:
            yield file
    except InputError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"data.path is '{path}', which cannot be read: {disk_reason(error)}; it must be an "
            "HDF5 file that is whole and holds all of its data"
        ) from error


def read_contents(path: Path) -> Contents:
    """Return what the federated file ``path`` holds, checked without reading its rows."""
    check_there(path)
    if not os.access(path, os.R_OK):
        raise InputError(f"data.path is '{path}', which this user has no permission to read")
    with opened(path) as file:
        return _Reading(file, path).contents()


@dataclass(frozen=True)
class _Reading:
    file: h5py.File
    path: Path

    def contents(self) -> Contents:
        version = self._attribute(self.file, "version", int, VERSION)
        if version != VERSION:
            raise self._refusal(f"its version is {version}, and only {VERSION} is known here")
        missing = [name for name in ATTRIBUTES if name not in self.file.attrs]
        if missing:
            words = ", ".join(f"'{name}' ({ATTRIBUTES[name]})" for name in missing)
            raise self._refusal(f"its root lacks attributes; add {words} (docs/data.md)")
        task = self._task()
        n_classes = self._attribute(self.file, "n_classes", int)
        if task == "unlabelled" and n_classes != 0:
            raise self._refusal(f"its attribute 'n_classes' is {n_classes}, but it is unlabelled")
        if task != "unlabelled" and n_classes < 1:
            raise self._refusal(
                f"its attribute 'n_classes' is {n_classes}, not at least 1 as for task '{task}'; "
                "files without targets have the attribute 'task' with the text 'unlabelled'"
            )
        counts = [self._counts(split, task, n_classes) for split in SPLITS]
        if len({len(count) for count in counts}) > 1:
            raise self._refusal("train, val and test are not for the same number of clients")
        for split, count in (("training", counts[0]), ("test", counts[2])):
            if count.min() < 1 and (split == "training" or count.any()):
                raise self._refusal(f"client {count.argmin()} has no {split} sample")
        shape, stored, divisor = self._form()
        source = self._attribute(self.file, "source", str)
        about = Description(source, shape, n_classes, counts[0], counts[1], counts[2], task)
        names, label_counts = self._class_names(n_classes), self._label_counts(n_classes)
        return Contents(
            replace(about, class_names=names, label_counts=label_counts),
            self._attribute(self.file, "partition", str),
            self._attribute(self.file, "seed", int),
            stored,
            divisor,
        )

    def _class_names(self, n_classes: int) -> tuple[str, ...]:
        if "class_names" not in self.file:
            return ()
        stored = self._dataset("class_names")
        if stored.dtype != np.uint8 or stored.ndim != 1:
            raise self._refusal("/class_names is not a row of bytes")
        try:
            names = json.loads(hdf5.whole(stored).tobytes())
        except (ValueError, RecursionError):
            raise self._refusal("/class_names is not JSON") from None
        if not isinstance(names, list) or list(map(type, names)) != [str] * n_classes:
            raise self._refusal(f"/class_names is not a list of {n_classes} texts")
        return tuple(names)

    def _label_counts(self, n_classes: int) -> np.ndarray | None:
        if "label_counts" not in self.file:
            return None
        stored = self._dataset("label_counts")
        if stored.dtype.kind not in "iu" or stored.shape != (n_classes,):
            raise self._refusal(f"/label_counts is not {n_classes} whole numbers")
        found = hdf5.whole(stored).astype(np.int64)
        if found.min(initial=0) < 0:
            raise self._refusal("/label_counts has numbers below 0")
        return found

    def _task(self) -> Task:
        task = self._attribute(self.file, "task", str, "classification")
        if task not in TASKS:
            raise self._refusal(f"its attribute 'task' is '{task}'; {closest(task, TASKS)}")
        return cast(Task, task)

    def _counts(self, split: str, task: Task, n_classes: int) -> np.ndarray:
        """Samples of each client, after checking that the three data sets of ``split`` agree."""
        x, y, offsets = (self._dataset(f"{split}/{name}") for name in ("x", "y", "offsets"))
        labels = y if task == "classification" else offsets
        for name, found in (("y", labels), ("offsets", offsets)):
            if found.dtype.kind not in "iu" or found.ndim != 1:
                raise self._refusal(f"/{split}/{name} is not one row of whole numbers")
        if task != "classification":
            per_sample = x.shape[1:2] if task == "sequence" else (n_classes,)
            self._check_targets(split, y, task, per_sample)
        rows = hdf5.whole(offsets).astype(np.int64)
        if len(rows) < 2 or rows[0] != 0 or np.any(rows[1:] < rows[:-1]):
            raise self._refusal(f"/{split}/offsets must begin with 0 and never fall")
        if not x.shape[:1] == y.shape[:1] == (rows[-1],):
            raise self._refusal(
                f"/{split} has x of shape {x.shape} and y of shape {y.shape}, but its offsets "
                f"end at {rows[-1]}"
            )
        return np.diff(rows)

    def _check_targets(
        self, split: str, y: h5py.Dataset, task: Task, per_sample: tuple[int, ...]
    ) -> None:
        whole = task in ("multi_label", "sequence")
        kinds, words = ("biu", "whole") if whole else ("biuf", "real")
        if y.dtype.kind not in kinds:
            raise self._refusal(f"/{split}/y is {y.dtype}, not {words} numbers, for task '{task}'")
        if y.ndim != 2 or y.shape[1:] != per_sample:
            asked = ", ".join(map(str, per_sample)) or "positions of x"
            source = "x" if task == "sequence" else "'n_classes'"
            raise self._refusal(
                f"/{split}/y has the shape {y.shape}, but task '{task}' with this {source} asks "
                f"for (samples, {asked})"
            )

    def _form(self) -> tuple[tuple[int, ...], str, int]:
        """Shape of a sample, type and divisor of x: the same in all three splits."""
        forms = []
        for split in SPLITS:
            x = self._dataset(f"{split}/x")
            if x.dtype.name not in STORED:
                raise self._refusal(f"/{split}/x is {x.dtype}; allowed: {', '.join(STORED)}")
            divisor = self._attribute(x, "divisor", int, 1)
            if not 1 <= divisor <= LARGEST_DIVISOR:
                raise self._refusal(
                    f"the divisor of /{split}/x is {divisor}, not from 1 to {LARGEST_DIVISOR}"
                )
            if 0 in x.shape[1:]:
                raise self._refusal(f"/{split}/x has the shape {x.shape}: a sample has no number")
            forms.append((tuple(map(int, x.shape[1:])), x.dtype.name, divisor))
        if len(set(forms)) > 1:
            raise self._refusal("x of train, val and test differ in shape, type or divisor")
        return forms[0]

    def _dataset(self, name: str) -> h5py.Dataset:
        found = self.file.get(name)
        if not isinstance(found, h5py.Dataset):
            raise self._refusal(f"it has no data set /{name}")
        return found

    def _attribute(self, owner: Any, name: str, kind: type, default: Any = None) -> Any:
        value = owner.attrs.get(name, default)
        allowed = (str, bytes) if kind is str else (int, np.integer)
        if not isinstance(value, allowed):
            words = "a text" if kind is str else "a whole number"
            raise self._refusal(
                f"its attribute '{name}' is {one_line(repr(value), 80)}, not {words}"
            )
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else kind(value)

    def _refusal(self, what: str) -> InputError:
        said = f"data.path is '{self.path}', which is not a usable federated file"
        return InputError(f"{said}: {what}")


def write(
    path: Path, contents: Contents, blocks: Iterable[Shards], options: Mapping[str, Any]
) -> None:
    """Write the shards of all clients to a federated file, which replaces one of the same name."""
    with _made(path) as partial:
        with _disk(path):
            # This format has checksums of all that HDF5 itself needs to find the rows.
            file = h5py.File(partial, "w", libver=("v108", "v108"))
        _fill(file, path, contents, blocks, options)


@contextlib.contextmanager
def _made(path: Path) -> Iterator[Path]:
    """``replacing``, whose own ``OSError`` becomes a ``RunError``, unlike one of its block."""
    made = replacing(path, secrets.token_hex(8))  # two jobs may make the same file at once
    with _disk(path):
        partial = made.__enter__()
    try:
        yield partial
    except BaseException:
        made.__exit__(*sys.exc_info())
        raise
    with _disk(path):
        made.__exit__(None, None, None)


def _fill(
    file: h5py.File,
    path: Path,
    contents: Contents,
    blocks: Iterable[Shards],
    options: Mapping[str, Any],
) -> None:
    """Writes everything to ``file``, which is to become ``path``, and closes it."""
    try:
        with _disk(path):
            _lay_out(file, contents, options)
        done = 0
        for block in blocks:
            with _disk(path):
                _append(file, contents, block, done)
            done += len(block.client_ids)
        if done != contents.description.n_clients:
            raise ValueError(f"expected {contents.description.n_clients} clients, got {done}")
    except BaseException:
        # What went wrong first says more than that HDF5 cannot close the file after it.
        with contextlib.suppress(Exception):
            file.close()
        raise
    with _disk(path):
        file.close()


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What a disk or HDF5 refuses becomes a ``RunError``."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise RunError(f"'{path}' cannot be written: {disk_reason(error)}") from error


def _lay_out(file: h5py.File, contents: Contents, options: Mapping[str, Any]) -> None:
    about = contents.description
    file.attrs["version"] = VERSION
    _set_text(file, "source", about.source)
    _set_text(file, "partition", contents.partition)
    file.attrs["seed"] = contents.seed
    file.attrs["n_classes"] = about.n_classes
    _set_text(file, "task", about.task)
    _set_text(file, "options", json.dumps(dict(options), sort_keys=True))
    if about.class_names:
        names = json.dumps(about.class_names).encode()
        file.create_dataset("class_names", data=np.frombuffer(names, np.uint8))
    if about.label_counts is not None:
        file.create_dataset("label_counts", data=about.label_counts, dtype=np.int64)
    for split in SPLITS:
        offsets = contents.offsets(split)
        group = file.create_group(split)
        group.create_dataset("offsets", data=offsets)
        group.create_dataset("y", (offsets[-1], *about.target_shape), contents.stored_targets)
        x = group.create_dataset("x", (offsets[-1], *about.input_shape), contents.stored)
        x.attrs["divisor"] = contents.divisor


def _set_text(file: h5py.File, name: str, text: str) -> None:
    # Of fixed length: texts of variable length lie in a heap without checksum, and HDF5 2.0 was
    # seen to search a damaged one endlessly.
    form = h5py.string_dtype("utf-8", max(1, len(text.encode())))
    file.attrs.create(name, text, dtype=form)


def _append(file: h5py.File, contents: Contents, block: Shards, done: int) -> None:
    clients = np.arange(done, done + len(block.client_ids))
    if not np.array_equal(block.client_ids, clients):
        raise ValueError(f"expected the clients from {done} on, got {block.client_ids}")
    for split in SPLITS:
        rows = slice(*contents.offsets(split)[[done, done + len(clients)]])
        shard = getattr(block, split)
        file[f"{split}/x"][rows] = shard.x.numpy()
        if shard.y.numel():
            file[f"{split}/y"][rows] = shard.y.numpy()
