"""DecentLaM (Yuan et al. 2021, Alg. 2): momentum that does not enlarge the bias of gossip.

Momentum SGD followed by gossip has a bias that is larger by 1 / (1 - beta)^2 (Proposition 2).
DecentLaM lets the whole step of plain gossip, which is a step of gradient descent on a penalty, be
what momentum averages:

    m^(k+1) = beta m^k + W (x^k + u^k) - x^k,   m^0 = 0
    x^(k+1) = x^k + m^(k+1)

m is -eta times the paper's. The limit is that of plain gossip with the same step size, which
has a bias, whatever beta is. Convergence (Theorem 1): W symmetric and positive definite, which the
paper says of (I + W) / 2; W with eigenvalues down to -1 bears a beta up to 1 with small steps.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from mpifed.message import Correction, Neighbours


class DecentLaM(Correction):
    """DecentLaM: momentum with the limit of plain gossip (Yuan et al. 2021).

    Parameters
    ----------
    beta : float
        Share of the momentum that stays from round to round.
    """

    linear = True

    def __init__(self, *, beta: Annotated[float, Ge(0), Lt(1)] = 0.9) -> None:
        self.beta = beta

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        mixed = neighbours.mix(moved)
        momentum = (self.beta * memory).add_(mixed).sub_(x)
        return torch.add(x, momentum, out=mixed), momentum
