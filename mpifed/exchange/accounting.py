"""What rounds of private training cost: epsilon, by Google's package dp-accounting.

One client's presence moves a sum of updates by the clip norm C, and its replacement by another by
2 C. Which neighbours are meant depends on how participants are drawn, because the package accounts
for the amplification by sampling for these:

* central, ``bernoulli``: Poisson sampling, neighbours by presence, z, by privacy losses;
* central, a fixed fraction below 1: sampling without replacement, by replacement, z / 2, by the
  Renyi bound of Wang, Balle and Kasiviswanathan (2019), which is not tight;
* central, otherwise: no amplification, by presence, z, all rounds, exactly;
* local: no amplification, by replacement of the client's data, z / 2, the rounds in which the
  client took part that did most often, exactly.

Without amplification, T rounds are one Gaussian mechanism of noise z / sqrt(T), whose epsilon is
that of Balle and Wang (2018), Theorem 8. It also bounds what sampled rounds cost.

Privacy losses are rounded up to a grid (Koskela, Jalko and Honkela 2020): epsilon is a bound, which
changes in its fifth digit where little noise or many rounds need a wider grid.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpifed.federation.federation import Federation, participants
from mpifed.federation.options import PrivacyOptions
from mpifed.federation.participation import Bernoulli, count_participants, fixed_fraction

# The column of metrics.csv, and the key of summary.json.
EPSILON = "epsilon"


# The grid of privacy losses: a finer one takes longer, and changes the fifth digit of epsilon.
GRID = 1e-3

# Most points of the grid, of one round and of all: at most about four seconds and 200 MB.
OF_ROUND, OF_ALL = 20_000, 1_000_000

# Grids wider than this add too much; so little noise protects nobody, sampled or not.
WIDEST = 1.0


def gaussian(noise_multiplier: float, rounds: int, delta: float) -> float:
    """Return epsilon of ``rounds`` Gaussian mechanisms without sampling."""
    return of_gdp(math.sqrt(rounds) / noise_multiplier, delta)


def of_gdp(mu: float, delta: float) -> float:
    """Return epsilon of a mu-GDP mechanism, such as a Gaussian one of noise 1 / mu.

    With epsilon = mu (mu / 2 + s), delta of Balle and Wang (2018), Theorem 8, is

        exp(-s^2 / 2) (erfcx(s / sqrt(2)) - erfcx((mu + s) / sqrt(2))) / 2

    Examples
    --------
    >>> round(of_gdp(1.0, 1e-5), 12), of_gdp(0.0, 1e-5)
    (4.377178095681, 0.0)
    """
    from scipy.optimize import brentq
    from scipy.special import erfcx, ndtri

    def excess(s: float) -> float:
        tails = erfcx(s / math.sqrt(2)) - erfcx((mu + s) / math.sqrt(2))
        return float(math.exp(-s * s / 2) * tails / 2 - delta)

    least = max(-mu / 2, -30.0)  # where delta is that of epsilon 0, or 1
    if excess(least) <= 0:
        return 0.0
    return float(mu * (mu / 2 + brentq(excess, least, -ndtri(delta) + 1e-9, xtol=1e-14)))


def poisson_sampled(
    probability: float, noise_multiplier: float, rounds: int, delta: float
) -> float:
    """Return epsilon where each client takes part with a probability; see ``gaussian``."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    unsampled, z = gaussian(noise_multiplier, rounds, delta), noise_multiplier
    one = 1 / (2 * z * z) + 14 / z
    shares = math.sqrt(rounds * probability * (1 - probability))
    spread = shares / (2 * z * z) + math.sqrt(rounds * probability) / z
    grid = max(GRID, one / OF_ROUND, min(rounds * one, 16 * spread) / OF_ALL)
    if probability == 1 or grid > WIDEST:
        return unsampled
    event = PoissonSampledDpEvent(probability, GaussianDpEvent(z))
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, grid)
    return min(unsampled, _epsilon(accountant, event, rounds, delta))


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
    unsampled = gaussian(noise_multiplier, rounds, delta)
    return min(unsampled, _epsilon(accountant, event, rounds, delta))


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
