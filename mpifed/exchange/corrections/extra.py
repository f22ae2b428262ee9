"""EXTRA (Shi, Ling, Wu and Yin 2015), with W~ = (I + W) / 2:

    x^(k+1) = W x^k + u^k - q^k
    q^(k+1) = q^k + (x^k - W x^k) / 2,   q^0 = 0

which is Alg. 1 of the paper (eq. 2.13, x^(k+2) = (I + W) x^(k+1) - W~ x^k + u^(k+1) - u^k) with
what it has added up, as in eq. 2.9. The q_i add up to zero; where values stand still, q_i = u_i,
so the u_i add up to zero too.

LT-ADMM (Ren, Bastianello, Johansson and Parisini 2025, arXiv 2501.13516) takes tau local steps,

    phi_(s+1) = phi_s - gamma grad f(phi_s) - beta (rho |N_i| x_i^k - sum_j z_ij^k),   phi_0 = x_i^k

sends x^(k+1) = phi_tau, and z_ij^(k+1) = (z_ij^k - z_ji^k + 2 rho x_j^(k+1)) / 2. What z_ij and
z_ji differ by adds up rho (x_j - x_i), so that clients need not keep them for each neighbour. With
penalties rho W[i, j] of edges (one W for all of them is the paper's), p = rho beta tau, and z
that agree before the first round,

    x^(k+1) = phi_tau;   d^(k+1) = d^k + (W - I) x^(k+1)
    all steps of the next round together take -(p / 2) (d^(k+1) + (W - I) x^(k+1)) from it

which with one step and p = 1 is EXTRA. The paper itself could not be had; the recursion is that of
its authors' package, github.com/team-decent/decent-bench.

Convergence of EXTRA (Theorem 3.3): W symmetric, eta < 2 lambda_min(W~) / L =
(1 + lambda_min(W)) / L. With equal quadratic risks the bound is (5 + 3 lambda_min(W)) / (4 L) (Li
and Yan 2021).
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from mpifed.message import Correction, Neighbours


class Extra(Correction):
    """EXTRA: gossip before the step, corrected by what it has moved so far (Shi et al. 2015)."""

    linear = True

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        mixed = neighbours.mix(x)
        away = x - mixed
        torch.sub(moved, away, out=mixed).sub_(memory)  # W x + u - q
        return mixed, away.div_(2).add_(memory)


class LtAdmm(Correction):
    """LT-ADMM: ADMM over edges with local gradient steps (Ren et al. 2025).

    The paper's text could not be had: this is from its authors' package.

    Parameters
    ----------
    penalty : float
        p = rho beta tau, how strongly the steps of a round pull clients together.
    """

    within_steps = True
    linear = True

    def __init__(self, *, penalty: Annotated[float, Gt(0), Le(1)] = 1.0) -> None:
        self.penalty = penalty

    def width(self, size: int) -> int:
        return 2 * size

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        towards = neighbours.mix(moved).sub_(moved)
        total = memory[:, x.shape[1] :] + towards
        return moved, torch.cat([(total + towards).mul_(-self.penalty / 2), total], 1)
