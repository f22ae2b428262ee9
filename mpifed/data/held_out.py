"""Training samples held out for validation: they are not trained on, but scored at evaluations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mpifed.data.base import Dataset, DerivedDataset, Split, SplitName
from mpifed.errors import InputError
from mpifed.random import stream


class HeldOut(DerivedDataset):
    """A data set with a part of each client's training samples as its validation samples."""

    made_of = {"val": "train"}  # noqa: RUF012

    def __init__(self, dataset: Dataset, fraction: float, seed: int) -> None:
        super().__init__(dataset)
        about = dataset.description
        said = f"evaluation.validation_fraction is {fraction:g}, but "
        if about.task == "unlabelled":
            raise InputError(f"{said}the samples of '{about.source}' have no labels to score")
        n_val = count_held_out(about.n_train, fraction)
        if not n_val.any():
            raise InputError(f"{said}no client of '{about.source}' has two training samples")
        self._fraction, self._seed = fraction, seed
        self.description = replace(about, n_train=about.n_train - n_val, n_val=n_val)

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
    wanted = np.maximum(1, np.floor(fraction * n_train + 0.5)).astype(np.int64)
    return np.minimum(wanted, np.maximum(n_train - 1, 0))


def draw_held_out(seed: int, client: int, n: int, fraction: float) -> np.ndarray:
    """Return which of a client's ``n`` training samples are held out, int64 (k,)."""
    count = int(count_held_out(np.array(n), fraction))
    return stream(seed, "validation", client=client).permutation(n)[:count]
