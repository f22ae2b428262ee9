"""Training samples held out for validation: they are not trained on, but scored at evaluations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mpifed.data.base import Dataset, Description, Shards, Split, SplitName
from mpifed.errors import InputError
from mpifed.random import stream


class HeldOut(Dataset):
    """A data set with a part of each client's training samples as its validation samples."""

    def __init__(self, dataset: Dataset, fraction: float, seed: int) -> None:
        about = dataset.description
        said = f"evaluation.validation_fraction is {fraction:g}, but "
        if about.task == "unlabelled":
            raise InputError(
                f"{said}the samples of '{about.source}' have no labels, so that there is nothing "
                "to score on those held out"
            )
        n_val = count_held_out(about.n_train, fraction)
        if not n_val.any():
            raise InputError(f"{said}no client of '{about.source}' has two training samples")
        self._dataset, self._fraction, self._seed = dataset, fraction, seed
        self.description: Description = replace(about, n_train=about.n_train - n_val, n_val=n_val)
        self.fresh = dataset.fresh
        self.make_split = None if dataset.make_split is None else self._made

    def _made(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        assert self._dataset.make_split is not None
        if name == "test":
            return self._dataset.make_split(name, client_ids, dtype)
        whole = self._dataset.make_split("train", client_ids, dtype)
        held = self._held(client_ids, whole)
        return _part(whole, np.flatnonzero(held if name == "val" else ~held))

    def _held(self, client_ids: np.ndarray, train: Split) -> np.ndarray:
        """Which of the samples in ``train`` are held out, bool (samples,)."""
        held = np.zeros(len(train.y), bool)
        for client, n, start in zip(client_ids, train.counts, train.offsets[:-1], strict=True):
            held[start + draw_held_out(self._seed, int(client), int(n), self._fraction)] = True
        return held

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective where the data set's own is."""
        shards = self._dataset.load(client_ids, dtype)
        held = self._held(client_ids, shards.train)
        train = _part(shards.train, np.flatnonzero(~held))
        return replace(shards, train=train, val=_part(shards.train, np.flatnonzero(held)))

    def remarks(self) -> list[str]:
        """Return the remarks of the data set."""
        return self._dataset.remarks()


def count_held_out(n_train: np.ndarray, fraction: float) -> np.ndarray:
    """Return how many of ``n_train`` samples are held out, int64 of the same shape."""
    wanted = np.maximum(1, np.floor(fraction * n_train + 0.5)).astype(np.int64)
    return np.minimum(wanted, np.maximum(n_train - 1, 0))


def draw_held_out(seed: int, client: int, n: int, fraction: float) -> np.ndarray:
    """Return the positions, int64 (k,), of those of a client's training samples that are
    held out.
    """
    count = int(count_held_out(np.array(n), fraction))
    return stream(seed, "validation", client=client).permutation(n)[:count]


def _part(split: Split, rows: np.ndarray) -> Split:
    """The samples ``rows`` (ascending) of a split, under the clients that own them."""
    chosen = torch.from_numpy(rows)
    return Split(split.x[chosen], split.y[chosen], np.searchsorted(rows, split.offsets))
