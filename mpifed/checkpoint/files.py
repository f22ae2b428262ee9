"""Checkpoints: one HDF5 file each, of the same form for any number of ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from mpifed.checkpoint.copies import Part
from mpifed.checkpoint.format import LIBRARY, Meta, lay_out, read_description
from mpifed.checkpoint.gathering import feed, fill
from mpifed.checkpoint.integrity import Damaged, seal, verify, verify_on_disk
from mpifed.checkpoint.stored_state import opened_checkpoint, read_state, selection
from mpifed.errors import PeerFailure, RunError
from mpifed.federation.clients import Federation
from mpifed.io.atomic import partial_of, replacing
from mpifed.io.hdf5 import disk_reason, whole
from mpifed.mpi.communicator import Communicator

__all__ = [
    "Damaged",
    "Meta",
    "listed",
    "newest",
    "path_of",
    "prune",
    "read_arrays",
    "read_meta",
    "read_state",
    "round_of",
    "what_is_left",
    "write",
    "writes_together",
]

NAME = re.compile(r"round-([0-9]{6,18})\.h5")


def path_of(directory: Path, round: int) -> Path:
    """Return the path of the checkpoint of ``round`` in ``directory``."""
    return directory / f"round-{round:06d}.h5"


def round_of(path: Path) -> int:
    """Return the round in the name of a checkpoint."""
    return int(path.stem.removeprefix("round-"))


def listed(directory: Path) -> list[Path]:
    """Return the checkpoints in ``directory``, newest first, intact or damaged."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Damaged(f"{directory} cannot be read: {error.strerror}") from None
    found = [directory / name for name in names if NAME.fullmatch(name)]
    return sorted(found, key=round_of, reverse=True)


def prune(directory: Path, keep: int) -> None:
    """Remove all but the ``keep`` newest checkpoints."""
    for path in listed(directory)[keep:]:
        path.unlink(missing_ok=True)


def write(
    path: Path,
    meta: Meta,
    parts: Sequence[Part],
    arrays: Mapping[str, np.ndarray],
    federation: Federation,
    communicator: Communicator,
    keep: int | None = None,
) -> None:
    """Write a checkpoint; collective over ``communicator``."""
    failure: RunError | None = None
    try:
        if communicator.rank == 0:
            _write_first(path, meta, parts, arrays, federation, communicator)
            _tidy(path.parent, meta.round, keep)
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
            places = lay_out(partial, meta, parts, arrays, federation.n_clients)
            if writes_together(communicator):
                _reserve(partial)
            announced = True
            communicator.broadcast_object([place.name for place in places])
            if writes_together(communicator):
                _write_together(partial, parts, federation, communicator)
                communicator.barrier()
                seal(partial)
            else:
                fill(partial, places, parts, federation, communicator)
            verify_on_disk(partial)
    except (OSError, RuntimeError):
        if not announced:
            communicator.broadcast_object(None)
        raise


def _write_part(
    partial: Path, parts: Sequence[Part], federation: Federation, communicator: Communicator
) -> None:
    """Add the rows of another rank than 0; its part of a collective call."""
    order = communicator.broadcast_object(None)
    if order is None:
        return
    if writes_together(communicator):
        _write_together(partial, parts, federation, communicator)
        communicator.barrier()
    else:
        feed(order, parts, federation, communicator)


def _tidy(directory: Path, round: int, keep: int | None) -> None:
    for later in listed(directory):
        if round_of(later) > round:
            later.unlink(missing_ok=True)
    if keep is not None:
        prune(directory, keep)


def what_is_left(directory: Path) -> str:
    """Return a sentence that names the newest intact checkpoint in ``directory``, if any."""
    found, _ = _first_intact(listed(directory))
    intact = found and f"{found[0].name} is intact, and --resume continues from it"
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


def _reserve(path: Path) -> None:
    """Allocate disk space for all of ``path``: HDF5 fails badly when a disk becomes full."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def newest(directory: Path) -> tuple[tuple[Path, Meta] | None, list[str]]:
    """Return the newest intact checkpoint of a run directory, and what is wrong with newer
    ones.
    """
    return _first_intact(listed(directory / "checkpoints"))


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
    verify(path)
    with opened_checkpoint(path) as file:
        return read_description(file)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays that the exchange stored, by name; raise ``Damaged``."""
    with opened_checkpoint(path) as file:
        return {
            name.removeprefix("exchange."): whole(data)
            for name, data in file["server"].items()
            if name.startswith("exchange.")
        }
