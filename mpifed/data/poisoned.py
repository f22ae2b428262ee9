"""Training labels that attackers have changed; validation and test samples stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Dataset, Shards, Split, SplitName


class Poisoned(Dataset):
    """A data set in which some clients train on other labels.

    Parameters
    ----------
    dataset : Dataset
        The data set.
    poisoned : ndarray
        Whose labels change, bool (n_clients,).
    relabelled : callable
        Maps targets of training samples to those they are trained with, of the same shape.
    """

    def __init__(
        self, dataset: Dataset, poisoned: np.ndarray, relabelled: Callable[[Tensor], Tensor]
    ) -> None:
        self._dataset, self._poisoned, self._relabelled = dataset, poisoned, relabelled
        self.description = dataset.description
        self.seed, self.fresh = dataset.seed, dataset.fresh
        self.divisor, self.is_uint8 = dataset.divisor, dataset.is_uint8
        self.make_split = None if dataset.make_split is None else self._made

    def _made(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        assert self._dataset.make_split is not None
        split = self._dataset.make_split(name, client_ids, dtype)
        return self._changed(split, client_ids) if name == "train" else split

    def _changed(self, train: Split, client_ids: np.ndarray) -> Split:
        which = torch.from_numpy(np.repeat(self._poisoned[client_ids], train.counts))
        if not which.any():
            return train
        y = train.y.clone()
        y[which] = self._relabelled(y[which])
        return replace(train, y=y)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective where the data set's own is."""
        shards = self._dataset.load(client_ids, dtype)
        return replace(shards, train=self._changed(shards.train, client_ids))

    def remarks(self) -> list[str]:
        """Return the remarks of the data set."""
        return self._dataset.remarks()
