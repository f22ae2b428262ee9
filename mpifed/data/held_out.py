"""Training samples held out for validation: no part of training, scored at every evaluation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mpifed.data.base import Dataset, Description, Shards, Split
from mpifed.errors import InputError
from mpifed.random import stream


class HeldOut(Dataset):
    """``dataset`` with ``fraction`` of each client's training samples as its validation samples.

    Of n samples max(1, round(fraction n)) are held out, but never all: a client with one keeps it.
    Which ones is a function of the seed and the client alone. Those that stay keep their order.
    Validation samples that the data have of their own are left out. Raises ``InputError`` for
    unlabelled data, whose samples no evaluation scores, and where no client has two samples.
    """

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

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """The shards of ``client_ids``. Collective where the data set's own is."""
        shards = self._dataset.load(client_ids, dtype)
        counts = shards.train.counts
        held = np.zeros(int(counts.sum()), bool)
        for client, n, start in zip(client_ids, counts, shards.train.offsets[:-1], strict=True):
            held[start + draw_held_out(self._seed, int(client), int(n), self._fraction)] = True
        train = _part(shards.train, np.flatnonzero(~held))
        return replace(shards, train=train, val=_part(shards.train, np.flatnonzero(held)))


def count_held_out(n_train: np.ndarray, fraction: float) -> np.ndarray:
    """How many of ``n_train`` samples are held out, int64 of the same shape."""
    wanted = np.maximum(1, np.floor(fraction * n_train + 0.5)).astype(np.int64)
    return np.minimum(wanted, np.maximum(n_train - 1, 0))


def draw_held_out(seed: int, client: int, n: int, fraction: float) -> np.ndarray:
    """Which of the ``n`` training samples of ``client`` are held out: positions, int64."""
    count = int(count_held_out(np.array(n), fraction))
    return stream(seed, "validation", client=client).permutation(n)[:count]


def _part(split: Split, rows: np.ndarray) -> Split:
    """The samples ``rows`` (ascending) of a split, under the clients that own them."""
    chosen = torch.from_numpy(rows)
    return Split(split.x[chosen], split.y[chosen], np.searchsorted(rows, split.offsets))
