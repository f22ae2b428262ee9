"""Quasi-global momentum (Lin, Karimireddy, Stich and Jaggi 2021, Alg. 1, QG-DSGDm).

The momentum of a client is that of the model it has after gossip, in which the others' updates
are, and not of its own gradients alone:

    x^(k+1/2) = x^k + u^k + beta m^k
    x^(k+1) = W x^(k+1/2)
    m^(k+1) = mu m^k + (1 - mu) (x^(k+1) - x^k),   m^0 = 0

m is -eta times the paper's. Theorem 3.1 asks that beta / (1 - beta) be small against the spectral
gap; in practice 0.9 is used. An update is amplified by 1 / (1 - beta) in the long run, by which
the learning rate should be smaller than without momentum.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from mpifed.message import Correction, Neighbours


class QuasiGlobal(Correction):
    """Quasi-global momentum: along the moves of the mixed model (Lin et al. 2021).

    Parameters
    ----------
    beta : float
        Weight beta of the momentum in a step.
    mu : float, optional
        Share of the momentum that stays from round to round; None is beta.
    """

    needs = "doubly_stochastic"
    linear = True

    def __init__(
        self,
        *,
        beta: Annotated[float, Ge(0), Lt(1)] = 0.9,
        mu: Annotated[float, Ge(0), Lt(1)] | None = None,
    ) -> None:
        self.beta, self.mu = beta, beta if mu is None else mu

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        message = (self.beta * (1 - self.mu) * memory).add_(moved)  # m / (1 - mu) is kept
        after = neighbours.mix(message)
        return after, torch.mul(memory, self.mu, out=message).add_(after).sub_(x)
