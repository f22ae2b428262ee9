"""Data sets beside which there is one test set of no client: published, held out, or in a file."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from mpifed.data.base import Dataset, Description, Shards, Split, SplitName, empty_split
from mpifed.data.derived import DerivedDataset
from mpifed.data.partitioned import Pool, PooledDataset, Source, in_parts
from mpifed.data.preprocessing import Preprocessing
from mpifed.data.tables import targets_like
from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

# The value of ``evaluation.central`` that names no file, and how one begins that names samples of a
# program by their digest.
HOLDOUT, PASSED = "holdout", "passed:"

# Such samples of this process, by that name.
_PASSED: WeakValueDictionary[str, Passed] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Passed:
    """Samples that a program passes as ``evaluation.central``.

    Attributes
    ----------
    name : str
        What a configuration holds of them: ``PASSED`` and their digest.
    samples, targets : object
        A table, whose targets are None; or inputs and targets as arrays.
    label : str or None
        Name of the column of targets; None is that of the data.
    """

    name: str
    samples: Any
    targets: np.ndarray | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        """Register the samples under their name, for as long as they are referred to."""
        _PASSED[self.name] = self


def of_new_samples(name: str, dataset: Dataset, communicator: Communicator) -> Dataset:
    """Return new samples as a central test set, encoded as those of the clients. Collective."""
    description = dataset.description

    def read() -> Source:
        if not name.startswith(PASSED):
            x, targets = dataset.new_samples(Path(os.path.expanduser(name)))
        elif name not in _PASSED:
            raise InputError("a program passed these samples, and must pass them again")
        elif (passed := _PASSED[name]).targets is None:
            x, targets = dataset.new_samples(passed.samples, passed.label)
        else:
            preprocessing = description.preprocessing or Preprocessing()
            x = preprocessing.encode(passed.samples, description.input_shape)
            targets = passed.targets
        pool = Pool(
            *(description.source, targets_like(x, targets, description), description.n_classes),
            *(description.input_shape, x.dtype.name),
            task=description.task,
            class_names=description.class_names,
        )
        return Source(pool, lambda: [x], shard_rows=in_parts(np.arange(len(x))))

    return PooledDataset(read, {}, 1, 0, communicator)


class WithCentral(DerivedDataset):
    """A data set beside which there is a ``central`` one, whose test samples no client has."""

    def __init__(self, dataset: Dataset, central: Dataset) -> None:
        super().__init__(dataset)
        self.central = central

    def changed(
        self, name: SplitName, split: Split, client_ids: np.ndarray, dtype: torch.dtype
    ) -> Split:
        """Return the samples as they are."""
        return split


def central_of(dataset: Dataset) -> Dataset | None:
    """Return the central data set beside one, whose "clients" are parts of it; None without."""
    while isinstance(dataset, DerivedDataset):
        if isinstance(dataset, WithCentral):
            return dataset.central
        dataset = dataset.dataset
    return None


def with_held_out(dataset: Dataset, seed: int) -> WithCentral:
    """Return a data set without half of each client's test samples, and these beside it."""
    description = dataset.description
    n_central = description.n_test // 2
    if not n_central.any():
        raise InputError(
            f"evaluation.central is '{HOLDOUT}', but no client of '{description.source}' has two "
            "test samples; a file with test samples is allowed"
        )
    none = np.zeros(description.n_clients, np.int64)
    of_half = replace(description, n_train=none, n_val=none, n_test=n_central)
    half = _Half(dataset, seed, of_half, is_central=True)
    others = replace(description, n_test=description.n_test - n_central)
    return WithCentral(_Half(dataset, seed, others, is_central=False), half)


class _Half(DerivedDataset):
    """The test samples that are held out, or a data set without them."""

    def __init__(
        self, dataset: Dataset, seed: int, description: Description, is_central: bool
    ) -> None:
        super().__init__(dataset)
        self._seed, self.description, self._is_central = seed, description, is_central

    def changed(
        self, name: SplitName, split: Split, client_ids: np.ndarray, dtype: torch.dtype
    ) -> Split:
        """Return some of the test samples, and all others or none."""
        if name != "test":
            return (
                empty_split(self.description, name, client_ids, dtype)
                if self._is_central
                else split
            )
        held = np.zeros(len(split.y), bool)
        for client, n, start in zip(client_ids, split.counts, split.offsets[:-1], strict=True):
            order = stream(self._seed, "central", client=int(client)).permutation(int(n))
            held[start + order[: n // 2]] = True
        rows = np.flatnonzero(held if self._is_central else ~held)
        chosen = torch.from_numpy(rows)
        return Split(split.x[chosen], split.y[chosen], np.searchsorted(rows, split.offsets))


class Together(Dataset):
    """The samples of all splits of a data set, as test samples of its clients."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset, description = dataset, dataset.description
        none, every = np.zeros(description.n_clients, np.int64), description.n_samples
        self.description = replace(description, n_train=none, n_val=none, n_test=every)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective where the data set's own is."""
        shards = self._dataset.load(client_ids, dtype)
        splits = shards.train, shards.val, shards.test
        parts = [split.of_client(k) for k in range(len(client_ids)) for split in splits]
        train, val, test = (
            empty_split(self.description, name, client_ids, dtype)
            for name in ("train", "val", "test")
        )
        if parts:
            x, y = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y"))
            test = Split(x, y, test.offsets)
        return Shards(client_ids, train, val, test)


def check_alike(central: Description, description: Description, path: Path) -> None:
    """Refuse a central test set whose samples are not like those of the clients."""
    for name in ("task", "input_shape", "n_classes", "class_names"):
        ours, theirs = getattr(description, name), getattr(central, name)
        if ours != theirs and not (name == "class_names" and not (ours and theirs)):
            raise InputError(
                f"evaluation.central is '{path}', whose {name} is {theirs}, but that of "
                f"'{description.source}' is {ours}"
            )
    of_file, of_data = central.preprocessing, description.preprocessing
    if of_file is None or of_data is None or not of_file.columns:
        return
    if not of_file.encodes_as(of_data):
        raise InputError(
            f"evaluation.central is '{path}', whose samples were standardised or encoded otherwise "
            f"than those of '{description.source}'; data.standardise=false, and mpifed data csv "
            "--standardise false for the file, leave both as they are"
        )
