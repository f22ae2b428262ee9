"""Ways to deal the samples of one data set to clients.

A partition is a function of (labels, n_clients, rng), labels int64 (samples,), whose keyword-only
parameters are its options. It returns the sample numbers of each client, int64, ascending. For any
labels it terminates, gives every sample to exactly one client and each client ``min_samples`` or
more, or raises ``InputError`` where that is impossible. ``PARTITIONS`` names them. ``OTHERS`` takes
something else instead of labels: ``kmeans`` samples, ``natural`` the source of each sample (of
which it may leave some out), ``pachinko`` coarse and fine labels. ``contiguous``, ``iid`` and
``quantity_skew`` only count labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from mpifed.components.schema import options_of
from mpifed.data.clustering import Solver
from mpifed.data.dealing import FEWEST, Alpha, MinSamples, check_enough, deal, fill_up, grouped
from mpifed.data.many_clusters import equal_parts
from mpifed.data.natural import natural
from mpifed.data.pachinko import pachinko
from mpifed.data.pathological import Classes, pathological
from mpifed.data.quantity import quantity_skew
from mpifed.errors import InputError, closest

__all__ = [
    "FEWEST",
    "OTHERS",
    "PARTITIONS",
    "Alpha",
    "Classes",
    "ContiguousRule",
    "MinSamples",
    "Name",
    "contiguous",
    "counts_60_20_20",
    "deal_by",
    "dirichlet",
    "iid",
    "kmeans",
    "natural",
    "pachinko",
    "partition",
    "partition_points",
    "pathological",
    "quantity_skew",
    "split_60_20_20",
]

Name = Literal["contiguous", "dirichlet", "iid", "pathological", "quantity_skew"]
ContiguousRule = Literal["floor", "array_split"]


def iid(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: MinSamples = FEWEST,
) -> list[np.ndarray]:
    """Deal all samples in random order; sizes differ by at most one."""
    check_enough(len(labels), n_clients, min_samples)
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = np.arange(len(labels)) % n_clients
    return grouped(owner, n_clients)


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
    check_enough(len(labels), n_clients, min_samples)
    classes, sizes = np.unique(labels, return_counts=True)
    alpha = np.full(n_clients, dirichlet_alpha)
    counts = np.stack([rng.multinomial(size, rng.dirichlet(alpha)) for size in sizes], axis=1)
    fill_up(counts, min_samples)
    return deal(labels, classes, counts, rng)


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
    check_enough(len(labels), n_clients, min_samples)
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
    check_enough(len(points), n_clients, min_samples)
    points = points.reshape(len(points), -1).astype(np.float64)
    return grouped(equal_parts(points, n_clients, rng, kmeans_solver), n_clients)


PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "contiguous": contiguous,
    "dirichlet": dirichlet,
    "iid": iid,
    "pathological": pathological,
    "quantity_skew": quantity_skew,
}

OTHERS: dict[str, Callable[..., list[np.ndarray]]] = {
    "kmeans": kmeans,
    "natural": natural,
    "pachinko": pachinko,
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


def deal_by(
    name: str,
    given: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    options: Mapping[str, Any],
) -> list[np.ndarray]:
    """Return the partition called ``name`` of what it deals by, with the options that it takes.

    Parameters
    ----------
    name : str
        A key of ``PARTITIONS`` or ``OTHERS``.
    given : ndarray
        Labels, or what ``OTHERS`` take instead; the first axis is samples.
    n_clients : int
        Number of clients.
    rng : Generator
        For all draws.
    options : mapping
        Options of any partitions; those that this one does not take are ignored.
    """
    return _with_own_options({**PARTITIONS, **OTHERS}[name], given, n_clients, rng, options)


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
