"""Attacks: what malicious clients train on and send.

An attack changes the training labels of its clients, or the updates by which they move the shared
value, whatever method computed them. Everything else they do as told.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from mpifed.components.registry import Section, find
from mpifed.errors import InputError
from mpifed.exchange.base import Transform, Updates
from mpifed.federation.federation import Federation
from mpifed.random import stream
from mpifed.state import check_result
from topologies.schema import LARGEST

SHOWN = 20
"""Malicious clients that the log names."""

ClientNumber = Annotated[int, Ge(0), Le(LARGEST)]


class Attack(ABC):  # noqa: B024 (those whose clients collude have an abstract method)
    """Base class of attacks; its keyword-only parameters are its options.

    Parameters
    ----------
    clients : list of int, optional
        The malicious clients.
    fraction : float, optional
        Share of the training clients that is malicious, in place of ``clients``; they are drawn
        once from the seed of the run, at least one.

    Attributes
    ----------
    changes_labels, changes_updates : bool
        What it changes: whether its class has a method ``relabelled``, and one ``sent``.
    colludes : bool
        Whether its clients know all updates; see ``mpifed.exchange.collusion``.
    """

    changes_labels: ClassVar[bool] = False
    changes_updates: ClassVar[bool] = False
    colludes: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.changes_labels = cls.relabelled is not Attack.relabelled
        cls.changes_updates = cls.colludes or cls.sent is not Attack.sent

    def __init__(
        self,
        *,
        clients: list[ClientNumber] | None = None,
        fraction: Annotated[float, Gt(0), Lt(1)] | None = None,
    ) -> None:
        self.clients, self.fraction = clients, fraction

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the options; refuse those that do not say who is malicious."""
        if bool(options["clients"]) == (options["fraction"] is not None):
            both = "both given" if options["clients"] else "both empty"
            raise InputError(
                f"attack.clients and attack.fraction are {both}; one of them says which clients "
                "are malicious"
            )
        return options

    def relabelled(self, y: Tensor, n_classes: int) -> Tensor:
        """Return the labels that malicious clients train with.

        Parameters
        ----------
        y : Tensor
            Labels 0 ... n_classes - 1, int64, of any shape; not to be changed.
        n_classes : int
            The number of labels.
        """
        return y

    def sent(self, updates: Tensor, malicious: int, participants: int) -> Tensor:
        """Return what malicious clients send in place of their updates.

        Parameters
        ----------
        updates : Tensor
            Those of the malicious participants hosted here, (clients, ...).
        malicious, participants : int
            How many take part in the round.
        """
        return updates

    def attacked(self, updates: Updates, who: np.ndarray, channel: Any) -> Updates:
        """Return the participants' updates as they are sent; ``who``, bool (n_clients,), attack.

        Collective.
        """
        round = channel.round
        malicious = np.flatnonzero(who[round.ids])
        if not len(malicious):
            return updates
        which = torch.from_numpy(malicious).to(updates.values.device)
        differences = updates.some(which).differences
        messages = self.sent(differences, int((round.active & who).sum()), round.count)
        check_result(messages, differences, self, "sent")
        return updates.replaced(which, messages)


class NoAttack(Attack):
    """No attack: all clients do as told."""

    def __init__(self) -> None:
        super().__init__()

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the options, of which there are none."""
        return options


class SignFlip(Attack):
    """Sign flipping: the update times a negative number (Li, Xu, Chen, Giannakis, Ling 2019).

    Parameters
    ----------
    scale : float
        s, where -s times the update is sent.
    **options
        ``clients`` or ``fraction``, as for every attack.
    """

    def __init__(self, *, scale: Annotated[float, Gt(0)] = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.scale = scale

    def sent(self, updates: Tensor, malicious: int, participants: int) -> Tensor:
        return updates * -self.scale


class LabelFlip(Attack):
    """Label flipping: training with other labels (Tolpegin, Truex, Gursoy and Liu 2020).

    Parameters
    ----------
    source, target : int, optional
        Samples with the label ``source`` get the label ``target``. Without them all labels y of C
        become C - 1 - y (Fang, Cao, Jia and Gong 2020).
    **options
        ``clients`` or ``fraction``, as for every attack.
    """

    def __init__(
        self,
        *,
        source: ClientNumber | None = None,
        target: ClientNumber | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.source, self.target = source, target

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the options; refuse one label without the other."""
        if (options["source"] is None) != (options["target"] is None):
            raise InputError(
                "attack.source and attack.target: one is given and the other is empty; allowed: "
                "both, or neither, which reverses the order of the labels"
            )
        return Attack.complete_options(options, n_training)

    def relabelled(self, y: Tensor, n_classes: int) -> Tensor:
        if self.source is None or self.target is None:
            return n_classes - 1 - y
        return torch.where(y == self.source, self.target, y)


class ModelReplacement(LabelFlip):
    """Model replacement: updates from flipped labels, boosted (Bagdasaryan et al. 2020).

    With gamma = n / m for m malicious of n participants, clients that count alike, and honest
    updates that cancel, the mean becomes the malicious clients' model (eq. 3 of the paper).

    Parameters
    ----------
    boost : float, optional
        gamma, the factor of the update. None is participants over malicious ones, in each round.
    **options
        ``source``, ``target``, and ``clients`` or ``fraction``, as for ``label_flip``.
    """

    def __init__(self, *, boost: Annotated[float, Gt(0)] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.boost = boost

    def sent(self, updates: Tensor, malicious: int, participants: int) -> Tensor:
        return updates * (participants / malicious if self.boost is None else self.boost)


@dataclass(frozen=True)
class Attackers(Transform):
    """The malicious clients of a run and what they do.

    Attributes
    ----------
    name : str
        The name of the attack.
    attack : Attack
        What they do.
    who : ndarray
        Which clients they are, bool (n_clients,).
    """

    name: str
    attack: Attack
    who: np.ndarray

    def apply(self, updates: Updates, state: Any, channel: Any) -> tuple[Updates, Any]:
        return self.attack.attacked(updates, self.who, channel), state

    def relabelled(self, y: Tensor, n_classes: int) -> Tensor:
        """Return the labels that they train with."""
        labels = self.attack.relabelled(y, n_classes)
        check_result(labels, y, self.attack, "relabelled")
        return labels

    def __str__(self) -> str:
        clients = np.flatnonzero(self.who)
        listed = ", ".join(map(str, clients[:SHOWN])) + ", ..." * (len(clients) > SHOWN)
        return f"attack {self.name} by {len(clients)} of {len(self.who)} clients: {listed}"


def attackers(section: Section, federation: Federation, seed: int) -> Attackers:
    """Return the attackers that the section ``attack``, which names one, asks for.

    Raises
    ------
    InputError
        For clients that cannot be malicious.
    """
    attack = find("attack", section.name)(**section.options)
    if not (attack.changes_labels or attack.changes_updates):
        raise InputError(
            f"attack.name is '{section.name}', which changes nothing; its class has a method "
            "relabelled, sent, or both"
        )
    return Attackers(section.name, attack, malicious_clients(attack, federation, seed))


def malicious_clients(attack: Attack, federation: Federation, seed: int) -> np.ndarray:
    """Return which clients are malicious, bool (n_clients,).

    Raises
    ------
    InputError
        Where a named client does not exist or takes no part in training.
    """
    is_malicious = np.zeros(federation.n_clients, bool)
    training = federation.training
    if attack.fraction is not None:
        count = max(1, int(np.floor(attack.fraction * len(training) + 0.5)))
        is_malicious[training[stream(seed, "attack").permutation(len(training))[:count]]] = True
        return is_malicious
    for client in attack.clients or []:
        if client >= len(is_malicious) or federation.unseen[client]:
            why = "takes no part in training" if client < len(is_malicious) else "does not exist"
            raise InputError(
                f"attack.clients has {client}, which {why}; allowed: training clients among 0 to "
                f"{len(is_malicious) - 1}"
            )
        is_malicious[client] = True
    return is_malicious


def check_labels(attack: Attack, name: str, task: str, n_classes: int) -> None:
    """Refuse an attack on labels that the data do not have.

    Raises
    ------
    InputError
        For a task without labels, and for labels beyond ``n_classes``.
    """
    if task not in ("classification", "sequence"):
        raise InputError(
            f"attack is '{name}', but the task of the data is {task}, which has no labels to flip; "
            "allowed: sign_flip, or data of the task classification or sequence"
        )
    for key in ("source", "target"):
        label = getattr(attack, key, None)
        if label is not None and label >= n_classes:
            raise InputError(
                f"attack.{key} is {label}, but labels of these data are 0 to {n_classes - 1}"
            )
