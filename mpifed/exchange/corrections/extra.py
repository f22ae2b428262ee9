"""EXTRA (Shi, Ling, Wu and Yin 2015), with W~ = (I + W) / 2:

    x^(k+1) = W x^k + u^k - q^k
    q^(k+1) = q^k + (x^k - W x^k) / 2,   q^0 = 0

which is Alg. 1 of the paper (eq. 2.13, x^(k+2) = (I + W) x^(k+1) - W~ x^k + u^(k+1) - u^k) with
what it has added up, as in eq. 2.9. The q_i add up to zero; where values stand still, q_i = u_i,
so the u_i add up to zero too.

Convergence (Theorem 3.3): W symmetric, eta < 2 lambda_min(W~) / L = (1 + lambda_min(W)) / L.
With equal quadratic risks the bound is (5 + 3 lambda_min(W)) / (4 L) (Li and Yan 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.exchange.corrections.base import Correction, Neighbours


class Extra(Correction):
    """EXTRA: gossip before the step, corrected by what it has moved so far (Shi et al. 2015)."""

    def step(
        self, x: Tensor, moved: Tensor, kept: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        mixed = neighbours.mix(x)
        away = x - mixed
        torch.sub(moved, away, out=mixed).sub_(kept)  # W x + u - q
        return mixed, away.div_(2).add_(kept)
