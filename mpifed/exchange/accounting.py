"""What rounds of private training cost: epsilon, by Google's package dp-accounting.

One client's presence moves a sum of updates by the clip norm C, and its replacement by another by
2 C. Which neighbours are meant depends on how participants are drawn, because the package accounts
for the amplification by sampling for these:

* central, ``bernoulli``: Poisson sampling, neighbours by presence, z, by privacy losses;
* central, a fixed fraction below 1: sampling without replacement, by replacement, z / 2, by the
  Renyi bound of Wang, Balle and Kasiviswanathan (2019), which is not tight;
* central, otherwise: no amplification, by presence, z, all rounds, by privacy losses;
* local: no amplification, by replacement of the client's data, z / 2, the rounds in which the
  client took part that did most often, by privacy losses.

Privacy losses are rounded up to a grid (Koskela, Jalko and Honkela 2020): epsilon is a bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from mpifed.federation.clients import Federation, participants
from mpifed.federation.options import PrivacyOptions
from mpifed.federation.participation import Bernoulli, count_participants, fixed_fraction

# The column of metrics.csv, and the key of summary.json.
EPSILON = "epsilon"


# The grid of privacy losses: a finer one takes longer, and changes the fifth digit of epsilon.
GRID = 1e-3


def gaussian(noise_multiplier: float, rounds: int, delta: float) -> float:
    """Return epsilon of ``rounds`` Gaussian mechanisms without sampling."""
    from dp_accounting import GaussianDpEvent

    # Together they are one mechanism with less noise.
    event = GaussianDpEvent(noise_multiplier / max(1, rounds) ** 0.5)
    return _by_losses(event, min(1, rounds), delta)


def poisson_sampled(
    probability: float, noise_multiplier: float, rounds: int, delta: float
) -> float:
    """Return epsilon where each client takes part with a probability; see ``gaussian``."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    event = PoissonSampledDpEvent(probability, GaussianDpEvent(noise_multiplier))
    return _by_losses(event, rounds, delta)


def _by_losses(event: object, rounds: int, delta: float) -> float:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, GRID)
    return _epsilon(accountant, event, rounds, delta)


def sampled_without_replacement(
    n: int, count: int, noise_multiplier: float, rounds: int, delta: float
) -> float:
    """Return epsilon where ``count`` of ``n`` clients take part, for neighbours by replacement."""
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        SampledWithoutReplacementDpEvent,
    )
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    event = SampledWithoutReplacementDpEvent(n, count, GaussianDpEvent(noise_multiplier))
    return _epsilon(accountant, event, rounds, delta)


def _epsilon(accountant: Any, event: object, rounds: int, delta: float) -> float:
    if rounds == 0:
        return 0.0
    log = logging.getLogger("absl")
    # It warns of orders that it leaves out of its minimum, which only makes epsilon larger.
    was, log.disabled = log.disabled, True
    try:
        accountant.compose(event, rounds)
        return float(accountant.get_epsilon(delta))
    finally:
        log.disabled = was


def accountant_of(
    options: PrivacyOptions, federation: Federation, seed: int
) -> Callable[[int], float]:
    """Return a function that maps a number of rounds to the epsilon of these rounds."""
    assert options.noise_multiplier is not None
    z, delta = options.noise_multiplier, options.delta
    if options.where == "local":
        counted = _Participations(federation, seed)
        return lambda rounds: gaussian(z / 2, counted.most(rounds), delta)
    who, n = federation.participation, len(federation.training)
    if isinstance(who, Bernoulli):
        return lambda rounds: poisson_sampled(who.p, z, rounds, delta)
    fraction = fixed_fraction(who)
    count = n if fraction is None else count_participants(fraction, n)
    if count < n:
        return lambda rounds: sampled_without_replacement(n, count, z / 2, rounds, delta)
    return lambda rounds: gaussian(z, rounds, delta)


class _Participations:
    """How often clients took part, counted on from the last call."""

    def __init__(self, federation: Federation, seed: int) -> None:
        self._federation, self._seed = federation, seed
        self._rounds, self._counts = 0, np.zeros(federation.n_clients, np.int64)

    def most(self, rounds: int) -> int:
        """Return the most of the first ``rounds`` in which a client took part."""
        federation = self._federation
        if federation.inclusion == 1:
            return rounds
        if rounds < self._rounds:
            self._rounds, self._counts = 0, np.zeros_like(self._counts)
        for k in range(self._rounds + 1, rounds + 1):
            self._counts += participants(federation, federation.participation, self._seed, k)
        self._rounds = rounds
        return int(self._counts.max())
