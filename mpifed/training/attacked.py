"""Who attacks a run, and the data set that attackers train on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mpifed.components.declared import call_of
from mpifed.components.results import checked_result
from mpifed.config.configuration import Configuration
from mpifed.data.base import Dataset, Shards, Split, SplitName
from mpifed.errors import InputError
from mpifed.exchange.attacks import Attack, Attackers, attackers, check_labels
from mpifed.federation.clients import Federation
from topologies.inputs import within


class Poisoned(Dataset):
    """A data set in which some clients train on other labels."""

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


# What an attack says that it changes, and the method that does.
CHANGES = {"changes_labels": "relabelled", "changes_updates": "sent"}


def attacked(
    configuration: Configuration, federation: Federation, dataset: Dataset
) -> tuple[Attackers | None, Dataset]:
    """Return the attackers of a run, and the data set with the labels that they train on."""
    found, about = (
        attackers(configuration.attack, federation, configuration.seed),
        dataset.description,
    )
    if found is not None:
        _check_changes(found.attack, found.name)
    if found is None or not found.attack.changes_labels:
        return found, dataset
    check_labels(found.attack, found.name, about.task, about.n_classes)
    relabelled = partial(_relabelled, found.attack, about.n_classes)
    return found, Poisoned(dataset, found.who, relabelled)


def _check_changes(attack: Attack, name: str) -> None:
    """Refuse an attribute without its method, a method without its attribute, or neither."""
    kind, said = type(attack), f"attack.name is '{name}'"
    for attribute, method in CHANGES.items():
        says, has = getattr(attack, attribute), getattr(kind, method) is not getattr(Attack, method)
        if says != has:
            raise InputError(
                f"{said}, whose {attribute} is {says}, but which {'has' if has else 'lacks'} "
                f"{call_of(Attack, method)}{within(kind)}"
            )
    if not (attack.changes_labels or attack.changes_updates):
        forms = [f"{each} = True with {call_of(Attack, CHANGES[each])}" for each in CHANGES]
        raise InputError(f"{said}, which changes nothing; write {' or '.join(forms)}{within(kind)}")


def _relabelled(attack: Attack, n_classes: int, y: Tensor) -> Tensor:
    made = attack.relabelled(y, n_classes)
    return checked_result(attack, "relabelled", made, y)
