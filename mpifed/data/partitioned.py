"""Base class of data sets whose samples are read from one source and dealt to clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from annotated_types import Ge, Le

from mpifed.data.base import Dataset, Description, Shards, Split, Task
from mpifed.data.delivery import agreed, allocated
from mpifed.data.images import angles, rotated
from mpifed.data.partitions import (
    FEWEST,
    PARTITIONS,
    Alpha,
    Choose,
    Classes,
    Fraction,
    Law,
    MinSamples,
    Name,
    Spread,
    counts_60_20_20,
    deal_by,
    partition,
    share_of,
    split_60_20_20,
)
from mpifed.errors import InputError, closest
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

# Samples that a source reads at once.
PIECE = 4096

# Reads a source: arrays (k, *input_shape) of its samples in order, k = ``PIECE`` until the end.
Pieces = Callable[[], Iterable[np.ndarray]]


@dataclass(frozen=True)
class Pool:
    """A data set before it is dealt."""

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
        """Return the numbers of the client's training, validation and test samples, in their
        order.
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
    """Clients keep the order of the source; a share of each one's samples is for testing."""

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
    """Each client's samples in random order, 60/20/20, by the seed and the client."""

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
    """Deal ``pool`` to clients; the same on every rank."""
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
    """Return the shards of ``client_ids``. Collective."""
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
    """For each piece of the source that matters: its first sample, and which of ``order``
    it has.
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


@dataclass(frozen=True)
class InTurn:
    """Each client's samples in the order of the source, the first 60 % for training, then
    20/20.
    """

    indices: list[np.ndarray]

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return counts_60_20_20(np.array([len(own) for own in self.indices], np.int64))

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_train, n_val, _ = counts_60_20_20(np.int64(len(self.indices[client])))
        train, val, test = np.split(self.indices[client], [n_train, n_train + n_val])
        return train, val, test


@dataclass(frozen=True)
class Published:
    """Each client's samples in the order of the source, tested on those published for testing."""

    indices: list[np.ndarray]
    is_test: np.ndarray

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_test = np.array([int(self.is_test[own].sum()) for own in self.indices], np.int64)
        sizes = np.array([len(own) for own in self.indices], np.int64)
        return sizes - n_test, np.zeros_like(sizes), n_test

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        own = self.indices[client]
        tested = self.is_test[own]
        return own[~tested], own[:0], own[tested]


@dataclass(frozen=True)
class Consecutive:
    """Each client's samples one after the other: training, then validation, then test samples."""

    sizes: np.ndarray

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_train, n_val, n_test = self.sizes.T.copy()
        return n_train, n_val, n_test

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first = int(self.sizes[:client].sum())
        ends = first + np.cumsum(self.sizes[client])
        train, val, test = np.split(np.arange(first, ends[-1]), ends[:-1] - first)
        return train, val, test


Parts = Literal["60_20_20", "in_order", "published"]


@dataclass(frozen=True)
class Source:
    """What a reader found in its files; rank 0 has it."""

    pool: Pool
    pieces: Pieces
    owner: np.ndarray | None = None
    coarse: np.ndarray | None = None
    is_test: np.ndarray | None = None
    is_text: bool = False
    remarks: tuple[str, ...] = ()


class DealtDataset(Dataset):
    """Samples of one source, dealt to clients by a partition and split by each of them.

    Parameters
    ----------
    partition : str
        How samples are dealt to the clients.
    dirichlet_alpha : float
        Concentration of the partition ``dirichlet``: the larger, the more alike clients are.
    classes_per_client : int
        Labels that a client has in the partition ``pathological``.
    quantity_law : {'dirichlet', 'lognormal', 'power_law'}
        Law of the sizes in the partition ``quantity_skew``.
    quantity_alpha : float
        Concentration of sizes under ``quantity_law`` dirichlet.
    quantity_sigma : float
        Standard deviation of the logarithm of sizes under ``quantity_law`` lognormal.
    quantity_exponent : float
        Exponent of sizes under ``quantity_law`` power_law.
    min_samples : int
        Fewest samples that a client may get.
    fraction : float
        Share of all samples that is used, drawn by the seed.
    split : {'60_20_20', 'in_order', 'published'}
        How a client's samples become training, validation and test samples: 60/20/20 at random, the
        same in the order of the source, or as they were published.
    rotations : list of float, optional
        Angles in degrees: each client's pictures are turned by one of them. [0, 90, 180, 270] makes
        four clusters of clients.
    rotation_spread : float
        Largest further angle of a client in degrees, drawn by the seed.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        read: Callable[[], Source],
        further: Mapping[str, Any] | None = None,
        *,
        partition: Name = "dirichlet",
        dirichlet_alpha: Alpha = 0.4,
        classes_per_client: Classes = 2,
        quantity_law: Law = "dirichlet",
        quantity_alpha: Alpha = 0.5,
        quantity_sigma: Spread = 1.0,
        quantity_exponent: Spread = 1.0,
        min_samples: MinSamples = FEWEST,
        fraction: Fraction = 1.0,
        split: Parts = "60_20_20",
        rotations: list[Annotated[float, Ge(-360), Le(360)]] | None = None,
        rotation_spread: Annotated[float, Ge(0), Le(360)] = 0.0,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self._communicator = communicator
        self._pieces: Pieces = _nothing
        options = {
            "dirichlet_alpha": dirichlet_alpha,
            "classes_per_client": classes_per_client,
            "quantity_law": quantity_law,
            "quantity_alpha": quantity_alpha,
            "quantity_sigma": quantity_sigma,
            "quantity_exponent": quantity_exponent,
            "min_samples": min_samples,
            **(further or {}),
        }

        def deal() -> tuple[Pool, Dealt, np.ndarray | None, tuple[str, ...]]:
            source = read()
            self._pieces = source.pieces
            indices = _deal(source, n_clients, self.seed, partition, fraction, options)
            dealt = _splits(source, indices, self.seed, split)
            return source.pool, dealt, _label_counts(source, dealt, n_clients), source.remarks

        self._pool, self._dealt, counts, self._remarks = agreed(communicator, deal)
        self.description = replace(describe(self._pool, self._dealt), label_counts=counts)
        self.divisor, self.is_uint8 = self._pool.divisor, self._pool.stored == "uint8"
        self._angles = angles(n_clients, self.seed, rotations, rotation_spread)
        if n_clients < len(rotations or ()):
            self._remarks += (
                f"data.rotations has {len(rotations or ())} angles, but there are {n_clients} "
                "clients, so that some angles are not used",
            )
        if self._angles is not None and len(self._pool.input_shape) < 2:
            raise InputError(
                f"data.rotations and data.rotation_spread turn pictures, but a sample of "
                f"'{self._pool.source}' has the shape {self._pool.input_shape}"
            )

    def remarks(self) -> list[str]:
        """Return lines about the source, and about angles that no client has."""
        return list(self._remarks)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``; ``InputError`` for a damaged file. Collective."""
        stored = getattr(torch, self._pool.stored)
        wanted = dtype if self._angles is None else stored
        shards = load_pooled(
            self._pool, self._dealt, self._pieces, client_ids, wanted, self._communicator
        )
        if self._angles is None:
            return shards
        train, val, test = (
            self._turned(split, client_ids, dtype)
            for split in (shards.train, shards.val, shards.test)
        )
        return replace(shards, train=train, val=val, test=test)

    def _turned(self, split: Split, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        """The pictures turned as they are stored, so that a file of them holds the same numbers."""
        assert self._angles is not None
        for angle, start, end in zip(
            self._angles[client_ids], split.offsets[:-1], split.offsets[1:], strict=True
        ):
            split.x[start:end] = torch.from_numpy(rotated(split.x[start:end].numpy(), angle))
        x = split.x.to(dtype)
        if dtype.is_floating_point and self._pool.divisor != 1:
            x /= self._pool.divisor
        return replace(split, x=x)


def _nothing() -> list[np.ndarray]:
    raise AssertionError("only rank 0 reads the source")


def _deal(
    source: Source,
    n_clients: int,
    seed: int,
    name: str,
    fraction: float,
    options: Mapping[str, Any],
) -> list[np.ndarray]:
    """Sample numbers of each client."""
    given = _given(source, name)
    n = len(given)
    if fraction == 1:
        return deal_by(name, given, n_clients, stream(seed, "partition"), options)
    kept = share_of(n, fraction, seed)
    parts = deal_by(name, given[kept], n_clients, stream(seed, "partition"), options)
    return [kept[part] for part in parts]


def _given(source: Source, name: str) -> np.ndarray:
    """What the partition ``name`` deals by."""
    pool = source.pool
    has_labels = pool.task == "classification"
    known = {
        **{each: pool.labels for each in PARTITIONS if has_labels or each in COUNTING},
        "natural": source.owner,
        "pachinko": None if source.coarse is None else np.stack([source.coarse, pool.labels], 1),
    }
    given = known.get(name)
    if given is None:
        allowed = [each for each in known if known[each] is not None]
        lacks = {"natural": "no sources", "pachinko": "no coarse labels"}.get(name, "no labels")
        raise InputError(
            f"data.partition is '{name}', but '{pool.source}' has {lacks} to deal by; "
            f"{closest(name, allowed)}"
        )
    return given


# Partitions that only count samples.
COUNTING = ("contiguous", "iid", "quantity_skew")


def _splits(source: Source, indices: list[np.ndarray], seed: int, parts: Parts | None) -> Dealt:
    if parts is None:
        parts = "in_order" if source.is_text else "60_20_20"
    if parts == "60_20_20":
        return Assignment(indices, seed)
    if parts == "in_order":
        return InTurn(indices)
    name = source.pool.source
    if source.is_test is None:
        raise InputError(
            f"data.split is 'published', but '{name}' has no published test part; "
            "allowed: 60_20_20, in_order"
        )
    dealt = Published(indices, source.is_test)
    n_train, _, n_test = dealt.counts()
    for count, what in ((n_train, "training"), (n_test, "test")):
        if count.min() < 1:
            raise InputError(
                f"data.split is 'published', but client {count.argmin()} of '{name}' has no sample "
                f"of the published {what} part; data.split=60_20_20 mixes both parts"
            )
    return dealt


def _label_counts(source: Source, dealt: Dealt, n_clients: int) -> np.ndarray | None:
    """How often each character of a text is a training label; None for other data."""
    if not source.is_text:
        return None
    trained = np.concatenate([dealt.split(client)[0] for client in range(n_clients)])
    return np.bincount(source.pool.labels[trained], minlength=source.pool.n_classes)


GroupedName = Literal["natural", "contiguous", "dirichlet", "iid", "pathological", "quantity_skew"]


class GroupedDataset(DealtDataset):
    """Samples that each come from a source, which by default is a client.

    Parameters
    ----------
    partition : str
        How samples are dealt to the clients: each gets all samples of one source (``natural``), or
        they are dealt whoever they come from.
    choose : {'random', 'first', 'largest'}
        Which sources are taken in the partition ``natural`` where there are more than clients.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        read: Callable[[], Source],
        *,
        partition: GroupedName = "natural",
        choose: Choose = "random",
        **options: Any,
    ) -> None:
        options["partition"] = partition
        super().__init__(n_clients, run_seed, communicator, read, {"choose": choose}, **options)
