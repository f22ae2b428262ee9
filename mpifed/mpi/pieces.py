"""Cutting arrays into what goes into one message."""

from __future__ import annotations

import numpy as np

# Bytes in one MPI message at most.
PIECE = 1 << 28

# Bytes of a row from which rows need not be put side by side before they leave. That takes as long
# as sending large ones; for small ones MPI is quicker with a single block.
WIDE = 1 << 14


def pieces(size: int, itemsize: int) -> list[slice]:
    """Return consecutive parts of ``size`` items, each of at most ``PIECE`` bytes."""
    step = max(1, PIECE // itemsize)
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def in_place(row: int, all_rows: int) -> bool:
    """Return whether rows are sent from where they are, as one message."""
    return row >= WIDE and all_rows <= PIECE


def chosen_rows(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Copy some rows; numpy's ``take`` would first copy all of them where columns are cut."""
    made = np.empty((len(chosen), *rows.shape[1:]), rows.dtype)
    for place, row in enumerate(chosen.tolist()):
        made[place] = rows[row]
    return made
