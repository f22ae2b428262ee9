"""The shards of the clients hosted here: all loaded from the start, or made when first used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from mpifed.data.base import (
    Dataset,
    Fresh,
    Shards,
    Split,
    SplitName,
    empty_split,
    parts_up_to,
)
from mpifed.federation.clients import Clients
from mpifed.federation.federation import Federation

# Bytes of the samples of clients that are scored together, at most, but for one client alone: few
# enough that the next ones take the same memory.
BLOCK = 16e6

# Sets of clients that are kept: all, those in training, unseen ones.
LASTING = 4

# Clients whose samples are made at once, before they are put in their place.
PIECE = 64


@dataclass(frozen=True)
class LoadedShards:
    """The shards of all hosted clients, in memory for the whole run."""

    federation: Federation
    loaded: Shards
    _lasting: dict[bytes, Clients] = field(default_factory=dict)

    def clients(self, rows: np.ndarray, effort: np.ndarray | None = None) -> Clients:
        """Return some of the hosted clients for a round or an evaluation."""
        return Clients(self.federation, self.loaded, rows, effort)

    def among_hosted(self, rows: np.ndarray) -> Clients:
        """Return the same clients, their rows being positions among all hosted clients."""
        key = rows.tobytes()
        if key not in self._lasting:
            if len(self._lasting) == LASTING:  # a sample of clients is another one in each round
                self._lasting.clear()
            self._lasting[key] = self.clients(rows)
        return self._lasting[key]

    def blocks(self, rows: np.ndarray) -> Iterator[slice]:
        """Yield the parts of ``rows`` that are scored together: here all of them."""
        yield slice(0, len(rows))

    @property
    def bytes_held(self) -> int:
        """Bytes of the samples in memory."""
        splits = self.loaded.train, self.loaded.val, self.loaded.test
        return sum(split.x.nbytes + split.y.nbytes for split in splits)


class CachedShards:
    """Shards made when they are first used, with the methods of ``LoadedShards``.

    Parameters
    ----------
    federation : Federation
        All clients.
    dataset : Dataset
        What makes the splits of clients one by one.
    dtype, device
        Type of the samples, and where they are.
    sample_bytes : int
        Bytes of a sample in memory.
    budget : float
        Bytes of samples that are kept, at most.
    """

    def __init__(
        self,
        federation: Federation,
        dataset: Dataset,
        dtype: torch.dtype,
        device: torch.device,
        sample_bytes: int,
        budget: float,
    ) -> None:
        self.federation, self.dataset = federation, dataset
        self.dtype, self.device = dtype, device
        self.sample_bytes, self.budget = sample_bytes, budget
        assert dataset.make_split is not None
        self._make = dataset.make_split
        self._cached: OrderedDict[tuple[SplitName, bytes], tuple[np.ndarray, Split]] = OrderedDict()

    def clients(self, rows: np.ndarray, effort: np.ndarray | None = None) -> Clients:
        """Return some of the hosted clients; their ``rows`` count from 0."""
        ids = self.federation.hosted[rows]
        shards = LazyShards(self.dataset, self.device, ids, lambda name: self.split(name, ids))
        return Clients(self.federation, shards, np.arange(len(rows)), effort)

    def among_hosted(self, rows: np.ndarray) -> Clients:
        """Return some of the hosted clients; all others have no sample."""
        hosted = self.federation.hosted
        shards = LazyShards(
            self.dataset,
            self.device,
            hosted,
            lambda name: spread(self.split(name, hosted[rows]), rows, len(hosted)),
        )
        return Clients(self.federation, shards, rows)

    def blocks(self, rows: np.ndarray) -> Iterator[slice]:
        """Yield consecutive parts of ``rows`` whose samples have at most ``BLOCK`` bytes."""
        description, ids = self.dataset.description, self.federation.hosted[rows]
        counts = description.n_train[ids] + description.n_val[ids] + description.n_test[ids]
        yield from parts_up_to(BLOCK, counts * self.sample_bytes)
        if not len(rows):
            yield slice(0, 0)

    def split(self, name: SplitName, ids: np.ndarray) -> Split:
        """Return one split of some clients; those asked for last are kept, as many as may be."""
        key = name, ids.tobytes()
        if key in self._cached:
            self._cached.move_to_end(key)
            return self._cached[key][1]
        size = self._bytes_of(name, ids)
        while self._cached and self.bytes_held + size > self.budget:
            self._cached.popitem(last=False)
        split = self._assembled(name, ids)
        if self.device.type != "cpu":
            split = Split(split.x.to(self.device), split.y.to(self.device), split.offsets)
        if len(ids) and size <= self.budget:
            self._cached[key] = ids, split
        return split

    def _bytes_of(self, name: SplitName, ids: np.ndarray) -> int:
        counts = getattr(self.dataset.description, f"n_{name}")[ids]
        return int(counts.sum()) * self.sample_bytes

    @property
    def bytes_held(self) -> int:
        """Bytes of the samples in memory."""
        return sum(split.x.nbytes + split.y.nbytes for _, split in self._cached.values())

    def _assembled(self, name: SplitName, ids: np.ndarray) -> Split:
        """Return a split of ``ids``, from what is kept and what is made now."""
        cached = [
            (owners, split) for (kind, _), (owners, split) in self._cached.items() if kind == name
        ]
        source, position = np.full(len(ids), -1), np.zeros(len(ids), np.int64)
        for number, (owners, _) in enumerate(cached):
            order = np.argsort(owners, kind="stable")
            at = np.searchsorted(owners[order], ids).clip(max=len(owners) - 1)
            there = owners[order][at] == ids
            source[there], position[there] = number, order[at[there]]
        if (source < 0).all():
            return self._make(name, ids, self.dtype)
        split = empty_split(self.dataset.description, name, ids, self.dtype)
        for start in range(0, len(ids), PIECE):
            missing = start + np.flatnonzero(source[start : start + PIECE] < 0)
            missing_split = self._make(name, ids[missing], self.dtype)
            for i, row in enumerate(missing):
                _copy(missing_split, i, split, int(row))
        for row in np.flatnonzero(source >= 0):
            _copy(cached[source[row]][1], position[row], split, int(row))
        return split


HostedShards = LoadedShards | CachedShards


class LazyShards(Shards):
    """Shards whose splits are made at their first use."""

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        client_ids: np.ndarray,
        split: Callable[[SplitName], Split],
    ) -> None:
        # The base class is frozen.
        vars(self).update(client_ids=client_ids, _dataset=dataset, _device=device, _split=split)

    _dataset: Dataset
    _device: torch.device
    _split: Callable[[SplitName], Split]

    @cached_property
    def train(self) -> Split:
        """Training samples."""
        return self._split("train")

    @cached_property
    def val(self) -> Split:
        """Validation samples."""
        return self._split("val")

    @cached_property
    def test(self) -> Split:
        """Test samples."""
        return self._split("test")

    @property
    def device(self) -> torch.device:
        """Where the samples will be."""
        return self._device

    @property
    def fresh(self) -> Fresh | None:
        """Draws new samples where the source can."""
        return self._dataset.fresh


def spread(split: Split, rows: np.ndarray, n_clients: int) -> Split:
    """Return a split of ``n_clients`` of whom those at the positions ``rows`` have samples."""
    if len(rows) == n_clients:
        return split
    counts = np.zeros(n_clients, np.int64)
    counts[rows] = split.counts
    return replace(split, offsets=np.concatenate([[0], np.cumsum(counts)]))


def _copy(source: Split, client: int, target: Split, row: int) -> None:
    """Copy the samples of the client at position ``client`` to that at ``row`` of ``target``."""
    to, rows = target.rows_of(row), source.rows_of(client)
    target.x[to].copy_(source.x[rows])
    target.y[to].copy_(source.y[rows])
