"""Shards of few labels: the partition ``pathological`` (McMahan et al. 2017, sec. 3)."""

from __future__ import annotations

import heapq
from typing import Annotated

import numpy as np
from annotated_types import Ge

from mpifed.data.dealing import FEWEST, MinSamples, deal
from mpifed.errors import InputError

Classes = Annotated[int, Ge(1)]


def pathological(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: MinSamples = FEWEST,
    classes_per_client: Classes = 2,
) -> list[np.ndarray]:
    """Deal exactly ``classes_per_client`` labels to each client (McMahan et al. 2017, sec. 3).

    There, data sorted by label are cut into equal shards, of which every client gets some; a shard
    may hold two labels. Here shards end where labels end: every label is cut into a number of
    shards about proportional to its size, and a client gets shards of different labels.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    smallest = -(-min_samples // classes_per_client)
    shards = _shards_of(classes, sizes, n_clients, classes_per_client, smallest)
    holds = _hand_out(shards, n_clients, classes_per_client, rng)
    counts = np.zeros(holds.shape, np.int64)
    for label, (size, cut) in enumerate(zip(sizes, shards, strict=True)):
        counts[holds[:, label], label] = size // cut + (np.arange(cut) < size % cut)
    return deal(labels, classes, counts, rng)


def _shards_of(
    classes: np.ndarray, sizes: np.ndarray, n_clients: int, each: int, smallest: int
) -> np.ndarray:
    """Shards of each label: ``n_clients * each`` in all, none below ``smallest`` samples.

    They are given out one by one to the label whose shards are the largest so far (the method of
    d'Hondt), so that they become about equally large.
    """
    if each > len(classes):
        raise InputError(
            f"data.classes_per_client is {each}, but the data have only {len(classes)} labels"
        )
    if n_clients * each < len(classes):
        raise InputError(
            f"data.classes_per_client is {each}, with which {n_clients} clients cannot hold all "
            f"{len(classes)} labels; it must be at least {-(-len(classes) // n_clients)}"
        )
    most = np.minimum(sizes // smallest, n_clients)
    if most.min() < 1:
        short = most.argmin()
        raise InputError(
            f"data.partition is 'pathological', but label {classes[short]} has only {sizes[short]} "
            f"samples; data.min_samples and data.classes_per_client ask for {smallest}"
        )
    if most.sum() < n_clients * each:
        raise InputError(
            f"clients is {n_clients}, but the data give at most {most.sum() // each} clients of "
            f"{each} labels with {smallest} samples (data.classes_per_client, data.min_samples)"
        )
    shards = np.ones(len(classes), np.int64)
    queue = [(-size / 2, label) for label, size in enumerate(sizes) if most[label] > 1]
    heapq.heapify(queue)
    for _ in range(n_clients * each - len(classes)):
        _, label = heapq.heappop(queue)
        shards[label] += 1
        if shards[label] < most[label]:
            heapq.heappush(queue, (-sizes[label] / (shards[label] + 1), label))
    return shards


def _hand_out(
    shards: np.ndarray, n_clients: int, each: int, rng: np.random.Generator
) -> np.ndarray:
    """Which client gets a shard of which label: bool (clients, labels), ``each`` True a row.

    Client by client, ``each`` labels are drawn with the number of their shards left as weights. A
    label with as many shards left as there are clients must be taken; then the rest can always be
    handed out, and there are never more than ``each`` such labels.
    """
    left = shards.copy()
    holds = np.zeros((n_clients, len(shards)), bool)
    for client in range(n_clients):
        with np.errstate(divide="ignore"):
            # The smallest of exponential times are a weighted sample without replacement.
            times = rng.exponential(size=len(left)) / left
        times[left == n_clients - client] = -1
        taken = np.argsort(times, kind="stable")[:each]
        holds[client, taken] = True
        left[taken] -= 1
    return holds
