"""Who attacks a run, and the data set that attackers train on."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from mpifed.components.results import checked_result
from mpifed.config.configuration import Configuration
from mpifed.data.base import Dataset
from mpifed.data.poisoned import Poisoned
from mpifed.exchange.attacks import Attack, Attackers, attackers, check_labels
from mpifed.federation.clients import Federation


def attacked(
    configuration: Configuration, federation: Federation, dataset: Dataset
) -> tuple[Attackers | None, Dataset]:
    """Return the attackers of a run, and the data set with the labels that they train on.

    Parameters
    ----------
    configuration : Configuration
        Its section ``attack`` says who they are and what they do.
    federation : Federation
        All clients.
    dataset : Dataset
        The data set.

    Raises
    ------
    InputError
        For clients that cannot be malicious, and for labels that the data do not have.
    """
    found, about = (
        attackers(configuration.attack, federation, configuration.seed),
        dataset.description,
    )
    if found is None or not found.attack.changes_labels:
        return found, dataset
    about = dataset.description
    check_labels(found.attack, found.name, about.task, about.n_classes)
    relabelled = partial(_relabelled, found.attack, about.n_classes)
    return found, Poisoned(dataset, found.who, relabelled)


def _relabelled(attack: Attack, n_classes: int, y: Tensor) -> Tensor:
    made = attack.relabelled(y, n_classes)
    return checked_result(attack, "relabelled", made, y)
