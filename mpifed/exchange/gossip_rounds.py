"""Which rounds of gossip communicate."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

import topologies
from topologies.schedules.sequences import Around, identity

When = Literal["every", "late", "geometric"] | list[Annotated[int, Ge(1)]]


@dataclass(frozen=True)
class Chosen(Around):
    """``inner`` in some of the first ``horizon`` rounds and in all later ones, of ``steps`` each.

    The matrices of the rounds that communicate follow each other as those of ``inner`` do.
    """

    rounds: list[int]
    horizon: int
    steps: int = 1
    period = None

    def matrix(self, k: int) -> topologies.MixingMatrix:
        """Return W^k; k counts the steps of all rounds."""
        earlier, step = divmod(k - 1, self.steps)
        round = earlier + 1
        turn = bisect_right(self.rounds, round) + max(0, round - self.horizon)
        if round <= self.horizon and (not turn or self.rounds[turn - 1] != round):
            return identity(self.n)
        return self.inner.matrix((turn - 1) * self.steps + step + 1)


def communicating(when: When, budget: int | None, horizon: int) -> list[int]:
    """Return the rounds of the first ``horizon`` in which clients send, ascending.

    Examples
    --------
    >>> communicating("late", 3, 100), communicating("geometric", 4, 100)
    ([98, 99, 100], [1, 79, 96, 100])
    """
    if not isinstance(when, str):
        return sorted(set(when))
    count = min(horizon, budget or max(1, horizon // 10))
    if when == "late":
        return [*range(horizon - count + 1, horizon + 1)]
    left, rounds = 0, []
    for j in range(count):
        # As far from the end as geometric growth says, with room for those before it.
        far = round(horizon ** (j / max(1, count - 1)))
        left = min(max(left + 1, far), horizon - count + 1 + j)
        rounds.append(horizon + 1 - left)
    return rounds[::-1]
