"""Gradient tracking: every client estimates the mean update of all and moves by it.

Mixing after the step (NEXT, Di Lorenzo and Scutari 2016, eqs. 12-16):

    y^k = W y^(k-1) + u^k - u^(k-1)
    x^(k+1) = W (x^k + y^k)

or before it (DIGing, Nedic, Olshevsky and Shi 2017, Alg. 1):

    y^k = W y^(k-1) + u^k - u^(k-1)
    x^(k+1) = W x^k + y^k

with u^0 = y^0 = 0, or mixing y as well after it is changed (Aug-DGM, Xu et al. 2015, eq. 6):

    y^k = W (y^(k-1) + u^k - u^(k-1)),   y^1 = u^1
    x^(k+1) = W (x^k + y^k)

Columns of W sum to one, so the y_i have the mean of the u_i in every round.
With equal quadratic risks mixing after the step bears eta L below the least of 2 and
(1 - l^2) / |l| for the least eigenvalue l of W where that is negative, mixing before it
(1 + l)^2 / 2, and Aug-DGM the least of 2 and (1 + l)^2 / (2 l^2) where l is negative. The papers'
own bounds, for all convex risks, are smaller.

Push-Pull (Pu, Shi, Xu and Nedic 2021) and AB (Xin and Khan 2018) mix x by W, whose rows sum to one,
and y by P[i, j] = W[i, j] / sum_i W[i, j], whose columns do, so that W may be any directed graph:

    y^k = P y^(k-1) + u^k - u^(k-1)
    x^(k+1) = W (x^k + y^k)          (Push-Pull, eq. 6)        W x^k + y^k          (AB, eq. 3)

With momentum of the last move, AB is ABm, the distributed heavy ball (Xin and Khan 2020,
arXiv 1808.02942): x^(k+1) = W x^k + y^k + beta (x^k - x^(k-1)).

A message has x and y; what is kept is W y - u.

Where clients take several steps in a round, u is their sum (local updates, Nguyen et al. 2023), and
the limit is that of FedAvg with as many steps; ``algorithm=kgt`` corrects the steps themselves.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from mpifed.message import Correction, Needs, Neighbours, halves


class Tracking(Correction):
    """Gradient tracking: clients move by an estimate of the mean update (Nedic et al. 2017).

    Parameters
    ----------
    tracking_mixes : {'after', 'before'}
        Whether values are mixed after the step (NEXT), or before it (DIGing), which bears smaller
        steps only.
    """

    needs: ClassVar[Needs] = "doubly_stochastic"
    linear = True
    by_columns: ClassVar[bool] = False  # whether y is mixed by P, as in Push-Pull

    def __init__(self, *, tracking_mixes: Literal["after", "before"] = "after") -> None:
        self.after = tracking_mixes == "after"

    def numbers(self, size: int) -> int:
        return 2 * size

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        y = (moved - x).add_(memory)  # W y^(k-1) - u^(k-1) is kept
        mixed = neighbours.mix(y / neighbours.column_sums.to(y) if self.by_columns else y)
        after = neighbours.mix(y.add_(x)) if self.after else neighbours.mix(x).add_(y)
        return after, mixed.sub_(moved).add_(x)


class PushPull(Tracking):
    """Push-Pull and, mixing before the step, AB: tracking on directed graphs (Pu et al. 2021)."""

    needs = "positive"
    by_columns = True


class AugDgm(Tracking):
    """Aug-DGM: tracking whose estimates are mixed with their last change (Xu et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()

    def width(self, size: int) -> int:
        return size + 1

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        u, begun = moved - x, memory[:, -1:] > 0
        trackers = memory[:, :-1] + u  # y^(k-1) - u^(k-1) is kept
        y = torch.where(begun, neighbours.mix(trackers), trackers)
        remembered = torch.cat([y - u, torch.ones_like(memory[:, -1:])], 1)
        return neighbours.mix(y.add_(x)), remembered


class HeavyBall(Tracking):
    """ABm, the distributed heavy ball: AB with momentum of the last move (Xin and Khan 2020).

    Parameters
    ----------
    beta : float
        The share of a client's last move that is made again.
    """

    needs = "positive"
    by_columns = True

    def __init__(self, *, beta: Annotated[float, Ge(0), Lt(1)] = 0.5) -> None:
        super().__init__(tracking_mixes="before")
        self.beta = beta

    def width(self, size: int) -> int:
        return 2 * size

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        passed, move = halves(memory)
        after, passed = super().step(x, moved, passed, neighbours)
        after.add_(move, alpha=self.beta)
        return after, torch.cat([passed, after - x], 1)
