"""Robust aggregation: what a server makes of updates, some of which may be sent by attackers.

What an aggregator is, and how a section of a configuration becomes one.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from annotated_types import Ge, Gt, Lt

from mpifed.components.base import Component
from mpifed.components.registry import complete, find, find_algorithm
from mpifed.components.schema import LARGEST
from mpifed.exchange.compression import build as compressor
from mpifed.federation.participation import count_participants, fixed_fraction, is_unbiased


class Aggregator(Component, kind="aggregator"):
    """Base class of aggregators; its keyword-only parameters are its options.

    It derives from ``ByCoordinates`` or ``ByProducts``.

    Attributes
    ----------
    needs_fixed_number : bool
        Whether the number of participants must be the same in every round.
    """

    needs_fixed_number: ClassVar[bool] = False

    def least(self, n: int) -> int:
        """Return how many of ``n`` participants it needs at least, to be more than a mean."""
        return 3


class ByCoordinates(Aggregator, kind="aggregator"):
    """An aggregator that treats every coordinate by itself."""

    @abstractmethod
    def combine(self, columns: np.ndarray) -> np.ndarray:
        """Return the aggregate of some coordinates.

        Parameters
        ----------
        columns : ndarray
            Some coordinates of all updates, float64 (n, width), n at least 1. It may be
            overwritten.

        Returns
        -------
        ndarray
            float64 (width,), each computed of its own column alone.
        """


class ByProducts(Aggregator, kind="aggregator"):
    """An aggregator that weighs updates by their inner products."""

    @abstractmethod
    def shares(self, products: np.ndarray) -> np.ndarray:
        """Return the shares of the updates in the aggregate, float64 (n,), whose sum is one.

        Parameters
        ----------
        products : ndarray
            Inner products of all pairs of updates, float64 (n, n), in the order of the clients.
        """


class Mean(Aggregator):
    """No aggregator: the weighted mean, which one attacker moves as far as it likes."""

    def least(self, n: int) -> int:
        return 1


def build(section: Any, path: str = "exchange.aggregator") -> Aggregator | None:
    """Return the aggregator that a section of the configuration asks for; None for ``mean``.

    Parameters
    ----------
    section : str, mapping or Section
        A name, or a mapping with a name and options.
    path : str
        The section's place in the configuration, for messages.

    Raises
    ------
    InputError
        For what is unknown, out of range, or not an aggregator.

    Examples
    --------
    >>> build("median").combine(np.array([[0.0], [1.0], [9.0]]))
    array([1.])
    """
    asked = complete("aggregator", section, path)
    if asked.name == "mean":
        return None
    return cast(Aggregator, find("aggregator", asked.name, f"{path}.name")(**asked.options))


def count_of(share: float, n: int) -> int:
    """Return the whole number of clients in a share of ``n``, rounded down.

    Examples
    --------
    >>> count_of(0.29, 100), count_of(0.2, 9)
    (29, 1)
    """
    return int(np.floor(share * n + 1e-9))


class Median(ByCoordinates):
    """The median of each coordinate, of an even number the mean of the two in the middle."""

    def combine(self, columns: np.ndarray) -> np.ndarray:
        n = len(columns)
        columns.sort(axis=0)  # faster than a partition
        return (columns[(n - 1) // 2] + columns[n // 2]) / 2


class TrimmedMean(ByCoordinates):
    """The mean of each coordinate without its largest and its smallest values.

    Parameters
    ----------
    trim : float
        Share of the participants that is left out at each end, rounded down to whole clients.
    """

    def __init__(self, *, trim: Annotated[float, Gt(0), Lt(0.5)] = 0.2) -> None:
        self.trim = trim

    def least(self, n: int) -> int:
        return n if count_of(self.trim, n) else n + 1

    def combine(self, columns: np.ndarray) -> np.ndarray:
        columns.sort(axis=0)
        cut = count_of(self.trim, len(columns))
        kept = columns[cut : len(columns) - cut]
        # Added row by row: numpy adds a single column in another order than several.
        total = np.zeros(columns.shape[1])
        for row in kept:
            total += row
        return total / len(kept)


class Krum(ByProducts):
    """Krum: the update that is closest to its n - f - 2 nearest ones (Blanchard et al. 2017).

    Parameters
    ----------
    byzantine : float
        Share of the participants that may be attackers; f is that of n, rounded down.
    selected : int
        How many updates of the least scores are averaged; above 1 is multi-Krum.
    """

    needs_fixed_number = True

    def __init__(
        self,
        *,
        byzantine: Annotated[float, Ge(0), Lt(0.5)] = 0.2,
        selected: Annotated[int, Ge(1), Lt(LARGEST)] = 1,
    ) -> None:
        self.byzantine, self.selected = byzantine, selected

    def least(self, n: int) -> int:
        return max(2 * count_of(self.byzantine, n) + 3, self.selected)

    def shares(self, products: np.ndarray) -> np.ndarray:
        n = len(products)
        nearest = n - count_of(self.byzantine, n) - 2
        squares = squared_distances(products)
        np.fill_diagonal(squares, np.inf)
        squares.sort(axis=1)
        scores = np.zeros(n)
        for column in squares.T[:nearest]:
            scores += column
        found = np.zeros(n)
        # Of equal scores the first client's.
        found[np.argsort(scores, kind="stable")[: self.selected]] = 1 / self.selected
        return found


class GeometricMedian(ByProducts):
    """The geometric median, by the smoothed Weiszfeld algorithm (RFA, Pillutla et al. 2022).

    It minimises F(z) = (1/n) sum_i h(||u_i - z||), where h(d) is d for d >= nu and
    d^2 / (2 nu) + nu / 2 below it; weights are equal.

    Parameters
    ----------
    smoothing : float
        nu, below which distances count quadratically.
    tolerance : float
        The iteration ends where it reduces F by less than this share.
    iterations : int
        Most iterations.
    """

    def __init__(
        self,
        *,
        smoothing: Annotated[float, Gt(0)] = 1e-6,
        tolerance: Annotated[float, Ge(0), Lt(1)] = 1e-9,
        iterations: Annotated[int, Ge(1), Lt(LARGEST)] = 200,
    ) -> None:
        self.smoothing, self.tolerance, self.iterations = smoothing, tolerance, iterations

    def shares(self, products: np.ndarray) -> np.ndarray:
        n = len(products)
        squares, shares = squared_distances(products), np.full(n, 1 / n)
        last = np.inf
        for _ in range(self.iterations):
            away = self._distances(squares, shares)
            value = float(self._smoothed(away).mean())
            if last - value <= self.tolerance * value:
                break
            last = value
            weights = 1 / np.maximum(away, self.smoothing)
            shares = weights / weights.sum()
        return shares

    def _distances(self, squares: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """||u_i - z|| for z = sum_j shares[j] u_j, (n,): that of z from a mixture of points."""
        to_each = squares @ shares
        return np.sqrt(np.maximum(to_each - shares @ to_each / 2, 0.0))

    def _smoothed(self, away: np.ndarray) -> np.ndarray:
        nu = self.smoothing
        return np.where(away >= nu, away, away**2 / (2 * nu) + nu / 2)


def squared_distances(products: np.ndarray) -> np.ndarray:
    """Return ||u_i - u_j||^2 of all pairs from their inner products, both float64 (n, n).

    Examples
    --------
    >>> squared_distances(np.array([[1.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    norms = products.diagonal()
    return np.maximum(norms[:, None] + norms - 2 * products, 0.0)


def completed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a server, without ``aggregator`` and ``clip`` that ask for nothing.

    Runs that average do not mention them, as those of earlier versions.
    """
    asked = complete("aggregator", options["aggregator"], "exchange.aggregator", "mean")
    found = {**options, "aggregator": asked}
    idle = {"aggregator": asked.name == "mean", "clip": options["clip"] is None}
    return {key: value for key, value in found.items() if not idle.get(key)}


def refusal(configuration: Any) -> str | None:
    """Return why the options ``aggregator`` and ``clip`` do not go with the others, or None."""
    options = configuration.exchange.options
    asked, clip = options.get("aggregator"), options.get("clip")
    if asked is None and clip is None:
        return None
    said = (
        f"exchange.clip is {clip:g}" if asked is None else f"exchange.aggregator is '{asked.name}'"
    )
    name = configuration.algorithm.name
    algorithm = find_algorithm(name)
    if not algorithm.communicates:
        return f"{said}, but {name} sends nothing; allowed: exchange.aggregator=mean, without clip"
    if algorithm.aggregates == "sums":
        return (
            f"{said}, but the server of {name} adds messages with weights of its own, not the "
            "updates of a model alone; allowed: exchange.aggregator=mean, without clip"
        )
    if (reason := biased(configuration, said)) is not None or asked is None:
        return reason
    if options["average_over"] == "all" or is_unbiased(configuration.participation):
        return (
            f"{said}, which counts those who take part alike; allowed: "
            "exchange.average_over=participants and participation.weights=renormalised"
        )
    return _too_few(configuration, said, algorithm.aggregates == "means")


def biased(configuration: Any, said: str) -> str | None:
    """Return why a biased compressor does not go with a server that takes no plain mean, or None.

    Parameters
    ----------
    configuration : Configuration
        The complete configuration.
    said : str
        What the server does; the beginning of the message.
    """
    section = configuration.compression
    if section.name == "none":
        return None
    if compressor(section).unbiased:
        return None
    return (
        f"{said} and compression is '{section.name}', whose error feedback makes up for errors in "
        "a mean alone; allowed: compression=none, or an unbiased compressor"
    )


def _too_few(configuration: Any, said: str, in_groups: bool) -> str | None:
    """Why an aggregator has too few updates to choose from, or None."""
    aggregator = build(configuration.exchange.options["aggregator"])
    assert aggregator is not None
    fraction, n = fixed_fraction(configuration.participation), configuration.n_training
    if aggregator.needs_fixed_number and (fraction is None or in_groups):
        why = (
            f"{configuration.algorithm.name} averages within groups of clients"
            if in_groups
            else "participation leaves their number to chance"
        )
        return f"{said}, which needs a fixed number of updates, but {why}; allowed: " + (
            "median, trimmed_mean, geometric_median" if in_groups else "a fraction"
        )
    count = n if fraction is None else count_participants(fraction, n)
    if count < aggregator.least(count):
        return (
            f"{said}, but at most {count} client{'s' * (count != 1)} take part in a round, with "
            "which its options make it a plain mean or leave it nothing to choose; allowed: more "
            "clients or participants, or other options"
        )
    return None


__all__ = ["Aggregator", "ByCoordinates", "ByProducts", "build"]
