"""Attackers that know what honest clients send, and all send the same; ``colluding`` has attacks.

Of the updates u_i that the h honest participants of a round send, mu is the mean and sigma the
standard deviation of each coordinate. A message mu + t d may be found by a search for the t that
takes what the server makes of all messages as far from mu as possible, as in ByzFL (Gonzalez et al.
2025): it knows the aggregator and what stands before it, but no compressor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.aggregation import norms
from mpifed.exchange.attacks import Attack, Attackers
from mpifed.exchange.base import Channel, Round, to_server
from mpifed.exchange.reduction import weighted_sum
from mpifed.state import check_result

EVALUATIONS, SHRINKING = 16, 0.8
"""Factors that a search tries, and the share of a step that is left of it at its end."""


@dataclass(frozen=True)
class Seen:
    """What attackers know in a round; its methods are collective.

    ``updates`` (clients, ...) are those of the honest participants ``ids`` hosted here, ``clients``
    are all honest participants, and ``outcome(message)`` is what the server makes of a message.
    """

    updates: Tensor
    ids: np.ndarray
    clients: np.ndarray
    round: Round
    outcome: Callable[[Tensor], Tensor]

    def total(self, rows: Tensor, weights: np.ndarray) -> Tensor:
        """The weighted sum of rows of honest participants."""
        return weighted_sum(self.round.federation, rows, weights, self.ids)

    @cached_property
    def mean(self) -> Tensor:
        """mu."""
        return self.total(self.updates, np.full(len(self.ids), 1 / len(self.clients)))

    @cached_property
    def deviation(self) -> Tensor:
        """sigma."""
        squares = (self.updates - self.mean) ** 2
        return self.total(squares, np.full(len(self.ids), 1 / len(self.clients))).sqrt()

    def farthest(self, direction: Tensor) -> Tensor:
        """Return mu + t direction for the t that a search finds best for the attackers."""

        def distance(factor: float) -> float:
            away = self.outcome(self.mean + factor * direction) - self.mean
            return float(self.round.federation.communicator.broadcast(norms(away[None]))[0])

        return self.mean + maximum(distance) * direction


def maximum(value: Callable[[float], float]) -> float:
    """Return the factor, at least 0, with the largest value of those tried.

    Steps double as long as they help; then they shrink, around the best so far.
    """
    best, most, at, step, helps = 0.0, value(0.0), 0.0, 1.0, True
    for _ in range(EVALUATIONS - 1):
        at = abs(best + step if helps else at + step if at < best else at - step)
        found = value(at)
        helps = helps and found > most
        step *= 2 if helps else SHRINKING
        if found > most:
            best, most = at, found
    return best


class Colluding(Attack):
    """Base class of attacks by clients that know all updates."""

    colludes: ClassVar[bool] = True

    @abstractmethod
    def message(self, seen: Seen) -> Tensor:
        """Return what all malicious participants send, of the shape of an update. Collective."""


def collusion(
    attackers: Attackers, rows: Tensor, channel: Channel, before: Tensor | None = None
) -> Tensor:
    """Return the participants' ``rows``, updates of ``before`` (or of zero), as they are sent."""
    round, who = channel.round, attackers.who
    honest = np.flatnonzero(round.active & ~who)
    if not 0 < len(honest) < round.count:
        return rows
    base: Tensor | float = 0.0 if before is None else before
    own = torch.from_numpy(who[round.ids]).to(rows.device)

    def sent(message: Tensor) -> Tensor:
        made = rows.clone()
        made[own] = (message + base).to(rows)
        return made

    def outcome(message: Tensor) -> Tensor:
        return to_server(channel).outcome(sent(message) - base)

    attack: Any = attackers.attack
    seen = Seen((rows - base)[~own], round.ids[~who[round.ids]], honest, round, outcome)
    message = attack.message(seen)
    check_result(message, seen.mean, attack, "message")
    return sent(message)
