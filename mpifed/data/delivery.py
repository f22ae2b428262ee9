"""How data reach the ranks that own them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import h5py
import numpy as np
import torch

from mpifed.data.base import Description, Shards, Split
from mpifed.data.federated_file import SPLITS, Contents, opened, read_contents
from mpifed.errors import InputError, RunError
from mpifed.mpi.communicator import Communicator

T = TypeVar("T")
# Bytes of x that are read, or sent to another rank, at once.
PIECE = 8 << 20

# The value in a piece for a tag that is neither 0 nor 1.
NO_TAG = 255

# (split, first row, end row) -> x as stored, y.
Fetch = Callable[[str, int, int], tuple[np.ndarray, np.ndarray]]


def agreed(communicator: Communicator, make: Callable[[], T]) -> T:
    """Return on every rank what ``make()`` returns on rank 0. Collective."""
    outcome: tuple[T | None, Exception | None] = (None, None)
    if communicator.rank == 0:
        try:
            outcome = (make(), None)
        except (InputError, RunError) as error:
            outcome = (None, error)
        except Exception as error:
            communicator.broadcast_object((None, RunError(f"rank 0 failed: {error}")))
            raise
    value, failure = communicator.broadcast_object(outcome)
    if failure is not None:
        raise failure
    return value


def deliver(
    path: Path,
    contents: Contents,
    client_ids: np.ndarray,
    dtype: torch.dtype,
    communicator: Communicator,
) -> Shards:
    """Return the shards of ``client_ids`` from the federated file ``path``. Collective."""
    sees = _sees(path, contents)
    wishes = communicator.gather_object(None if sees else client_ids)
    if wishes is not None:
        _serve(path, contents, wishes, communicator)
    if not sees:
        return _assemble(path, contents, client_ids, dtype, _sent(contents, communicator))
    with opened(path) as file:
        return _assemble(path, contents, client_ids, dtype, _read(file, contents))


def _sees(path: Path, contents: Contents) -> bool:
    try:
        return read_contents(path).same_rows(contents)
    except InputError:
        return False


def _serve(
    path: Path,
    contents: Contents,
    wishes: list[np.ndarray | None],
    communicator: Communicator,
) -> None:
    """Sends every rank that asks for clients their rows, in the order ``_assemble`` wants them."""
    if wishes[0] is not None:
        raise InputError(f"data.path is '{path}', which changed or vanished while it was in use")
    if all(wish is None for wish in wishes):
        return
    with opened(path) as file:
        fetch = _read(file, contents)
        for rank, client_ids in enumerate(wishes):
            if client_ids is None:
                continue
            for split in SPLITS:
                for start, stop in _pieces(contents, split, client_ids):
                    for values in fetch(split, start, stop):
                        communicator.send(values, rank)


def _read(file: h5py.File, contents: Contents) -> Fetch:
    def fetch(split: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = file[f"{split}/x"], file[f"{split}/y"]
        native = x.dtype.newbyteorder("=")
        return x[start:stop].astype(native, copy=False), _targets(y[start:stop], contents)

    return fetch


def _targets(y: np.ndarray, contents: Contents) -> np.ndarray:
    if contents.description.task == "multi_label":
        # A value that is neither 0 nor 1 must not become one of them as a byte.
        y = np.where((y == 0) | (y == 1), y, NO_TAG)
    return y.astype(contents.stored_targets, copy=False)


def _sent(contents: Contents, communicator: Communicator) -> Fetch:
    def fetch(split: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        rows = stop - start
        shape = (rows, *contents.description.input_shape)
        x = communicator.receive(shape, np.dtype(contents.stored), 0)
        targets = (rows, *contents.description.target_shape)
        return x, communicator.receive(targets, np.dtype(contents.stored_targets), 0)

    return fetch


def _pieces(contents: Contents, split: str, client_ids: np.ndarray) -> Iterator[tuple[int, int]]:
    """Rows of the clients, in their order, in pieces as long as runs and ``PIECE`` allow."""
    offsets = contents.offsets(split)
    shape = contents.description.input_shape
    row_bytes = max(1, int(np.prod(shape)) * np.dtype(contents.stored).itemsize)
    step = max(1, PIECE // row_bytes)
    breaks = np.flatnonzero(np.diff(client_ids) != 1) + 1
    for run in np.split(client_ids, breaks):
        if len(run) == 0:
            continue
        end = int(offsets[run[-1] + 1])
        for start in range(int(offsets[run[0]]), end, step):
            yield start, min(start + step, end)


def _assemble(
    path: Path, contents: Contents, client_ids: np.ndarray, dtype: torch.dtype, fetch: Fetch
) -> Shards:
    def split(name: str) -> Split:
        counts = np.diff(contents.offsets(name))[client_ids]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        x = allocated((int(offsets[-1]), *contents.description.input_shape), dtype)
        about = contents.description
        y = torch.empty((int(offsets[-1]), *about.target_shape), dtype=about.target_type(dtype))
        done = 0
        for start, stop in _pieces(contents, name, client_ids):
            rows = slice(done, done + stop - start)
            stored, labels = fetch(name, start, stop)
            x[rows].copy_(torch.from_numpy(stored))
            if dtype.is_floating_point and contents.divisor != 1:
                x[rows].div_(contents.divisor)
            y[rows].copy_(torch.from_numpy(labels))
            bad = bad_row(x[rows], y[rows], about)
            if bad is not None:
                row, what = bad
                client = client_ids[np.searchsorted(offsets, done + row, side="right") - 1]
                raise InputError(
                    f"data.path is '{path}', but /{name} has {what} in row {start + row}, "
                    f"of client {client}"
                )
            done = rows.stop
        return Split(x, y, offsets)

    train, val, test = map(split, SPLITS)
    return Shards(client_ids, train, val, test)


def allocated(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an unset tensor on memory from numpy, which asks for huge pages: faster to fill."""
    return torch.from_numpy(np.empty(shape, str(dtype).removeprefix("torch.")))


def bad_row(x: torch.Tensor, y: torch.Tensor, about: Description) -> tuple[int, str] | None:
    """Return the first row that cannot be used, and why; None where there is none."""
    if about.task in ("classification", "sequence"):
        wrong = (y < 0) | (y >= about.n_classes)
        if wrong.any():
            row, label = int(wrong.nonzero()[0][0]), int(y[wrong][0])
            return row, f"the label {label}, which is not among 0 .. {about.n_classes - 1},"
    elif about.task == "multi_label" and (y == NO_TAG).any():
        return int((y == NO_TAG).any(dim=1).nonzero()[0]), "a tag that is neither 0 nor 1"
    for values, what in ((x, "a value"), (y, "a target")):
        if not values.is_floating_point():
            continue
        # numpy does this twenty times as fast as torch 2.13.
        finite = np.isfinite(values.numpy())
        if not finite.all():
            row = int(finite.reshape(len(x), -1).all(axis=1).argmin())
            return row, f"{what} that is not finite"
    return None
