"""Support and query: a client's training samples in two parts, one to adapt on, one to judge by."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.data.base import Split


def support(split: Split, fraction: float) -> Split:
    """The first ``fraction`` of every client's samples, rounded down, at least one.

    A client's last sample is left for the query, unless it has no other or ``fraction`` is one.
    """
    return _part(split, np.zeros_like(split.counts), _sizes(split.counts, fraction))


def query(split: Split, fraction: float) -> Split:
    """What ``support`` leaves of every client's samples; all of them where it leaves none."""
    sizes = _sizes(split.counts, fraction)
    return _part(split, np.where(sizes < split.counts, sizes, 0), split.counts)


def _sizes(counts: np.ndarray, fraction: float) -> np.ndarray:
    if fraction == 1:
        return counts
    # 0.8 * 5 is 4.000...1 or 3.999...9 by the way it is written; the sum of both is meant.
    sizes = np.floor(fraction * counts + 1e-9).astype(np.int64)
    return np.minimum(np.maximum(np.clip(sizes, None, counts - 1), 1), counts)


def _part(split: Split, first: np.ndarray, end: np.ndarray) -> Split:
    """The samples ``first`` to ``end`` of every client, counted from its own first one."""
    if not first.any() and (end == split.counts).all():
        return split
    starts, sizes = split.offsets[:-1] + first, end - first
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    chosen = torch.from_numpy(rows)
    return Split(split.x[chosen], split.y[chosen], offsets)
