"""Exact diffusion (Yuan, Ying, Zhao and Sayed 2019), NIDS (Li, Shi and Yan 2019), D2 (Tang 2018).

Gossip after the step, corrected by what gossip has moved so far:

    z^k = x^k + u^k - q^k
    x^(k+1) = V z^k
    q^(k+1) = q^k + z^k - V z^k,   q^0 = 0

which is x^(k+1) = V (2 x^k - x^(k-1) + u^k - u^(k-1)) (D2, Alg. 1, line 5) with what it has added
up. V is W in D2, and (I + W) / 2 in exact diffusion (Alg. 1) and in NIDS with equal steps (eq. 9).
The q_i add up to zero; where values stand still, z = x and q = u. NIDS has a first round of its
own, in which nothing is mixed: x^1 = x^0 + u^0 (Alg. 1), so that q^1 = 0.

Convergence: W symmetric; for D2 lambda_min(W) > -1/3 (Assumption 1.2 of the paper); for NIDS
eta < 2 / L, whatever the graph (Theorem 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.exchange.corrections.base import Correction, Neighbours


class ExactDiffusion(Correction):
    """Exact diffusion: corrected gossip by (I + W) / 2 (Yuan et al. 2019)."""

    def _mixed(self, z: Tensor, neighbours: Neighbours) -> Tensor:
        """Return V z."""
        return neighbours.mix(z).add_(z).div_(2)

    def step(
        self, x: Tensor, moved: Tensor, kept: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        z = moved - kept
        after = self._mixed(z, neighbours)
        return after, z.sub_(after).add_(kept)


class D2(ExactDiffusion):
    """D2: corrected gossip by W, whose eigenvalues must be above -1/3 (Tang et al. 2018)."""

    least_eigenvalue = -1 / 3

    def _mixed(self, z: Tensor, neighbours: Neighbours) -> Tensor:
        return neighbours.mix(z)


class Nids(ExactDiffusion):
    """NIDS: exact diffusion after a first round without gossip (Li, Shi and Yan 2019)."""

    needs = "static"

    def width(self, size: int) -> int:
        return size + 1

    def step(
        self, x: Tensor, moved: Tensor, kept: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        begun = kept[:, -1:] > 0
        after, q = super().step(x, moved, kept[:, :-1], neighbours)
        q = torch.where(begun, q, 0.0)
        return torch.where(begun, after, moved), torch.cat([q, torch.ones_like(kept[:, -1:])], 1)
