"""Checkpoints: one HDF5 file each, of the same form for any number of ranks."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from mpifed import state as states
from mpifed.checkpoint.format import LIBRARY, description, read_description, stored_array
from mpifed.checkpoint.format import Meta as Meta
from mpifed.checkpoint.integrity import Damaged as Damaged
from mpifed.checkpoint.integrity import seal, verify_on_disk, verify_seal
from mpifed.errors import PeerFailure, RunError
from mpifed.federation.federation import Federation
from mpifed.io.atomic import partial_of, replacing
from mpifed.io.hdf5 import disk_reason, opened
from mpifed.mpi.communicator import Communicator
from mpifed.state import on_host

NAME = re.compile(r"round-([0-9]{6,18})\.h5")

# Largest number of bytes that are sent at once, where a row is not longer.
PIECE = 1 << 24

# Bytes that HDF5 may need besides a tensor's own.
ROOM = 1 << 11


@dataclass(frozen=True)
class Part:
    """One tensor of a state, in the host's memory."""

    name: str
    values: np.ndarray
    is_rows: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of one client's row, or of the whole tensor where it is the server's."""
        shape = self.values.shape[1:] if self.is_rows else self.values.shape
        return int(np.prod(shape, dtype=np.int64)) * self.values.itemsize


def parts(state: Any, shared_is_rows: bool) -> list[Part]:
    """Return the tensors of a state as NumPy arrays, without a copy where they are on the CPU."""
    return [
        Part(name, on_host(tensor), is_rows)
        for name, tensor, is_rows in states.tensors(state, shared_is_rows)
    ]


def path_of(directory: Path, round: int) -> Path:
    """Return the path of the checkpoint of ``round`` in ``directory``."""
    return directory / f"round-{round:06d}.h5"


def round_of(path: Path) -> int:
    """Return the round in the name of a checkpoint."""
    return int(path.stem.removeprefix("round-"))


def checkpoints_in(directory: Path) -> list[Path]:
    """Return the checkpoints in ``directory``, newest first, intact or damaged."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Damaged(f"{directory} cannot be read: {error.strerror}") from None
    paths = [directory / name for name in names if NAME.fullmatch(name)]
    return sorted(paths, key=round_of, reverse=True)


def prune(directory: Path, keep: int, best: int | None = None) -> None:
    """Remove all but the ``keep`` newest checkpoints, and that of the round ``best``."""
    for path in checkpoints_in(directory)[keep:]:
        if round_of(path) != best:
            path.unlink(missing_ok=True)


def write(
    path: Path,
    meta: Meta,
    parts: Sequence[Part],
    arrays: Mapping[str, np.ndarray],
    federation: Federation,
    communicator: Communicator,
    keep: int | None = None,
    best: int | None = None,
) -> None:
    """Write a checkpoint; collective over ``communicator``."""
    failure: RunError | None = None
    try:
        if communicator.rank == 0:
            _write_first(path, meta, parts, arrays, federation, communicator)
            _tidy(path.parent, meta.round, keep, best)
        else:
            _write_part(partial_of(path), parts, federation, communicator)
    except (OSError, RuntimeError, Damaged) as error:
        failure = RunError(
            f"the checkpoint {path} cannot be written: {disk_reason(error)}; "
            f"{what_is_left(path.parent)}"
        )
        failure.__cause__ = error
    if failure is not None and writes_together(communicator):
        # The others may wait for this rank inside HDF5, where no message reaches them.
        raise failure
    # All wait until the file is complete, or known to have failed.
    written = communicator.broadcast_object(failure is None)
    if failure is not None:
        raise failure
    if not written:
        raise PeerFailure


def _write_first(
    path: Path,
    meta: Meta,
    parts: Sequence[Part],
    arrays: Mapping[str, np.ndarray],
    federation: Federation,
    communicator: Communicator,
) -> None:
    """Write the file and verify it on disk; rank 0's part of a collective call."""
    announced = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            offsets = _lay_out(partial, description(meta, arrays), parts, federation.n_clients)
            announced = communicator.broadcast_object(True)
            if writes_together(communicator):
                _write_together(partial, parts, federation, communicator)
            else:
                with partial.open("r+b", buffering=0) as file:
                    for part in parts:
                        if part.name in offsets:
                            file.seek(offsets[part.name])
                            for rows in _rows_of(part, federation, communicator):
                                _write_all(file, rows)
            seal(partial)
            verify_on_disk(partial)
    except (OSError, RuntimeError):
        if not announced:
            communicator.broadcast_object(False)
        raise


def _lay_out(path: Path, content: bytes, parts: Sequence[Part], n_clients: int) -> dict[str, int]:
    """Write the description and reserve space for all tensors; returns where each begins."""
    path.write_bytes(content)
    rows = sum(part.row_bytes * (n_clients if part.is_rows else 1) for part in parts)
    # On disk before HDF5 writes, which fails badly when a disk becomes full.
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, len(content) + rows + ROOM * (len(parts) + 1))
    # Allocated at once: later it could not be while ranks write.
    room = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    room.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    room.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    offsets = {}
    with h5py.File(path, "r+", libver=LIBRARY) as file:
        for part in parts:
            shape = (n_clients, *part.values.shape[1:]) if part.is_rows else part.values.shape
            group = file["clients" if part.is_rows else "server"]
            if not shape:
                group[part.name] = part.values  # h5py reserves no space for a single number
                continue
            dataset = group.create_dataset(part.name, shape, part.values.dtype, dcpl=room)
            if dataset.size:
                offsets[part.name] = int(dataset.id.get_offset())
    return offsets


def _rows_of(
    part: Part, federation: Federation, communicator: Communicator
) -> Iterator[np.ndarray]:
    """Yield a tensor in pieces of at most ``PIECE`` bytes or one row, received from its hosts."""
    if not part.is_rows:
        yield part.values
        return
    step = max(1, PIECE // part.row_bytes)
    for first in range(0, federation.n_clients, step):
        owners = federation.owner[first : first + step]
        hosted = _hosted_rows(part, federation, first, first + step)
        if not owners.any():
            yield hosted
            continue
        rows = np.empty((len(owners), *part.values.shape[1:]), part.values.dtype)
        rows[owners == 0] = hosted
        for rank in np.unique(owners[owners > 0]):
            theirs = owners == rank
            shape = (int(theirs.sum()), *rows.shape[1:])
            rows[theirs] = communicator.receive(shape, rows.dtype, int(rank))
        yield rows


def _hosted_rows(part: Part, federation: Federation, first: int, last: int) -> np.ndarray:
    """Return the rows of the clients from ``first`` to ``last`` that this rank hosts."""
    start, stop = np.searchsorted(federation.hosted, (first, last))
    return part.values[start:stop]


def _write_all(file: io.FileIO, values: np.ndarray) -> None:
    """Write numbers where the file stands; unlike h5py, this lets other threads run."""
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    while data:
        data = data[file.write(data) :]


def _write_part(
    partial: Path, parts: Sequence[Part], federation: Federation, communicator: Communicator
) -> None:
    """Add the rows of another rank than 0; its part of a collective call."""
    if not communicator.broadcast_object(None):
        return
    if writes_together(communicator):
        _write_together(partial, parts, federation, communicator)
        return
    for part in parts:
        if not part.is_rows or not part.row_bytes:
            continue
        step = max(1, PIECE // part.row_bytes)
        for first in range(0, federation.n_clients, step):
            rows = _hosted_rows(part, federation, first, first + step)
            if len(rows):
                communicator.send(rows, 0)


def _tidy(directory: Path, round: int, keep: int | None, best: int | None) -> None:
    for later in checkpoints_in(directory):
        if round_of(later) > round:
            later.unlink(missing_ok=True)
    if keep is not None:
        prune(directory, keep, best)


def what_is_left(directory: Path) -> str:
    """Return a sentence that names the newest intact checkpoint in ``directory``, if any."""
    try:
        newest, _ = _first_intact(checkpoints_in(directory))
    except Damaged as error:  # what is reported is another error
        return str(error)
    intact = newest and f"{newest[0].name} is intact, and --resume continues from it"
    return intact or "there is no checkpoint to continue from"


def writes_together(communicator: Communicator) -> bool:
    """Return whether every rank writes its own rows: several ranks and parallel HDF5 in h5py."""
    return communicator.size > 1 and bool(h5py.get_config().mpi)


def _write_together(
    path: Path, parts: Sequence[Part], federation: Federation, communicator: Communicator
) -> None:
    """Write the rows of this rank, and on rank 0 the server's tensors, by parallel HDF5."""
    with h5py.File(path, "r+", driver="mpio", comm=communicator.mpi4py, libver=LIBRARY) as file:
        for part in parts:
            if part.is_rows and len(federation.hosted):
                file["clients"][part.name][selection(federation.hosted)] = part.values
            elif part.values.ndim and not part.is_rows and communicator.rank == 0:
                file["server"][part.name][...] = part.values
        file.flush()
    communicator.barrier()


def newest(directory: Path) -> tuple[tuple[Path, Meta] | None, list[str]]:
    """Return the newest intact checkpoint of a run directory, and what is wrong with newer
    ones.
    """
    return _first_intact(checkpoints_in(directory / "checkpoints"))


def _first_intact(paths: Sequence[Path]) -> tuple[tuple[Path, Meta] | None, list[str]]:
    """Return the first checkpoint that can be read, as ``newest`` does."""
    passed_over: list[str] = []
    for path in paths:
        try:
            return (path, read_meta(path)), passed_over
        except Damaged as error:
            passed_over.append(str(error))
    return None, passed_over


def read_meta(path: Path) -> Meta:
    """Return what an intact checkpoint records besides the state; raise ``Damaged``."""
    verify_seal(path)
    with opened_checkpoint(path) as file:
        return read_description(file)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays that the exchange stored, by name; raise ``Damaged``."""
    with opened_checkpoint(path) as file:
        return {
            name.removeprefix("exchange."): stored_array(data)
            for name, data in file["server"].items()
            if name.startswith("exchange.")
        }


def selection(ids: np.ndarray) -> slice | np.ndarray:
    """Return ascending ``ids`` for h5py: a slice, much faster, where they are consecutive."""
    if len(ids) and ids[-1] - ids[0] == len(ids) - 1:
        return slice(int(ids[0]), int(ids[-1]) + 1)
    return ids


@contextlib.contextmanager
def opened_checkpoint(path: Path) -> Iterator[h5py.File]:
    """Open ``path`` for reading; errors of reading become ``Damaged``."""
    try:
        with opened(path) as file:
            yield file
    except Damaged:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} cannot be read: {disk_reason(error)}") from error


def read_state(
    path: Path,
    state: Any,
    shared_is_rows: bool,
    hosted: np.ndarray,
) -> Any:
    """Return ``state`` with the stored tensors; each rank reads the rows of the ``hosted``
    clients.
    """
    values = {}
    with opened_checkpoint(path) as file:
        for name, tensor, is_rows in states.tensors(state, shared_is_rows):
            group = file["clients" if is_rows else "server"]
            if not isinstance(group.get(name), h5py.Dataset):
                raise Damaged(f"{path} lacks the state '{name}'")
            stored = group[name]
            form = torch.contiguous_format
            fresh = torch.empty_like(tensor, device="cpu", memory_format=form)
            target = fresh.detach().numpy()
            same = stored.shape[is_rows:] == target.shape[is_rows:] and stored.dtype == target.dtype
            if not same or (is_rows and len(hosted) and hosted[-1] >= len(stored)):
                remedy = (
                    ""
                    if is_rows
                    else ": rows of clients are declared as state.shared(), follows() or client()"
                )
                raise Damaged(
                    f"{path} holds '{name}' as {stored.dtype} {stored.shape}, and this run as "
                    f"{target.dtype} {target.shape}{remedy}"
                )
            if target.size and is_rows:
                stored.read_direct(target, selection(hosted))
            elif target.size:
                stored.read_direct(target)
            values[name] = fresh.to(tensor.device)
    return states.replace_tensors(state, values)
