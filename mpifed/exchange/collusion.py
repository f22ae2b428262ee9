"""Attackers that know what honest clients send, and all send the same message.

Of the updates u_i that the h honest participants of a round send, mu is the mean and sigma the
standard deviation of each coordinate. A message mu + t d may be found by a search for the t that
takes what the server makes of all messages as far from mu as possible, as in ByzFL (Gonzalez et al.
2025): it knows the aggregator and what stands before it, but no compressor.

    alie     mu - z sigma            a little is enough (Baruch, Baruch and Goldberg 2019, Alg. 3)
    ipm      -epsilon mu             inner-product manipulation (Xie, Koyejo and Gupta 2020)
    mimic    u_v                     the update of a victim v (Karimireddy, He and Jaggi 2022)

The attackers of Baruch et al. estimate mu and sigma from what they would have sent themselves; here
they see them. The victim of Karimireddy et al. is found in the first rounds, by the direction in
which updates vary most; here it is named.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Gt
from scipy.special import ndtri
from torch import Tensor

from mpifed.exchange.aggregation import norms
from mpifed.exchange.attacks import Attack, ClientNumber
from mpifed.exchange.base import Round, Updates, to_server
from mpifed.federation.reduction import weighted_sum
from mpifed.state import check_result

EVALUATIONS, SHRINKING = 16, 0.8
"""Factors that a search tries, and the share of a step that is left of it at its end."""


@dataclass(frozen=True)
class Seen:
    """What attackers know in a round; its methods and ``deviation`` are collective.

    ``updates`` (clients, ...) are those of the honest participants ``ids`` hosted here, ``clients``
    are all honest participants, ``mean`` is mu, and ``outcome(message)`` is what the server makes
    of a message.
    """

    updates: Tensor
    ids: np.ndarray
    clients: np.ndarray
    round: Round
    mean: Tensor
    outcome: Callable[[Tensor], Tensor]

    def total(self, rows: Tensor, weights: np.ndarray) -> Tensor:
        """The weighted sum of rows of honest participants."""
        return weighted_sum(self.round.federation, rows, weights, self.ids)

    @property
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
        attained = value(at)
        helps = helps and attained > most
        step *= 2 if helps else SHRINKING
        if attained > most:
            best, most = at, attained
    return best


class Colluding(Attack):
    """Base class of attacks by clients that know all updates."""

    colludes: ClassVar[bool] = True

    @abstractmethod
    def message(self, seen: Seen) -> Tensor:
        """Return what all malicious participants send, of the shape of an update. Collective."""

    def attacked(self, updates: Updates, who: np.ndarray, channel: Any) -> Updates:
        round = channel.round
        honest = np.flatnonzero(round.active & ~who)
        if not 0 < len(honest) < round.count:
            return updates
        is_attacker = torch.from_numpy(who[round.ids]).to(updates.values.device)
        attackers, others = is_attacker.nonzero()[:, 0], (~is_attacker).nonzero()[:, 0]

        def sent(message: Tensor) -> Updates:
            return updates.replaced(attackers, message.expand(len(attackers), *message.shape))

        def outcome(message: Tensor) -> Tensor:
            return to_server(channel).outcome(sent(message).differences)

        visible, ids = updates.some(others).differences, round.ids[~who[round.ids]]
        mean = weighted_sum(round.federation, visible, np.full(len(ids), 1 / len(honest)), ids)
        seen = Seen(visible, ids, honest, round, mean, outcome)
        message = self.message(seen)
        check_result(message, seen.mean, self, "message")
        return sent(message)


class LittleIsEnough(Colluding):
    """A little is enough, ALIE: the honest mean minus z deviations (Baruch et al. 2019).

    Parameters
    ----------
    z : float, 'formula' or 'search'
        The number of deviations. ``formula`` is the paper's: with s = floor(n / 2 + 1) - m, at
        least 1, honest ones that m malicious of n participants need for a majority, the standard
        normal quantile of (n - m - s) / (n - m). ``search`` tries several.
    **options
        ``clients`` or ``fraction``, as for every attack.
    """

    def __init__(
        self,
        *,
        z: Annotated[float, Gt(0)] | Literal["formula", "search"] = 1.5,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.z = z

    def message(self, seen: Seen) -> Tensor:
        if self.z == "search":
            return seen.farthest(-seen.deviation)
        n, honest, z = seen.round.count, len(seen.clients), self.z
        if z == "formula":
            supporters = max(n // 2 + 1 - (n - honest), 1)
            z = float(ndtri((honest - supporters) / honest))
        return seen.mean - z * seen.deviation


class InnerProduct(Colluding):
    """Inner-product manipulation, IPM: minus the honest mean, scaled (Xie et al. 2020).

    Parameters
    ----------
    epsilon : float or 'search'
        The factor of the mean. ``search`` tries several.
    **options
        ``clients`` or ``fraction``, as for every attack.
    """

    def __init__(
        self, *, epsilon: Annotated[float, Gt(0)] | Literal["search"] = 0.5, **options: Any
    ) -> None:
        super().__init__(**options)
        self.epsilon = epsilon

    def message(self, seen: Seen) -> Tensor:
        if isinstance(self.epsilon, str):
            return seen.farthest(-seen.mean)
        return -self.epsilon * seen.mean


class Mimic(Colluding):
    """Mimic: all send the update of one honest client, which then counts for several (2022).

    Parameters
    ----------
    victim : int, optional
        The honest client. In a round without it, and for None, it is the first honest participant.
    **options
        ``clients`` or ``fraction``, as for every attack.
    """

    def __init__(self, *, victim: ClientNumber | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.victim = victim

    def message(self, seen: Seen) -> Tensor:
        victim = self.victim if self.victim in seen.clients else seen.clients[0]
        return seen.total(seen.updates, (seen.ids == victim).astype(float))
