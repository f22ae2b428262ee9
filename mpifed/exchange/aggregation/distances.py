"""Aggregators that weigh updates by their distances: Krum, multi-Krum, and the geometric median.

Distances follow from inner products, ||u_i - u_j||^2 = <u_i, u_i> + <u_j, u_j> - 2 <u_i, u_j>, in
float64: squares of them are exact to about 2**-50 of the largest ||u||^2.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from mpifed.components.values import LARGEST
from mpifed.exchange.aggregation.base import ByProducts, count_of


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
