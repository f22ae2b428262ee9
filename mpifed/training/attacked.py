"""Who attacks a run, and the data set that attackers train on."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from mpifed.components.declared import call_of
from mpifed.components.results import checked_result
from mpifed.config.configuration import Configuration
from mpifed.data.base import Dataset
from mpifed.data.poisoned import Poisoned
from mpifed.errors import InputError
from mpifed.exchange.attacks import Attack, Attackers, attackers, check_labels
from mpifed.federation.clients import Federation
from topologies.places import within

CHANGES = {"changes_labels": "relabelled", "changes_updates": "sent"}
"""What an attack says that it changes, and the method that does."""


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
        For clients that cannot be malicious, for labels that the data do not have, and for an
        attack that changes nothing, or not what it says.
    """
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
