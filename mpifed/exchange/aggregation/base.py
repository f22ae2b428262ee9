"""What an aggregator is, and how a section of a configuration becomes one.

A server takes u_1, ..., u_n from the n participants of a round, the *updates* by which they move
the shared value, and moves it by their mean. One attacker moves a mean as far as it likes. An
aggregator takes the place of the mean. It sees updates alone, so it goes with any method whose
server averages. All clients count alike, whatever their numbers of samples: an attacker would
claim many.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, cast

import numpy as np

from mpifed.components.base import Component
from mpifed.components.registry import complete, find


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
