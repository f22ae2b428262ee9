"""What partitions share: types of their options, counts of samples, and samples by counts."""

from __future__ import annotations

import heapq
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from mpifed.errors import InputError
from mpifed.random import stream

Alpha = Annotated[float, Ge(1e-6), Le(1e9)]
"""A symmetric Dirichlet parameter that double precision can draw with."""

MinSamples = Annotated[int, Ge(2)]

Fraction = Annotated[float, Gt(0), Le(1)]
"""Share of all samples that is used."""

FEWEST = 5
"""Samples of a client by default: the fewest of which 60/20/20 leaves 3, 1 and 1."""


def share_of(n_samples: int, fraction: float, seed: int) -> np.ndarray:
    """Return which samples are used where ``fraction`` of them is, int64, ascending.

    Parameters
    ----------
    n_samples : int
        All samples.
    fraction : float
        Share that is used, in (0, 1]; rounded to one sample at least.
    seed : int
        Seed of the draw.
    """
    count = max(1, int(np.floor(fraction * n_samples + 0.5)))
    return np.sort(stream(seed, "fraction").permutation(n_samples)[:count])


def check_enough(n_samples: int, n_clients: int, min_samples: int) -> None:
    """Raise ``InputError`` if there are fewer than ``min_samples`` for each client."""
    if n_samples < n_clients * min_samples:
        most = n_samples // min_samples
        enough = f"enough for at most {most} client{'s' * (most != 1)} of {min_samples} samples"
        if not most:
            enough = f"fewer than the {min_samples} of one client; give more, or set a lower number"
        raise InputError(
            f"clients is {n_clients}, but {n_samples} samples are {enough} (data.min_samples)"
        )


def fill_up(counts: np.ndarray, min_samples: int) -> None:
    """Move samples in ``counts`` (clients, labels) until no client is below ``min_samples``."""
    totals = counts.sum(axis=1)
    donors = [(-int(total), client) for client, total in enumerate(totals) if total > min_samples]
    heapq.heapify(donors)
    for client in np.flatnonzero(totals < min_samples):
        while totals[client] < min_samples:
            _, donor = heapq.heappop(donors)
            label = counts[donor].argmax()
            counts[donor, label] -= 1
            counts[client, label] += 1
            totals[donor] -= 1
            totals[client] += 1
            if totals[donor] > min_samples:
                heapq.heappush(donors, (-int(totals[donor]), donor))


def deal(
    labels: np.ndarray, classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Give clients random samples of each label, as many as ``counts`` (clients, labels) says."""
    n_clients = len(counts)
    owner = np.empty(len(labels), np.int64)
    for column, label in enumerate(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members] = np.repeat(np.arange(n_clients), counts[:, column])
    return grouped(owner, n_clients)


def grouped(owner: np.ndarray, n_clients: int) -> list[np.ndarray]:
    """Return the samples of each client, int64, ascending, of ``owner`` (samples,)."""
    sizes = np.bincount(owner, minlength=n_clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
