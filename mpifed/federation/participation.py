"""Who takes part in a round, and who is late: pure functions of the seed and the round.

Of the two ``weights``, ``unbiased`` has the mean over all clients as its expectation (Horvitz and
Thompson 1952). ``renormalised``, a ratio of two random sums, has not where the n_t differ: it
weighs large clients too little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from mpifed.federation.traces import Trace, TraceOfNamed
from mpifed.random import client_keys, stream
from topologies.schedules.sequences import states

Weights = Literal["renormalised", "unbiased"]


def _renormalised() -> Weights:
    """The default of ``weights``, which a configuration does not spell out."""
    return cast(Weights, field(default="renormalised", metadata={"spelled_out": False}))


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """A ``fraction`` of the clients, drawn uniformly without replacement.

    Parameters
    ----------
    fraction : float
        Share of the clients that takes part.
    weights : {'renormalised', 'unbiased'}
        How a server weighs those who take part.
    """

    name: Literal["uniform"] = "uniform"
    fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    weights: Weights = _renormalised()


@dataclass(frozen=True, kw_only=True)
class Bernoulli:
    """Independent participation with probability ``p``.

    Parameters
    ----------
    p : float
        Probability with which a client takes part in a round.
    weights : {'renormalised', 'unbiased'}
        How a server weighs those who take part.
    """

    name: Literal["bernoulli"] = "bernoulli"
    p: Annotated[float, Gt(0), Le(1)]
    weights: Weights = _renormalised()


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Clients leave and return, each a two-state Markov chain.

    Parameters
    ----------
    rate : float
        Probability that a client which is there leaves before a round.
    recovery : float
        Probability that a client which is away comes back.
    weights : {'renormalised', 'unbiased'}
        How a server weighs those who take part.
    """

    name: Literal["dropout"] = "dropout"
    rate: Annotated[float, Ge(0), Le(0.999)]
    recovery: Annotated[float, Ge(0.001), Le(1)]
    weights: Weights = _renormalised()


@dataclass(frozen=True, kw_only=True)
class Stragglers:
    """Clients are late in a round, each with probability ``rate``.

    Parameters
    ----------
    rate : float
        Probability that a client is late in a round.
    late : {'miss', 'partial'}
        Whether a late client misses the round, or sends what it has after a uniform share of its
        local steps.
    weights : {'renormalised', 'unbiased'}
        How a server weighs those who take part.
    """

    name: Literal["stragglers"] = "stragglers"
    rate: Annotated[float, Ge(0), Lt(1)]
    late: Literal["miss", "partial"] = "miss"
    weights: Weights = _renormalised()


Participation = float | Uniform | Bernoulli | Dropout | Stragglers | Trace

# What ``participation.name`` may be, with its options.
KINDS: Mapping[str, type] = {
    "uniform": Uniform,
    "bernoulli": Bernoulli,
    "dropout": Dropout,
    "stragglers": Stragglers,
    "trace": Trace,
}


def shortest_form(participation: Participation) -> Participation:
    """Return a fixed fraction as a number where that says everything, all else unchanged."""
    if isinstance(participation, Uniform) and participation.weights == "renormalised":
        return participation.fraction
    return participation


def check_clients(participation: Participation, n_clients: int) -> None:
    """Raise ``InputError`` where a trace cannot be read, or names clients that there are not."""
    if isinstance(participation, Trace):
        participation.check(n_clients)


def with_names(participation: Participation, client_names: Sequence[str]) -> Participation:
    """Return the participation of clients whose names the data have."""
    if not isinstance(participation, Trace):
        return participation
    return TraceOfNamed(**vars(participation), client_names=client_names)


def is_drawn(participation: Participation) -> bool:
    """Whether chance decides who takes part."""
    return not isinstance(participation, Trace)


def is_unbiased(participation: Participation) -> bool:
    """Whether participants are weighed by n_t / (n p)."""
    return not isinstance(participation, float) and participation.weights == "unbiased"


def fixed_fraction(participation: Participation) -> float | None:
    """Return the fixed fraction that takes part; None where their number is random."""
    if isinstance(participation, Uniform):
        return participation.fraction
    return participation if isinstance(participation, float) else None


def count_participants(fraction: float, n_training: int) -> int:
    """Return how many clients take part with a fixed fraction: max(1, round(f n))."""
    return max(1, int(np.floor(fraction * n_training + 0.5)))


def present(
    participation: Participation, training: np.ndarray, n_clients: int, seed: int, round: int
) -> np.ndarray:
    """Draw who takes part in a round."""
    active = np.zeros(n_clients, bool)
    active[training] = _present_among(participation, training, n_clients, seed, round)
    return active


def _present_among(
    participation: Participation, training: np.ndarray, n_clients: int, seed: int, round: int
) -> np.ndarray:
    """``present`` of the clients ``training`` alone: bool, of their shape."""
    everyone, fraction = np.ones(len(training), bool), fixed_fraction(participation)
    if fraction == 1.0:
        return everyone
    if fraction is not None:
        count = count_participants(fraction, len(training))
        order = stream(seed, "participation", round).permutation(len(training))
        everyone[order[count:]] = False
        return everyone
    match participation:
        case Dropout(rate=rate, recovery=recovery):
            return _chains(rate, recovery, training, seed, round)
        case Stragglers(rate=rate, late="miss"):
            return ~_late(rate, training, seed, round)
        case Bernoulli(p=p):
            return stream(seed, "participation", round).random(n_clients)[training] < p
        case Trace():
            return participation.present(training, round)
    return everyone


def efforts(
    participation: Participation, clients: np.ndarray, seed: int, round: int
) -> np.ndarray | None:
    """Return the share of its local steps that each of ``clients`` (int64) takes in ``round``."""
    if not isinstance(participation, Stragglers) or participation.late != "partial":
        return None
    late = _late(participation.rate, clients, seed, round)
    return np.where(late, 1.0 - _uniform(seed, "effort", round, clients), 1.0)


def inclusion(participation: Participation, n_training: int) -> float:
    """Return the probability with which any of ``n_training`` clients takes part in a round, or
    their mean share in a trace.
    """
    fraction = fixed_fraction(participation)
    if fraction is not None:
        return count_participants(fraction, n_training) / n_training
    match participation:
        case Bernoulli(p=p):
            return p
        case Dropout(rate=rate, recovery=recovery):
            return recovery / (rate + recovery)
        case Stragglers(rate=rate, late="miss"):
            return 1.0 - rate
        case Trace():
            return participation.share(n_training)
    return 1.0


def _uniform(seed: int, purpose: str, round: int, clients: np.ndarray) -> np.ndarray:
    """float64 in [0, 1), one for each client."""
    return (client_keys(seed, purpose, round, clients) >> np.uint64(11)) * 2.0**-53


def _late(rate: float, clients: np.ndarray, seed: int, round: int) -> np.ndarray:
    return _uniform(seed, "late", round, clients) < rate


def _chains(rate: float, recovery: float, clients: np.ndarray, seed: int, round: int) -> np.ndarray:
    """Which of ``clients`` are there in ``round``: bool, each a stationary Markov chain."""

    def uniform(round: int, which: np.ndarray) -> np.ndarray:
        return _uniform(seed, "dropout", round, clients[which])

    return states(rate, recovery, len(clients), uniform, round)


def count_unseen(n_clients: int, fraction: float) -> int:
    """Return how many clients are kept out of training: the rounded fraction, but never all."""
    return min(n_clients - 1, math.floor(fraction * n_clients + 0.5))
