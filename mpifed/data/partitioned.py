"""Data sets of a reader, a partition and a split: rank 0 reads the samples of a source, deals them
to clients, splits each client's, and sends every rank those of its clients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le

from mpifed.data.base import (
    SPLITS,
    TOKEN_TYPES,
    Dataset,
    Description,
    Shards,
    Split,
    Task,
    agreed,
    allocated,
)
from mpifed.data.images import angles, rotated
from mpifed.data.partitions import (
    BY_LABEL,
    FEWEST,
    Alpha,
    Classes,
    Fraction,
    Law,
    MinSamples,
    Name,
    Parts,
    ShardRows,
    SplitRows,
    Spread,
    share_of,
    split_in_order,
)
from mpifed.data.partitions import partition as deal_by
from mpifed.data.preprocessing import Preprocessing
from mpifed.errors import InputError, one_line
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

# Samples that are sent at once, at most.
PIECE = 4096

# Published test samples of nobody that are one part.
PART = 1024


@dataclass(frozen=True)
class Pool:
    """What every rank knows of all samples of a source, before they are dealt.

    Attributes
    ----------
    source, n_classes, input_shape, task, class_names, client_names, label_counts
        As in ``Description``.
    labels : ndarray
        Targets of all samples, as in ``Split``.
    stored : str
        Type of x as it is read: uint8, uint16, uint32, float32 or float64.
    divisor : int
        A sample is x over this number.
    is_text : bool
        Whether samples are of texts, which keep their order and whose labels are counted.
    preprocessing : Preprocessing
        As in ``Description``.
    remarks : tuple of str
        Lines for the log.
    """

    source: str
    labels: np.ndarray
    n_classes: int
    input_shape: tuple[int, ...]
    stored: str
    divisor: int = 1
    task: Task = "classification"
    class_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()
    label_counts: np.ndarray | None = None
    is_text: bool = False
    preprocessing: Preprocessing = Preprocessing()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """What a reader returns, which only rank 0 has: a pool, and what it is dealt by.

    Attributes
    ----------
    pool : Pool
        What every rank knows of the samples.
    pieces : callable
        Reads x of all samples in order, some rows at a time.
    owner : ndarray or None
        From which writer, role or user each sample is, int64 (samples,), for ``natural``.
    coarse : ndarray or None
        The coarse label of each sample, int64 (samples,), for ``pachinko``.
    is_test : ndarray or None
        Which samples were published for testing, bool (samples,).
    names : tuple of str
        Names of the owners.
    fit : callable or None
        Makes x of all samples from the rows that train, and what makes it of new ones.
    shard_rows : sequence or None
        The rows of each client's splits where the source deals its samples itself; the options of
        ``PooledDataset`` but ``seed`` and rotations then mean nothing.
    """

    pool: Pool
    pieces: Callable[[], Iterable[np.ndarray]]
    owner: np.ndarray | None = None
    coarse: np.ndarray | None = None
    is_test: np.ndarray | None = None
    names: tuple[str, ...] = ()
    fit: Callable[[np.ndarray], tuple[np.ndarray, Preprocessing]] | None = None
    shard_rows: ShardRows | None = None


def counts_of(shard_rows: ShardRows) -> SplitRows:
    """Return training, validation and test samples of each client, int64 (n_clients,) each."""
    sizes = np.array([[len(rows) for rows in splits] for splits in shard_rows], np.int64)
    n_train, n_val, n_test = sizes.T.copy()
    return n_train, n_val, n_test


class PooledDataset(Dataset):
    """Samples of one source, which a partition deals to clients, who split theirs.

    The class of a data set passes ``read``, which rank 0 calls; the further options of its
    partitions, by name; then what it is made with itself, see ``Dataset``.

    Parameters
    ----------
    partition : str
        How samples are dealt to the clients.
    dirichlet_alpha : float
        Concentration of the partitions ``dirichlet``, ``balanced_dirichlet`` and
        ``extended_dirichlet``: the larger, the more alike clients are.
    label_groups : int, optional
        Groups of labels, drawn by the seed; ``dirichlet`` deals each as one label. 3 is the choice
        of FedEM's published code for CIFAR-10; None deals label by label.
    dirichlet_shares : int, optional
        Shares that ``dirichlet`` deals; those below ``min_samples`` are left out, as in FedEM's
        published code, and the others are the clients. None deals one share for each client and
        fills small ones up from the largest.
    classes_per_client : int
        Labels that a client has in the partitions ``pathological`` and ``extended_dirichlet``.
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
        read: Callable[[], Source],
        partition_options: Mapping[str, Any],
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        partition: Name = "dirichlet",
        dirichlet_alpha: Alpha = 0.4,
        label_groups: Annotated[int, Ge(1)] | None = None,
        dirichlet_shares: Annotated[int, Ge(1)] | None = None,
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
        self._source: Source | None = None
        self._tests_are_of_clients = str(partition) == "natural" and split == "published"
        options = {
            "dirichlet_alpha": dirichlet_alpha,
            "label_groups": label_groups,
            "dirichlet_shares": dirichlet_shares,
            "classes_per_client": classes_per_client,
            "quantity_law": quantity_law,
            "quantity_alpha": quantity_alpha,
            "quantity_sigma": quantity_sigma,
            "quantity_exponent": quantity_exponent,
            "min_samples": min_samples,
            **partition_options,
        }

        def divided(holds_out: bool = False) -> tuple[Pool, ShardRows]:
            source = read()
            if source.shard_rows is None:
                indices = dealt(
                    source, partition, n_clients, fraction, self.seed, options, holds_out
                )
                shard_rows = split_up(source, indices, self.seed, split, holds_out)
                source = with_names(source, partition, indices, min_samples)
                source = fitted(source, shard_rows)
                pool = replace(source.pool, label_counts=_label_counts(source.pool, shard_rows))
                source = replace(source, pool=pool, shard_rows=shard_rows)
            self._source = source
            assert source.shard_rows is not None
            return source.pool, source.shard_rows

        self._divided = divided
        self._take(*agreed(communicator, divided))
        pool = self._pool
        self.divisor, self.is_uint8 = pool.divisor, pool.stored == "uint8"
        self.tokens_in = pool.stored if pool.stored in TOKEN_TYPES else None
        self.remarks = pool.remarks
        self._angles = angles(n_clients, self.seed, rotations, rotation_spread)
        if self._angles is not None and len(pool.input_shape) < 2:
            raise InputError(
                f"data.rotations and data.rotation_spread turn pictures, but a sample of "
                f"'{pool.source}' has the shape {pool.input_shape}"
            )

    def _take(self, pool: Pool, shard_rows: ShardRows) -> None:
        """Be the data set of some samples, dealt to clients."""
        self._pool, self._shard_rows = pool, shard_rows
        self.description = Description(
            *(pool.source, pool.input_shape, pool.n_classes, *counts_of(shard_rows)),
            task=pool.task,
            class_names=pool.class_names,
            label_counts=pool.label_counts,
            client_names=pool.client_names,
            preprocessing=pool.preprocessing,
        )

    def hold_out_published(self) -> Dataset | None:
        """Deal again, without what was published for testing, and return that in parts."""

        def dealt_again() -> tuple[Pool, ShardRows, np.ndarray] | None:
            assert self._source is not None
            tested = self._source.is_test
            if tested is None or not tested.any() or self._tests_are_of_clients:
                return None
            return *self._divided(holds_out=True), np.flatnonzero(tested)

        again = agreed(self._communicator, dealt_again)
        if again is None:
            return None
        pool, shard_rows, tested = again
        self._take(pool, shard_rows)
        central = copy.copy(self)
        of_nobody = replace(self._pool, client_names=(), label_counts=None)
        central._take(of_nobody, in_parts(tested))
        central._angles = None
        return central

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``; ``InputError`` for a damaged file. Collective."""
        if self._angles is None:
            return self._received(client_ids, dtype)
        shards = self._received(client_ids, getattr(torch, self._pool.stored))
        train, val, test = (self._turned(getattr(shards, n), client_ids, dtype) for n in SPLITS)
        return replace(shards, train=train, val=val, test=test)

    def _received(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """The shards as rank 0 sends them."""
        pool = self._pool
        wishes = self._communicator.gather_object(client_ids)
        order, offsets = self._order(client_ids)
        x = allocated((len(order), *pool.input_shape), dtype)
        if wishes is None:
            arriving = self._receive(order)
        else:
            arriving = self._send([self._order(ids)[0] for ids in wishes])
        for positions, samples in arriving:
            values = torch.from_numpy(samples).to(dtype)
            if dtype.is_floating_point and pool.divisor != 1:
                values /= pool.divisor
            x.numpy()[positions] = values.numpy()  # torch does not index uint16
        y = torch.from_numpy(pool.labels[order]).to(self.description.target_type(dtype))
        ends = np.cumsum([rows[-1] for rows in offsets])
        train, val, test = (
            Split(x[end - rows[-1] : end], y[end - rows[-1] : end], rows)
            for end, rows in zip(ends, offsets, strict=True)
        )
        return Shards(client_ids, train, val, test)

    def _order(self, client_ids: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """The clients' samples, all training, then validation, then test, and the offsets."""
        parts = [tuple(map(np.asarray, self._shard_rows[client])) for client in client_ids]
        order, offsets = [np.zeros(0, np.int64)], []
        for which in range(3):
            order.extend(part[which] for part in parts)
            sizes = [len(part[which]) for part in parts]
            offsets.append(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        return np.concatenate(order), offsets

    def _send(self, orders: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Send every rank its samples, piece by piece; yield this rank's and their places."""
        assert self._source is not None
        sorts = [np.argsort(order, kind="stable") for order in orders]
        first = 0
        for piece in _cut(self._source.pieces()):
            for rank, (order, by_sample) in enumerate(zip(orders, sorts, strict=True)):
                bounds = np.searchsorted(order, (first, first + len(piece)), sorter=by_sample)
                positions = by_sample[slice(*bounds)]
                samples = piece[order[positions] - first]
                if rank == self._communicator.rank:
                    yield positions, samples
                elif len(positions):
                    self._communicator.send(np.array([len(positions)]), rank)
                    self._communicator.send(samples, rank)
            first += len(piece)

    def _receive(self, order: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        by_sample, done = np.argsort(order, kind="stable"), 0
        while done < len(order):
            count = int(self._communicator.receive((1,), np.int64, 0)[0])
            shape = (count, *self._pool.input_shape)
            samples = self._communicator.receive(shape, np.dtype(self._pool.stored), 0)
            yield by_sample[done : done + count], samples
            done += count

    def _turned(self, split: Split, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        """The pictures turned as they are stored, so that a file of them holds the same numbers."""
        assert self._angles is not None
        for position, angle in enumerate(self._angles[client_ids]):
            rows = split.rows_of(position)
            split.x[rows] = torch.from_numpy(rotated(split.x[rows].numpy(), angle))
        x = split.x.to(dtype)
        if dtype.is_floating_point and self._pool.divisor != 1:
            x /= self._pool.divisor
        return replace(split, x=x)


def in_parts(rows: np.ndarray) -> ShardRows:
    """Return test samples of nobody as those of parts of ``PART`` at most."""
    return [(rows[:0], rows[:0], part) for part in np.array_split(rows, -(-len(rows) // PART))]


def _cut(arrays: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    for array in arrays:
        yield from np.split(array, range(PIECE, len(array), PIECE))


def dealt(
    source: Source,
    partition: str,
    n_clients: int,
    fraction: float,
    seed: int,
    options: Mapping[str, Any],
    holds_out: bool = False,
) -> list[np.ndarray]:
    """Return each client's samples of a source, by a partition of a fraction of them.

    Those published for testing are nobody's where the data set ``holds_out`` these.
    """
    keys = keys_of(source, partition)
    used = share_of(len(keys), fraction, seed)
    if holds_out and source.is_test is not None:
        used = used[~source.is_test[used]]
    rng = stream(seed, "partition")
    return [used[part] for part in deal_by(partition, keys[used], n_clients, rng, options)]


def with_names(
    source: Source, partition: str, indices: list[np.ndarray], min_samples: int
) -> Source:
    """Return a source with names of the clients, where its owners are these and have names."""
    if partition != "natural" or not source.names:
        return source
    assert source.owner is not None
    names = tuple(source.names[source.owner[samples[0]]] for samples in indices)
    pool = replace(source.pool, client_names=names)
    left_out = [name for name in source.names if name not in set(names)]
    if not left_out:
        return replace(source, pool=pool)
    few = f"fewer than {min_samples} samples (data.min_samples) or are not chosen"
    examples = one_line(", ".join(left_out), 100)
    remark = f"{len(left_out)} sources have {few}, and are no clients: {examples}"
    return replace(source, pool=replace(pool, remarks=(*pool.remarks, remark)))


def fitted(source: Source, shard_rows: ShardRows) -> Source:
    """Return a source whose x is fitted to the samples that train, where it is to be."""
    if source.fit is None:
        return source
    x, preprocessing = source.fit(np.concatenate([train for train, *_ in shard_rows]))
    pool = replace(source.pool, preprocessing=preprocessing)
    return replace(source, pool=pool, pieces=lambda: [x], fit=None)


def keys_of(source: Source, name: str) -> np.ndarray:
    """What the partition ``name`` deals by."""
    pool = source.pool
    keys: np.ndarray | None = pool.labels  # of which contiguous, iid, quantity_skew only count
    if name in BY_LABEL and pool.task != "classification":
        keys = None
    elif name == "natural":
        keys = source.owner
    elif name == "pachinko":
        keys = None if source.coarse is None else np.stack([source.coarse, pool.labels], 1)
    if keys is None:
        lacks = {"natural": "sources", "pachinko": "coarse labels"}.get(name, "labels")
        raise InputError(
            f"data.partition is '{name}', but '{pool.source}' has no {lacks} to deal by; "
            "data.partition=iid deals at random"
        )
    return keys


def split_up(
    source: Source,
    indices: list[np.ndarray],
    seed: int,
    parts: Parts | None,
    holds_out: bool = False,
) -> ShardRows:
    """Return each client's splits: 60/20/20 at random, or in the source's order, or published.

    Where the published test samples are held out, the last leaves clients without any.
    """
    if parts is None:
        parts = "in_order" if source.pool.is_text else "60_20_20"
    if parts == "60_20_20":
        shuffled = (stream(seed, "split", client=c).permutation(o) for c, o in enumerate(indices))
        return [split_in_order(samples) for samples in shuffled]
    if parts == "in_order":
        return [split_in_order(samples) for samples in indices]
    prefix = f"data.split is 'published', but '{source.pool.source}' has"
    if source.is_test is None:
        raise InputError(f"{prefix} no published test part; allowed: 60_20_20, in_order")
    tested = [source.is_test[samples] for samples in indices]
    shard_rows = [
        (samples[~t], samples[:0], samples[t]) for samples, t in zip(indices, tested, strict=True)
    ]
    n_train, _, n_test = counts_of(shard_rows)
    for count, what in ((n_train, "training"), (n_test, "test")):
        if count.min() < 1 and not (holds_out and what == "test"):
            raise InputError(
                f"{prefix} no sample of the published {what} part for client {count.argmin()}; "
                "data.split=60_20_20 mixes both parts"
            )
    return shard_rows


def _label_counts(pool: Pool, shard_rows: ShardRows) -> np.ndarray | None:
    """How often each character of a text is a training label; None for other data."""
    if not pool.is_text:
        return None
    trained = np.concatenate([train for train, *_ in shard_rows])
    return np.bincount(pool.labels[trained].ravel(), minlength=pool.n_classes)
