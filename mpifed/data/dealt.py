"""Base class of data sets whose samples are read from one source and dealt to clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from mpifed.data.base import Dataset, Shards, Split
from mpifed.data.dealing import FEWEST, Alpha, Fraction, MinSamples, share_of
from mpifed.data.delivery import agreed
from mpifed.data.partition import PARTITIONS, Classes, Name, deal_by
from mpifed.data.pooled import Assignment, Dealt, Pieces, Pool, describe, load_pooled
from mpifed.data.quantity import Law, Spread
from mpifed.data.rotation import angles, rotated
from mpifed.data.splits import InTurn, Published
from mpifed.errors import InputError, closest
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

Parts = Literal["60_20_20", "in_order", "published"]


@dataclass(frozen=True)
class Source:
    """What a reader found in its files; rank 0 has it.

    Attributes
    ----------
    pool : Pool
        The samples without x.
    pieces : callable
        Reads x in pieces of ``PIECE`` samples.
    owner : ndarray or None
        The source of each sample, int64 (samples,), from 0 on: what ``natural`` deals by.
    coarse : ndarray or None
        Coarse label of each sample, int64 (samples,), for ``pachinko``.
    is_test : ndarray or None
        Whether a sample belongs to the published test part, bool (samples,).
    is_text : bool
        Whether samples are overlapping windows of texts, in the order of these.
    remarks : tuple of str
        Lines for the log.
    """

    pool: Pool
    pieces: Pieces
    owner: np.ndarray | None = None
    coarse: np.ndarray | None = None
    is_test: np.ndarray | None = None
    is_text: bool = False
    remarks: tuple[str, ...] = ()


class DealtDataset(Dataset):
    """Samples of one source, dealt to clients by a partition and split by each of them.

    Rank 0 reads the source and sends each sample to its owner.

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


COUNTING = ("contiguous", "iid", "quantity_skew")
"""Partitions that only count samples."""


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
