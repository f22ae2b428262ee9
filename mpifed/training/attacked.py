"""Who attacks a run, the data set that attackers train on, and what clients do to their updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mpifed.config.configuration import Configuration
from mpifed.data.base import Dataset, Shards, Split, SplitName
from mpifed.exchange.attacks import Attackers, attackers, check_labels
from mpifed.exchange.base import Transform
from mpifed.exchange.privacy import local_noise
from mpifed.federation.clients import Federation


class Poisoned(Dataset):
    """A data set in which attackers train on other labels, and are scored on their own."""

    def __init__(self, dataset: Dataset, hostile: Attackers) -> None:
        self._dataset, self._hostile = dataset, hostile
        self.description = dataset.description
        self.seed, self.fresh = dataset.seed, dataset.fresh
        self.divisor, self.is_uint8 = dataset.divisor, dataset.is_uint8
        self.make_split = None if dataset.make_split is None else self._made
        # The true labels of attackers whose training samples have been loaded here.
        self._true: dict[int, torch.Tensor] = {}

    def _made(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        assert self._dataset.make_split is not None
        split = self._dataset.make_split(name, client_ids, dtype)
        return self._changed(split, client_ids) if name == "train" else split

    def _changed(self, train: Split, client_ids: np.ndarray) -> Split:
        which = self._hostile.who[client_ids]
        if not which.any():
            return train
        y = train.y.clone()
        for place in np.flatnonzero(which).tolist():
            rows = train.rows_of(place)
            self._true[int(client_ids[place])] = train.y[rows]
            y[rows] = self._hostile.relabelled(train.y[rows], self.description.n_classes)
        return replace(train, y=y)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective where the data set's own is."""
        shards = self._dataset.load(client_ids, dtype)
        return replace(shards, train=self._changed(shards.train, client_ids))

    def remarks(self) -> list[str]:
        """Return the remarks of the data set."""
        return self._dataset.remarks()

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
