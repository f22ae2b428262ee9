"""Ways to deal the samples of one data set to clients.

A partition is a function of (labels, n_clients, rng), labels int64 (samples,), whose keyword-only
parameters are its options. It returns the sample numbers of each client, int64, ascending. For any
labels it terminates, gives every sample to exactly one client and each client ``min_samples`` or
more, or raises ``InputError`` where that is impossible. ``PARTITIONS`` names them. ``kmeans`` takes
samples instead of labels; ``iid`` and ``contiguous`` only count them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from mpifed.components.schema import options_of
from mpifed.data.clustering import Solver
from mpifed.data.many_clusters import equal_parts
from mpifed.errors import InputError, closest

Name = Literal["contiguous", "dirichlet", "iid", "pathological"]
ContiguousRule = Literal["floor", "array_split"]
Alpha = Annotated[float, Ge(1e-6), Le(1e9)]
"""A symmetric Dirichlet parameter that double precision can draw with."""
Classes = Annotated[int, Ge(1)]
MinSamples = Annotated[int, Ge(2)]

FEWEST = 5
"""Samples of a client by default: the fewest of which 60/20/20 leaves 3, 1 and 1."""


def iid(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: MinSamples = FEWEST,
) -> list[np.ndarray]:
    """Deal all samples in random order; sizes differ by at most one."""
    _check_enough(len(labels), n_clients, min_samples)
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = np.arange(len(labels)) % n_clients
    return _grouped(owner, n_clients)


def dirichlet(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: MinSamples = FEWEST,
    dirichlet_alpha: Alpha = 0.4,
) -> list[np.ndarray]:
    """Deal by Dirichlet allocation (Marfoq et al. 2021, App. I.1.1, after Wang et al. 2020).

    The samples of each label go to the clients with probabilities ~ Dir(alpha), drawn anew for
    every label: the smaller alpha, the more the clients differ, in labels and in size. The paper
    draws again until every client has enough. Here, clients below ``min_samples`` are filled up one
    sample at a time from the client that has most, out of its most frequent label.
    """
    _check_enough(len(labels), n_clients, min_samples)
    classes, sizes = np.unique(labels, return_counts=True)
    alpha = np.full(n_clients, dirichlet_alpha)
    counts = np.stack([rng.multinomial(size, rng.dirichlet(alpha)) for size in sizes], axis=1)
    _fill_up(counts, min_samples)
    return _deal(labels, classes, counts, rng)


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
    return _deal(labels, classes, counts, rng)


def contiguous(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: MinSamples = FEWEST,
    contiguous_rule: ContiguousRule = "floor",
) -> list[np.ndarray]:
    """Deal runs of consecutive samples, in the order of the source (Gasanov et al. 2022, sec. 6).

    ``floor`` is the paper's rule: of r samples client i of n gets floor(i r / n) up to
    floor((i + 1) r / n), that excluded, i = 0 .. n - 1. ``array_split`` is the published code's:
    the first r mod n clients get one more than the others.

    >>> [len(own) for own in contiguous(np.zeros(17), 3, np.random.default_rng(0))]
    [5, 6, 6]
    """
    _check_enough(len(labels), n_clients, min_samples)
    every = np.arange(len(labels))
    if contiguous_rule == "array_split":
        return np.array_split(every, n_clients)
    return np.split(every, [client * len(labels) // n_clients for client in range(1, n_clients)])


def kmeans(
    points: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: MinSamples = FEWEST,
    kmeans_solver: Solver = "own",
) -> list[np.ndarray]:
    """Deal clusters of equal size (Dieuleveut et al. 2025, sec. 6): clients as unlike as can be.

    ``points`` is float64 (samples, dimension); sizes differ by at most one. See ``clustering``.
    """
    _check_enough(len(points), n_clients, min_samples)
    points = points.reshape(len(points), -1).astype(np.float64)
    return _grouped(equal_parts(points, n_clients, rng, kmeans_solver), n_clients)


PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "contiguous": contiguous,
    "dirichlet": dirichlet,
    "iid": iid,
    "pathological": pathological,
}


def partition(
    name: str,
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    options: Mapping[str, Any],
) -> list[np.ndarray]:
    """Return the partition called ``name``, with those of ``options`` that it takes."""
    if name not in PARTITIONS:
        raise InputError(f"data.partition is '{name}'; {closest(name, PARTITIONS)}")
    return _with_own_options(PARTITIONS[name], labels, n_clients, rng, options)


def partition_points(
    points: np.ndarray, n_clients: int, rng: np.random.Generator, options: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return the partition ``kmeans`` of ``points``, with those of ``options`` that it takes."""
    return _with_own_options(kmeans, points, n_clients, rng, options)


def _with_own_options(
    function: Callable[..., list[np.ndarray]],
    samples: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    options: Mapping[str, Any],
) -> list[np.ndarray]:
    taken = {option: options[option] for option in options_of(function) if option in options}
    return function(samples, n_clients, rng, **taken)


def counts_60_20_20(n_samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return training, validation and test samples out of ``n_samples`` (at least 2), any shape.

    A fifth, rounded, for validation, the same for test but at least one, the rest for training.
    """
    fifth = (2 * np.asarray(n_samples, np.int64) + 5) // 10
    n_test = np.maximum(fifth, 1)
    return n_samples - fifth - n_test, fifth, n_test


def split_60_20_20(
    indices: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one client's samples in random order, cut into training, validation and test."""
    n_train, n_val, _ = counts_60_20_20(np.int64(len(indices)))
    train, val, test = np.split(rng.permutation(indices), [n_train, n_train + n_val])
    return train, val, test


def _check_enough(n_samples: int, n_clients: int, min_samples: int) -> None:
    if n_samples < n_clients * min_samples:
        raise InputError(
            f"clients is {n_clients}, but {n_samples} samples are enough for at most "
            f"{n_samples // min_samples} clients of {min_samples} samples (data.min_samples)"
        )


def _fill_up(counts: np.ndarray, min_samples: int) -> None:
    """Moves samples in ``counts`` (clients, labels) until no client is below ``min_samples``."""
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


def _deal(
    labels: np.ndarray, classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Random samples of each label to the clients, as many as ``counts`` (clients, labels) says."""
    n_clients = len(counts)
    owner = np.empty(len(labels), np.int64)
    for column, label in enumerate(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members] = np.repeat(np.arange(n_clients), counts[:, column])
    return _grouped(owner, n_clients)


def _grouped(owner: np.ndarray, n_clients: int) -> list[np.ndarray]:
    sizes = np.bincount(owner, minlength=n_clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
