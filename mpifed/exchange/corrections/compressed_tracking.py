"""Gradient tracking by compressed messages: BEER and MoTEF.

BEER (Zhao, Li, Li, Richtarik and Chi 2022, arXiv 2201.13320, Alg. 1) gossips with values and
trackers by replicas, h of x and g of y, to which only compressed differences are sent (CHOCO):

    y^k = y^(k-1) + gamma (W - I) g^(k-1) + u^k - u^(k-1),   y^1 = u^1
    g^k = g^(k-1) + C(y^k - g^(k-1))
    x^(k+1) = x^k + gamma (W - I) h^k + y^k
    h^(k+1) = h^k + C(x^(k+1) - h^k),   h^1 = g^0 = 0

MoTEF (Islamov, Gao and Stich 2025, arXiv 2405.20114, Alg. 1) has m^k = (1 - lambda) m^(k-1) +
lambda u^k, with m^1 = u^1, in place of u^k; with lambda = 1 it is BEER. The recursions
were compared with the code of MoTEF's authors, github.com/mlolab/MoTEF, where g^1 = 0: here y^1 is
sent in round 1, as all later ones.

With whole messages and gamma = 1 all replicas are exact after round 1: BEER is gradient tracking
that mixes before the step, begun by a round without gossip, and MoTEF tracks momentum (Takezawa et
al. 2023, arXiv 2209.15505). Biased-DMT (Xu et al. 2026, arXiv 2604.08236) tracks momentum of biased
gradients; its recursion could not be had.

gamma is ``exchange.consensus_step``: the best one that is proven for gossip alone is above the
papers' c rho delta. Convergence: the same symmetric W in all rounds, any contraction
C, and step sizes of the order of gamma rho / L.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from mpifed.message import Correction, Needs, Neighbours


class Beer(Correction):
    """BEER: gradient tracking by compressed messages (Zhao et al. 2022)."""

    needs: ClassVar[Needs] = "static"
    compresses = True

    def width(self, size: int) -> int:
        return 3 * size

    def numbers(self, size: int) -> int:
        return 2 * size

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        assert neighbours.send is not None
        size, replicas = x.shape[1], memory[:, : 2 * x.shape[1]]
        h, g, tracked = memory[:, : 3 * size].split(size, 1)  # y - u
        u = moved - x
        drift = neighbours.mix(replicas).sub_(replicas).mul_(neighbours.consensus_step)
        y = drift[:, size:].add_(tracked).add_(u)
        after = drift[:, :size].add_(x).add_(y)
        g = g + neighbours.send(y - g)
        h = h + neighbours.send(after - h)
        return after, torch.cat([h, g, y - u], 1)


class Motef(Beer):
    """MoTEF: BEER that tracks momentum (Islamov et al. 2025).

    Parameters
    ----------
    momentum_rate : float
        lambda, the weight of a new update in the momentum; 1 is BEER.
    """

    def __init__(self, *, momentum_rate: Annotated[float, Gt(0), Le(1)] = 0.1) -> None:
        self.momentum_rate = momentum_rate

    def width(self, size: int) -> int:
        return 4 * size + 1

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        m, begun = memory[:, 3 * x.shape[1] : -1], memory[:, -1:]
        m = m + (moved - x - m) * (1 - (1 - self.momentum_rate) * begun)
        after, tracking = super().step(x, x + m, memory, neighbours)
        return after, torch.cat([tracking, m, torch.ones_like(begun)], 1)
