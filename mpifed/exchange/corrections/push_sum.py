"""Push-sum: the mean of all clients where receivers do not weigh all senders alike.

Stochastic gradient push (Assran et al. 2019, Alg. 1; Nedic and Olshevsky 2016; Kempe et al. 2003).
A client has a mass s_i and a weight w_i, and its value is x_i = s_i / w_i. It divides both among
its receivers, so that the sums of all s_i and of all w_i stay what they are:

    s^(k+1/2) = w^k x^k + u^k
    s^(k+1) = P s^(k+1/2),   w^(k+1) = P w^k,   w^0 = 1
    x^(k+1) = s^(k+1) / w^(k+1)

Columns of P sum to one. P[i, j] = W[i, j] / c_j with c_j = sum_i W[i, j]: a sender divides what it
has in proportion to what its receivers would give it. Where W is doubly stochastic P = W, w stays
1, and this is plain gossip; where it is not (directed graphs, lost directed edges, absent clients),
plain gossip moves the mean, and push-sum does not.

It removes the bias of unequal column sums, not that of unlike data. Convergence (Theorem 1) asks
for the step sizes of plain gossip, strongly connected graphs, and P[i, i] > 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.exchange.corrections.base import Correction, Neighbours


class PushSum(Correction):
    """Push-sum, SGP: the mean of all on directed graphs, by travelling weights (Assran 2019)."""

    needs = "positive"

    def width(self, size: int) -> int:
        return 1

    def numbers(self, size: int) -> int:
        return size + 1

    def step(
        self, x: Tensor, moved: Tensor, kept: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        message = x.new_empty(len(x), x.shape[1] + 1)
        torch.mul(x, kept, out=message[:, :-1]).add_(moved)  # w x + u; w - 1 is kept
        torch.add(kept, 1, out=message[:, -1:])
        message /= neighbours.column_sums.to(x)
        mixed = neighbours.mix(message)
        w = mixed[:, -1:].clone()
        return mixed[:, :-1].div_(w), w - 1
