"""Support and query: two parts of a client's training samples, to adapt on and to evaluate on."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.data.base import Split


def support(split: Split, fraction: float) -> Split:
    """Return the first ``fraction`` of every client's samples, rounded down, at least one.

    A client's last sample is left for the query, unless it has no other or ``fraction`` is one.

    Parameters
    ----------
    split : Split
        Samples of the clients.
    fraction : float
        Share of the samples, in (0, 1].

    Returns
    -------
    Split

    Examples
    --------
    >>> split = Split(torch.zeros(6, 2), torch.zeros(6), np.array([0, 5, 6]))
    >>> support(split, 0.8).counts, query(split, 0.8).counts
    (array([4, 1]), array([1, 1]))
    """
    return _part(split, np.zeros_like(split.counts), _sizes(split.counts, fraction))


def query(split: Split, fraction: float) -> Split:
    """Return the samples that ``support`` leaves; all samples of a client where it leaves none.

    Parameters
    ----------
    split : Split
        Samples of the clients.
    fraction : float
        Share of the support, in (0, 1].

    Returns
    -------
    Split
    """
    sizes = _sizes(split.counts, fraction)
    return _part(split, np.where(sizes < split.counts, sizes, 0), split.counts)


def _sizes(counts: np.ndarray, fraction: float) -> np.ndarray:
    """Samples in the support of each client, int64."""
    if fraction == 1:
        return counts
    # fraction * count may round to just below an integer that is meant.
    sizes = np.floor(fraction * counts + 1e-9).astype(np.int64)
    return np.minimum(np.maximum(np.clip(sizes, None, counts - 1), 1), counts)


def _part(split: Split, first: np.ndarray, end: np.ndarray) -> Split:
    """The samples ``first`` to ``end`` of every client, counted from its first one."""
    if not first.any() and (end == split.counts).all():
        return split
    starts, sizes = split.offsets[:-1] + first, end - first
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    chosen = torch.from_numpy(rows)
    return Split(split.x[chosen], split.y[chosen], offsets)
