"""From one data set to clients' shards.

A source (digits, IDX files, ...) describes its samples as a ``Pool`` and reads them once, from
first to last, on rank 0. This module deals them to clients, splits each client's samples and sends
every sample to the rank that hosts its client. A rank holds its own samples and one piece of the
source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from mpifed.data.base import Description, Shards, Split, Task
from mpifed.data.delivery import allocated
from mpifed.data.partition import counts_60_20_20, partition, split_60_20_20
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

PIECE = 4096
"""Samples that a source reads at once."""

Pieces = Callable[[], Iterable[np.ndarray]]
"""Reads a source: arrays (k, *input_shape) of its samples in order, k = ``PIECE`` until the end."""


@dataclass(frozen=True)
class Pool:
    """A data set before it is dealt.

    Attributes
    ----------
    source : str
        Name of the data set.
    labels : ndarray
        What ``Split.y`` holds, of any numpy type: (samples,) for classification, else
        (samples, n_classes).
    n_classes : int
        Labels, tags or target columns.
    input_shape : tuple of int
        Shape of a sample.
    stored : str
        numpy type in which the source reads x.
    divisor : int
        A sample is what the source reads over this number.
    task : str
        See ``Description``.
    class_names : tuple of str
        See ``Description``.
    """

    source: str
    labels: np.ndarray
    n_classes: int
    input_shape: tuple[int, ...]
    stored: str
    divisor: int = 1
    task: Task = "classification"
    class_names: tuple[str, ...] = ()


class Dealt(Protocol):
    """Which samples each client owns, and for which of the three splits."""

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return training, validation and test samples of each client, int64 (n_clients,) each."""

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the numbers of the client's training, validation and test samples, in their order.

        int64 each, counted from 0 in the source.
        """


def describe(pool: Pool, dealt: Dealt) -> Description:
    """Return the description of ``pool`` dealt to clients."""
    counts = dealt.counts()
    return Description(
        pool.source,
        pool.input_shape,
        pool.n_classes,
        *counts,
        task=pool.task,
        class_names=pool.class_names,
    )


@dataclass(frozen=True)
class InFileOrder:
    """Clients keep the order of the source; a share of each one's samples is for testing.

    Of m samples, ``test_fraction`` m, rounded and never all, are drawn for testing by ``seed`` and
    the client. The validation split is empty.

    Attributes
    ----------
    indices : list of ndarray
        Sample numbers of each client, int64.
    seed : int
        Seed of the draw.
    test_fraction : float
        Share of each client's samples, in [0, 1).
    """

    indices: list[np.ndarray]
    seed: int
    test_fraction: float = 0.0

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sizes = np.array([len(own) for own in self.indices], np.int64)
        n_test = np.minimum(np.floor(self.test_fraction * sizes + 0.5).astype(np.int64), sizes - 1)
        return sizes - n_test, np.zeros_like(sizes), n_test

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        own = self.indices[client]
        n_test = int(self.counts()[2][client])
        tested = np.zeros(len(own), bool)
        tested[stream(self.seed, "split", client=client).permutation(len(own))[:n_test]] = True
        return own[~tested], own[:0], own[tested]


@dataclass(frozen=True)
class Assignment:
    """Each client's samples in random order, 60/20/20, by the seed and the client.

    Attributes
    ----------
    indices : list of ndarray
        Sample numbers of each client, int64.
    seed : int
        Seed of the random order.
    """

    indices: list[np.ndarray]
    seed: int

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return counts_60_20_20(np.array([len(own) for own in self.indices], np.int64))

    def describe(self, pool: Pool) -> Description:
        """Return the description of ``pool`` dealt so."""
        return describe(pool, self)

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return split_60_20_20(self.indices[client], stream(self.seed, "split", client=client))


def assign(pool: Pool, n_clients: int, seed: int, name: str, **options: float) -> Assignment:
    """Deal ``pool`` to clients; the same on every rank.

    Parameters
    ----------
    pool : Pool
        The data set.
    n_clients : int
        Number of clients.
    seed : int
        Seed of the partition and of each client's split.
    name : str
        Name of the partition.
    **options
        Options of partitions; those that this one does not take are ignored.
    """
    rng = stream(seed, "partition")
    return Assignment(partition(name, pool.labels, n_clients, rng, options), seed)


def load_pooled(
    pool: Pool,
    assignment: Dealt,
    pieces: Pieces,
    client_ids: np.ndarray,
    dtype: torch.dtype,
    communicator: Communicator,
) -> Shards:
    """Return the shards of ``client_ids``. Collective.

    Parameters
    ----------
    pool : Pool
        The data set.
    assignment : Dealt
        Who owns which of its samples.
    pieces : callable
        Reads the source in pieces of ``PIECE`` samples; called on rank 0 only.
    client_ids : ndarray
        Clients hosted here, int64, ascending.
    dtype : torch.dtype
        Type of x. x is divided by ``pool.divisor`` for a floating-point type and left as stored for
        ``torch.uint8``.
    communicator : Communicator
        All ranks of the run.
    """
    wishes = communicator.gather_object(client_ids)
    order, offsets = _order(assignment, client_ids)
    x = allocated((len(order), *pool.input_shape), dtype)
    if wishes is None:
        arriving = _receive(pool, order, communicator)
    else:
        orders = [_order(assignment, ids)[0] for ids in wishes]
        arriving = _distribute(pieces(), orders, communicator)
    for places, samples in arriving:
        values = torch.from_numpy(samples).to(dtype)
        if dtype.is_floating_point and pool.divisor != 1:
            values /= pool.divisor
        x[torch.from_numpy(places)] = values
    y = torch.from_numpy(pool.labels[order]).to(describe(pool, assignment).target_type(dtype))
    ends = np.cumsum([rows[-1] for rows in offsets])
    train, val, test = (
        Split(x[end - rows[-1] : end], y[end - rows[-1] : end], rows)
        for end, rows in zip(ends, offsets, strict=True)
    )
    return Shards(client_ids, train, val, test)


def _order(assignment: Dealt, client_ids: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The samples of these clients, all training, then validation, then test, and the offsets."""
    parts = [assignment.split(int(client)) for client in client_ids]
    order, offsets = [np.zeros(0, np.int64)], []
    for which in range(3):
        order.extend(part[which] for part in parts)
        sizes = [len(part[which]) for part in parts]
        offsets.append(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    return np.concatenate(order), offsets


def _places(order: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """For each piece of the source that matters: its first sample, and which of ``order`` it has.

    The latter are ascending by sample, so that sender and receiver agree.
    """
    by_sample = np.argsort(order, kind="stable")
    piece = order[by_sample] // PIECE
    for places in np.split(by_sample, np.flatnonzero(np.diff(piece)) + 1):
        if len(places):
            yield int(order[places[0]]) // PIECE * PIECE, places


def _distribute(
    pieces: Iterable[np.ndarray], orders: list[np.ndarray], communicator: Communicator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sends every rank its samples piece by piece; yields those of this rank, with their places."""
    wanted = [dict(_places(order)) for order in orders]
    first = 0
    for piece in pieces:
        for rank, places_by_piece in enumerate(wanted):
            places = places_by_piece.get(first)
            if places is None:
                continue
            samples = piece[orders[rank][places] - first]
            if rank == communicator.rank:
                yield places, samples
            else:
                communicator.send(samples, rank)
        first += len(piece)


def _receive(
    pool: Pool, order: np.ndarray, communicator: Communicator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for _, places in _places(order):
        yield (
            places,
            communicator.receive((len(places), *pool.input_shape), np.dtype(pool.stored), 0),
        )
