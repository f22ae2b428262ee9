"""Centred clipping (Karimireddy, He and Jaggi 2021): a mean of updates clipped around the last one.

With n updates u_i, v begins at the last aggregate, zero in round 1, and moves some times by

    v <- v + (1 / n) sum_i (u_i - v) min(1, tau / ||u_i - v||)

An attacker moves it by at most tau / n. The paper's clients send their momentum.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt

from mpifed.message import ByProducts


class CentredClipping(ByProducts):
    """Centred clipping: a mean of updates clipped around the last aggregate (Karimireddy 2021).

    Parameters
    ----------
    radius : float
        tau, the distance from the centre to which longer ones are clipped.
    iterations : int
        How often the centre moves in a round.
    """

    centred = True

    def __init__(
        self,
        *,
        radius: Annotated[float, Gt(0)] = 10.0,
        iterations: Annotated[int, Ge(1)] = 1,
    ) -> None:
        self.radius, self.iterations = radius, iterations

    def shares(self, products: np.ndarray) -> np.ndarray:
        """Shares of distances from the last aggregate; what they lack of one is its own."""
        n = len(products)
        shares = np.zeros(n)
        for _ in range(self.iterations):
            to_each = products @ shares
            squares = products.diagonal() - 2 * to_each + shares @ to_each
            away = np.sqrt(np.maximum(squares, 0))
            moves = self.radius / np.maximum(away, self.radius) / n
            shares = shares * (1 - moves.sum()) + moves
        return shares
