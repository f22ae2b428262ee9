"""Exact diffusion (Yuan, Ying, Zhao and Sayed 2019), NIDS (Li, Shi and Yan 2019), D2 (Tang 2018).

Gossip after the step, corrected by what gossip has moved so far:

    z^k = x^k + u^k - q^k
    x^(k+1) = V z^k
    q^(k+1) = q^k + z^k - V z^k,   q^0 = 0

which is x^(k+1) = V (2 x^k - x^(k-1) + u^k - u^(k-1)) (D2, Alg. 1, line 5) with what it has added
up. V is W in D2, and (I + W) / 2 in exact diffusion (Alg. 1) and in NIDS with equal steps (eq. 9).
The q_i add up to zero; where values stand still, z = x and q = u. NIDS has a first round of its
own, in which nothing is mixed: x^1 = x^0 + u^0 (Alg. 1), so that q^1 = 0.

EDM (Hu, Chen, Liu and Mao 2025, arXiv 2501.19082) moves by a mean of updates in place of u:

    m^k = beta m^(k-1) + (1 - beta) u^k,   m^0 = 0

LED, local exact diffusion (Alghunaim 2024, arXiv 2302.00620), has its dual variable q in
each of the tau local steps, so that these do not drift, and mixes what they lead to:

    phi_0 = x^k;   tau times phi_(s+1) = phi_s - alpha grad f(phi_s) - q^k / tau
    x^(k+1) = V phi_tau
    q^(k+1) = q^k + phi_tau - V phi_tau

With one step, LED and EDM with beta = 0 are exact diffusion. Of both papers the abstracts alone
could be had. LED's recursion, with W for V, is that of github.com/team-decent/decent-bench; of EDM
that it has W for V, 1 - beta and m^0 = 0 is assumed.

Convergence: W symmetric; for D2 lambda_min(W) > -1/3 (Assumption 1.2 of the paper); for NIDS
eta < 2 / L, whatever the graph (Theorem 1).
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from mpifed.message import Correction, Neighbours, halves


class ExactDiffusion(Correction):
    """Exact diffusion: corrected gossip by (I + W) / 2 (Yuan et al. 2019)."""

    linear = True

    def _mixed(self, z: Tensor, neighbours: Neighbours) -> Tensor:
        """Return V z."""
        return neighbours.mix(z).add_(z).div_(2)

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        z = moved - memory
        after = self._mixed(z, neighbours)
        return after, z.sub_(after).add_(memory)


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
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        begun = memory[:, -1:] > 0
        after, q = super().step(x, moved, memory[:, :-1], neighbours)
        q = torch.where(begun, q, 0.0)
        return torch.where(begun, after, moved), torch.cat([q, torch.ones_like(memory[:, -1:])], 1)


class Edm(ExactDiffusion):
    """EDM: exact diffusion with momentum (Hu et al. 2025).

    The paper's text could not be had: this is from its abstract, with the mixing matrix and the
    first momentum assumed.

    Parameters
    ----------
    beta : float
        Share of the momentum that stays from round to round.
    """

    def __init__(self, *, beta: Annotated[float, Ge(0), Lt(1)] = 0.9) -> None:
        self.beta = beta

    def width(self, size: int) -> int:
        return 2 * size

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        q, m = halves(memory)
        m = (self.beta * m).add_(moved - x, alpha=1 - self.beta)
        after, q = super().step(x, x + m, q, neighbours)
        return after, torch.cat([q, m], 1)


class Led(ExactDiffusion):
    """LED: exact diffusion with its correction in every local step (Alghunaim 2024).

    The paper's text could not be had: this is from its abstract and a public package.
    """

    within_steps = True

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        after = self._mixed(moved, neighbours)
        return after, (moved - after).add_(memory)
