"""Data sets whose samples are those of another one: held out for validation, or checked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from mpifed.data.base import (
    SPLITS,
    Dataset,
    Shards,
    Split,
    SplitName,
    bad_row,
    check_texts,
    empty_split,
)
from mpifed.errors import InputError
from mpifed.random import stream


class DerivedDataset(Dataset):
    """The samples of another data set, of which ``changed`` makes the splits."""

    # Splits that are made of another one's samples.
    made_of: Mapping[SplitName, SplitName] = {}

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.description, self.seed = dataset.description, dataset.seed
        self.divisor, self.is_uint8 = dataset.divisor, dataset.is_uint8
        self.tokens_in, self.remarks = dataset.tokens_in, dataset.remarks
        self.fresh = dataset.fresh
        self.make_split = None if dataset.make_split is None else self._changed_split

    @abstractmethod
    def changed(
        self, name: SplitName, split: Split, client_ids: np.ndarray, dtype: torch.dtype
    ) -> Split:
        """Return the split ``name``, made of another's ``split`` of the same clients."""

    def _changed_split(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        assert self.dataset.make_split is not None
        split = self.dataset.make_split(self.made_of.get(name, name), client_ids, dtype)
        return self.changed(name, split, client_ids, dtype)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective where the data set's own is."""
        shards = self.dataset.load(client_ids, dtype)
        splits = {name: getattr(shards, self.made_of.get(name, name)) for name in SPLITS}
        changed = (self.changed(n, split, client_ids, dtype) for n, split in splits.items())
        train, val, test = changed
        return replace(shards, train=train, val=val, test=test)


class HeldOut(DerivedDataset):
    """A data set with a part of each client's training samples as its validation samples."""

    made_of = {"val": "train"}  # noqa: RUF012

    def __init__(self, dataset: Dataset, fraction: float, seed: int) -> None:
        super().__init__(dataset)
        description = dataset.description
        prefix = f"evaluation.validation_fraction is {fraction:g}, but "
        if description.task == "unlabelled":
            raise InputError(
                f"{prefix}the samples of '{description.source}' have no labels to score"
            )
        n_val = count_held_out(description.n_train, fraction)
        if not n_val.any():
            raise InputError(
                f"{prefix}no client of '{description.source}' has two training samples"
            )
        self._fraction, self._seed = fraction, seed
        self.description = replace(description, n_train=description.n_train - n_val, n_val=n_val)

    def changed(
        self, name: SplitName, split: Split, client_ids: np.ndarray, dtype: torch.dtype
    ) -> Split:
        """Return the training samples that are held out, or that are not; test samples stay."""
        if name == "test":
            return split
        held = np.zeros(len(split.y), bool)
        for client, n, start in zip(client_ids, split.counts, split.offsets[:-1], strict=True):
            held[start + draw_held_out(self._seed, int(client), int(n), self._fraction)] = True
        rows = np.flatnonzero(held if name == "val" else ~held)
        chosen = torch.from_numpy(rows)
        return Split(split.x[chosen], split.y[chosen], np.searchsorted(rows, split.offsets))


def count_held_out(n_train: np.ndarray, fraction: float) -> np.ndarray:
    """Return how many of ``n_train`` samples are held out, int64 of the same shape."""
    rounded = np.maximum(1, np.floor(fraction * n_train + 0.5)).astype(np.int64)
    return np.minimum(rounded, np.maximum(n_train - 1, 0))


def draw_held_out(seed: int, client: int, n: int, fraction: float) -> np.ndarray:
    """Return which of a client's ``n`` training samples are held out, int64 (k,)."""
    count = int(count_held_out(np.array(n), fraction))
    return stream(seed, "validation", client=client).permutation(n)[:count]


class Checked(DerivedDataset):
    """A user's data set, whose splits are compared with its description."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset)
        names = (*self.description.class_names, *self.description.client_names)
        check_texts(names, f"data set '{type(dataset).__name__}': a name")

    def changed(
        self, name: SplitName, split: Split, client_ids: np.ndarray, dtype: torch.dtype
    ) -> Split:
        """Return ``split``; ``InputError`` where it is not as described."""
        description, prefix = self.description, f"data set '{type(self.dataset).__name__}'"
        described = empty_split(description, name, client_ids, dtype)
        for what in ("x", "y"):
            actual, expected = getattr(split, what), getattr(described, what)
            alike = actual.is_floating_point() == expected.is_floating_point() and what == "y"
            if actual.shape != expected.shape or not (actual.dtype == expected.dtype or alike):
                raise InputError(
                    f"{prefix}: {what} of the split {name} is {actual.dtype} of shape "
                    f"{tuple(actual.shape)}; its description asks for {expected.dtype} of shape "
                    f"{tuple(expected.shape)}"
                )
        if not np.array_equal(split.offsets, described.offsets):
            raise InputError(f"{prefix}: offsets of the split {name} are not as it is described")
        bad = bad_row(split.x, split.y, description) if dtype.is_floating_point else None
        if bad is not None:
            client = client_ids[np.searchsorted(split.offsets, bad[0], side="right") - 1]
            raise InputError(f"{prefix}: the split {name} has {bad[1]} of client {client}")
        return split
