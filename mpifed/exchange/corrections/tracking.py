"""Gradient tracking: every client estimates the mean update of all and moves by it.

Mixing after the step (NEXT, Di Lorenzo and Scutari 2016, eqs. 12-16; Aug-DGM, Xu et al. 2015):

    y^k = W y^(k-1) + u^k - u^(k-1)
    x^(k+1) = W (x^k + y^k)

or before it (DIGing, Nedic, Olshevsky and Shi 2017, Alg. 1):

    y^k = W y^(k-1) + u^k - u^(k-1)
    x^(k+1) = W x^k + y^k

with u^0 = y^0 = 0. Columns of W sum to one, so the y_i have the mean of the u_i in every round.
With equal quadratic risks mixing after the step bears eta L below the least of 2 and
(1 - l^2) / |l| for the least eigenvalue l of W where that is negative, and mixing before it
(1 + l)^2 / 2. The papers' own bounds, for all convex risks, are smaller.

A message has x and y; what is kept is W y - u.

Where clients take several steps in a round, u is their sum (local updates, Nguyen et al. 2023), and
the limit is that of FedAvg with as many steps; ``algorithm=kgt`` corrects the steps themselves.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from mpifed.exchange.corrections.base import Correction, Neighbours


class Tracking(Correction):
    """Gradient tracking: clients move by an estimate of the mean update (Nedic et al. 2017).

    Parameters
    ----------
    tracking_mixes : {'after', 'before'}
        Whether values are mixed after the step (NEXT), or before it (DIGing), which bears smaller
        steps only.
    """

    needs = "doubly_stochastic"

    def __init__(self, *, tracking_mixes: Literal["after", "before"] = "after") -> None:
        self.after = tracking_mixes == "after"

    def numbers(self, size: int) -> int:
        return 2 * size

    def step(
        self, x: Tensor, moved: Tensor, kept: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        y = (moved - x).add_(kept)  # W y^(k-1) - u^(k-1) is kept
        mixed = neighbours.mix(y)
        after = neighbours.mix(y.add_(x)) if self.after else neighbours.mix(x).add_(y)
        return after, mixed.sub_(moved).add_(x)
