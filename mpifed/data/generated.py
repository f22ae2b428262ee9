"""Shards that their owner makes: every sample a function of the seed and its client."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from mpifed.data.base import Description, Shards, Split, SplitName, Task, same_for_all
from mpifed.data.delivery import allocated
from mpifed.data.federated_file import SPLITS
from mpifed.errors import InputError, RunError
from mpifed.io.memory import check_memory
from mpifed.watchdog import heartbeat

# (client, split, samples) -> x (samples, *input_shape), y (samples, *target_shape).
Make = Callable[[int, str, int], tuple[np.ndarray, np.ndarray]]

# Batches after which samples of a kind are given up that has not turned up often enough.
MOST_BATCHES = 100_000


def alike(
    source: str,
    input_shape: tuple[int, ...],
    n_classes: int,
    n_clients: int,
    counts: tuple[int, int, int],
    task: Task,
) -> Description:
    """Return the description of clients that all have the same number of samples."""
    most, name = max(zip(counts, ("n_train", "n_val", "n_test"), strict=True))
    numbers = math.prod(input_shape) + (0 if task == "unlabelled" else n_classes)
    check_memory(
        4.0 * numbers * sum(counts),
        f"data.{name} is {most}, which for one client, with samples of shape {input_shape},",
    )
    n_train, n_val, n_test = (same_for_all(count, n_clients) for count in counts)
    return Description(source, input_shape, n_classes, n_train, n_val, n_test, task)


def make_shards(
    about: Description, client_ids: np.ndarray, dtype: torch.dtype, make: Make
) -> Shards:
    """Return the shards of ``client_ids``, made client by client."""
    splits = [_unset(about, name, client_ids, dtype) for name in SPLITS]
    for position, client in enumerate(client_ids):
        heartbeat.step()
        for name, split in zip(SPLITS, splits, strict=True):
            _fill(about, split, position, int(client), partial(make, int(client), name))
    train, val, test = splits
    return Shards(client_ids, train, val, test)


def split_made(
    about: Description, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype, make: Make
) -> Split:
    """Return one split of ``make_shards`` alone; the other parameters are the same."""
    split = _unset(about, name, client_ids, dtype)
    for position, client in enumerate(client_ids):
        heartbeat.step()
        _fill(about, split, position, int(client), partial(make, int(client), name))
    return split


def _fill(
    about: Description,
    split: Split,
    position: int,
    client: int,
    make: Callable[[int], tuple[np.ndarray, np.ndarray]],
) -> None:
    """Write what ``make`` returns for so many samples to the rows of the client at ``position``."""
    rows = split.rows_of(position)
    if rows.start == rows.stop:
        return
    x, y = make(rows.stop - rows.start)
    split.x[rows].copy_(torch.from_numpy(x))
    split.y[rows].copy_(torch.from_numpy(y))
    for values in (split.x[rows], split.y[rows]):
        if values.is_floating_point() and not np.isfinite(values.numpy()).all():
            raise InputError(
                f"the data set {about.source} with such options has a value that is "
                f"not finite in {values.dtype} among the samples of client {client}"
            )


def _unset(about: Description, name: str, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
    counts = getattr(about, f"n_{name}")[client_ids]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    x = allocated((int(offsets[-1]), *about.input_shape), dtype)
    y = allocated((int(offsets[-1]), *about.target_shape), about.target_type(dtype))
    return Split(x, y, offsets)


def drawn_until(
    count: int,
    draw: Callable[[], np.ndarray],
    wanted: Callable[[np.ndarray], np.ndarray],
    what: str,
) -> np.ndarray:
    """Return the first ``count`` samples that are wanted, from as many batches as that takes."""
    kept = [draw()[:0]]
    found = 0
    for _ in range(MOST_BATCHES):
        if found >= count:
            return np.concatenate(kept)[:count]
        batch = draw()
        kept.append(batch[wanted(batch)])
        found += len(kept[-1])
    raise RunError(f"only {found} samples of {count} for {what} turned up; more do not come")


def unlabelled(rows: list[np.ndarray], dimension: int) -> Split:
    """Return unlabelled samples as a split."""
    offsets = np.cumsum([0, *(len(own) for own in rows)], dtype=np.int64)
    x = torch.from_numpy(np.concatenate([np.empty((0, dimension)), *rows]))
    return Split(x, x.new_empty((len(x), 0)), offsets)


def no_targets(x: np.ndarray) -> np.ndarray:
    """Return the targets of the unlabelled samples ``x``: float64 (samples, 0)."""
    return np.empty((len(x), 0))
