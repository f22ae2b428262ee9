"""How fast averaging alone would bring clients together: what a schedule's consensus rate predicts.

Koloskova et al. (2020), Assumption 4, which is Assumption 8 of Marfoq et al. (2021): for pure
averaging, E||x^(k + tau) - mean||^2 <= (1 - p) ||x^k - mean||^2. Local steps push clients apart in
every round, so the distance in a run that trains does not fall to zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import topologies
from topologies.thinning import Partial

FEWEST_SAMPLES, MOST_SAMPLES = 20, 200
"""Blocks of tau rounds that the rate of a schedule without a closed form is estimated from."""

MOST_NODES = 1000
"""Nodes up to which such an estimate is made; it holds matrices of nodes x nodes."""


@dataclass(frozen=True)
class Attended(Partial):
    """The matrices of a schedule among those who take part.

    Attributes
    ----------
    taking_part : callable
        Maps a round k to bool (nodes,).
    """

    taking_part: Callable[[int], np.ndarray]

    def matrix(self, k: int) -> topologies.MixingMatrix:
        """Return W^k of the schedule ``inner``, restricted to the participants of round k."""
        return self.inner.matrix(k).restricted_to(self.taking_part(k))


def predict(
    schedule: topologies.Schedule,
    taking_part: Callable[[int], np.ndarray] | None,
    rounds: int,
) -> dict[str, float | int] | None:
    """Return the consensus rate (p, tau) of a schedule as plain numbers.

    Parameters
    ----------
    schedule : topologies.Schedule
        Gives W^k.
    taking_part : callable or None
        Maps a round k to bool (nodes,); None where all nodes take part in every round.
    rounds : int
        Rounds of the run. An estimate looks at no more than these, or ``FEWEST_SAMPLES`` times tau.

    Returns
    -------
    dict or None
        ``p``; ``tau``; ``per_round``, the factor (1 - p)^(1 / tau) of the squared distance in a
        round; and ``standard_error``, that of p, 0 where p is exact. None if there are too many
        nodes for an estimate, or the rate is not defined.
    """
    if taking_part is not None:
        schedule = Attended(schedule, taking_part)
    if schedule.period is None and schedule.n > MOST_NODES:
        return None
    samples = min(max(rounds // schedule.tau, FEWEST_SAMPLES), MOST_SAMPLES)
    try:
        rate = topologies.consensus_rate(schedule, samples)
    except topologies.TopologyError:
        return None
    return {
        "p": rate.p,
        "tau": rate.tau,
        "per_round": max(0.0, 1 - rate.p) ** (1 / rate.tau),
        "standard_error": rate.standard_error,
    }
