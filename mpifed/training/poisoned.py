"""Data of attackers, who train on other labels than those on which they are scored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mpifed.data.base import Dataset, Split, SplitName
from mpifed.data.derived import DerivedDataset
from mpifed.exchange.attacks import Attackers


class Poisoned(DerivedDataset):
    """A data set in which attackers train on other labels, and are scored on their own."""

    def __init__(self, dataset: Dataset, hostile: Attackers) -> None:
        super().__init__(dataset)
        self._hostile = hostile
        # The true labels of attackers whose training samples have been loaded here.
        self._true: dict[int, torch.Tensor] = {}

    def changed(
        self, name: SplitName, split: Split, client_ids: np.ndarray, dtype: torch.dtype
    ) -> Split:
        """Return the samples, those for training with the labels that attackers train on."""
        which = self._hostile.who[client_ids]
        if name != "train" or not which.any():
            return split
        y = split.y.clone()
        for position in np.flatnonzero(which).tolist():
            rows = split.rows_of(position)
            self._true[int(client_ids[position])] = split.y[rows]
            y[rows] = self._hostile.relabelled(split.y[rows], self.description.n_classes)
        return replace(split, y=y)

    def with_true_labels(self, train: Split, client_ids: np.ndarray) -> Split:
        """Return training samples as they are scored; some clients may have none."""
        y = train.y
        for position in np.flatnonzero(self._hostile.who[client_ids] & (train.counts > 0)).tolist():
            y = y.clone() if y is train.y else y
            rows = train.rows_of(position)
            true = self._true[int(client_ids[position])][: rows.stop - rows.start]
            y[rows] = true.to(y.device)
        return replace(train, y=y)
