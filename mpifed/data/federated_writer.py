"""Writes the federated HDF5 file; ``federated_format`` says what is in one."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifed.data.base import Shards
from mpifed.data.federated_format import SPLITS, VERSION, Contents
from mpifed.errors import RunError
from mpifed.reading.hdf5 import disk_reason
from mpifed.replacing import replacing


def write(
    path: Path, contents: Contents, blocks: Iterable[Shards], options: Mapping[str, Any]
) -> None:
    """Write the shards of all clients to a federated file, which replaces one of the same name.

    The file is written beside its name, flushed to disk and renamed. ``path`` therefore never holds
    an incomplete file.

    Parameters
    ----------
    path : Path
        The file to write.
    contents : Contents
        What it will hold.
    blocks : iterable of Shards
        The clients in order, any number in a block, with x of type ``contents.stored``. Only one
        block is held at a time.
    options : mapping
        How the data were made; kept in the file as JSON.

    Raises
    ------
    RunError
        If the disk refuses the file.
    ValueError
        If the blocks are not all clients in order.
    """
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
