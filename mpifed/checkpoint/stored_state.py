"""Reading the tensors of a state back from a checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from mpifed import state as states
from mpifed.checkpoint.disk import PIECE
from mpifed.checkpoint.integrity import Damaged
from mpifed.io.hdf5 import disk_reason, opened


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
    release: Callable[[], None] | None = None,
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
            fresh = tensor
            if release is None or not is_rows:
                form = torch.contiguous_format
                fresh = torch.empty_like(tensor, device="cpu", memory_format=form)
            target = fresh.detach().numpy()
            same = stored.shape[is_rows:] == target.shape[is_rows:] and stored.dtype == target.dtype
            if not same or (is_rows and len(hosted) and hosted[-1] >= len(stored)):
                found = f"{stored.dtype} {stored.shape}"
                raise Damaged(f"{path} holds '{name}' as {found}, which is not this run's form")
            if target.size and is_rows:
                _read_rows(stored, target, hosted, release)
            elif target.size:
                stored.read_direct(target)
            values[name] = fresh.to(tensor.device)
    return states.replace_tensors(state, values)


def _read_rows(
    stored: h5py.Dataset,
    target: np.ndarray,
    hosted: np.ndarray,
    release: Callable[[], None] | None,
) -> None:
    step = len(hosted) if release is None else max(1, PIECE * len(hosted) // target.nbytes)
    for first in range(0, len(hosted), step):
        ids = hosted[first : first + step]
        stored.read_direct(target, selection(ids), slice(first, first + len(ids)))
        if release is not None:
            release()
