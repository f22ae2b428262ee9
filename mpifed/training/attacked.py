"""Who attacks a run, the data set that attackers train on, and what clients do to their updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mpifed.config.configuration import Configuration
from mpifed.data.base import Dataset, DerivedDataset, Split, SplitName
from mpifed.exchange.attacks import Attackers, attackers, check_labels
from mpifed.exchange.base import Transform
from mpifed.exchange.privacy import local_noise
from mpifed.federation.clients import Federation


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
        for place in np.flatnonzero(which).tolist():
            rows = split.rows_of(place)
            self._true[int(client_ids[place])] = split.y[rows]
            y[rows] = self._hostile.relabelled(split.y[rows], self.description.n_classes)
        return replace(split, y=y)

    def with_true_labels(self, train: Split, client_ids: np.ndarray) -> Split:
        """Return training samples as they are scored; some clients may have none."""
        y = train.y
        for place in np.flatnonzero(self._hostile.who[client_ids] & (train.counts > 0)).tolist():
            y = y.clone() if y is train.y else y
            rows = train.rows_of(place)
            true = self._true[int(client_ids[place])][: rows.stop - rows.start]
            y[rows] = true.to(y.device)
        return replace(train, y=y)


def scored_split(dataset: Dataset, train: Split, client_ids: np.ndarray) -> Split:
    """Return the training samples of clients with their true labels."""
    if not isinstance(dataset, Poisoned):
        return train
    return dataset.with_true_labels(train, client_ids)


def attacked(
    configuration: Configuration, federation: Federation, dataset: Dataset
) -> tuple[Attackers | None, Dataset]:
    """Return the attackers of a run, and the data set with the labels that they train on."""
    found = attackers(configuration.attack, federation, configuration.seed)
    if found is None or not found.attack.changes_labels:
        return found, dataset
    about = dataset.description
    check_labels(found.attack, found.name, about.task, about.n_classes)
    return found, Poisoned(dataset, found)


def transforms_of(configuration: Configuration, hostile: Attackers | None) -> list[Transform]:
    """Return what clients do to their updates before they send them, in turn."""
    found, options = [], configuration.privacy
    if options.is_asked_for and options.where == "local":
        found.append(local_noise(options, configuration.clients))
    if hostile is not None and hostile.attack.changes_updates:
        found.append(hostile.transform)
    return found
