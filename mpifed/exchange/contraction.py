"""How fast averaging alone would bring clients together: what a schedule's consensus rate predicts.

Koloskova et al. (2020), Assumption 4, which is Assumption 8 of Marfoq et al. (2021): for pure
averaging, E||x^(k + tau) - mean||^2 <= (1 - p) ||x^k - mean||^2. Local steps push clients apart in
every round, so a run that trains comes to rest at a distance above zero instead.
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
    """The rounds of ``inner`` among those who take part: ``taking_part(k)`` is bool (nodes,)."""

    taking_part: Callable[[int], np.ndarray]

    def matrix(self, k: int) -> topologies.MixingMatrix:
        return self.inner.matrix(k).restricted_to(self.taking_part(k))


def predict(
    schedule: topologies.Schedule,
    taking_part: Callable[[int], np.ndarray] | None,
    rounds: int,
) -> dict[str, float | int] | None:
    """(p, tau) of a schedule as plain numbers, for a run of so many rounds.

    ``per_round`` is the factor (1 - p)^(1 / tau) that a round leaves of the squared distance, as
    ``consensus_distance`` counts it; ``standard_error`` is that of p, 0 where p is exact.
    ``taking_part`` is None where everybody does in every round. None where there are too many nodes
    for an estimate, or the rate cannot be told. An estimate looks at no more rounds than the run
    itself went through, or ``FEWEST_SAMPLES`` times tau.
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
