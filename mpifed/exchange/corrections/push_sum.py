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
for the step sizes of plain gossip, strongly connected graphs, and P[i, i] > 0. The subgradient-push
of Nedic and Olshevsky (2015, eq. 4) is the same recursion, with s after the mixing.

Push-DIGing (Nedic, Olshevsky and Shi 2017, Alg. 2) tracks the mean update beside it, which removes
the bias of unlike data too:

    y^k = P y^(k-1) + u^k - u^(k-1),   y^0 = u^0
    s^(k+1) = P (w^k x^k + y^k)
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.message import Correction, Neighbours


class PushSum(Correction):
    """Push-sum, SGP: the mean of all on directed graphs, by travelling weights (Assran 2019)."""

    needs = "positive"

    def width(self, size: int) -> int:
        return 1

    def numbers(self, size: int) -> int:
        return size + 1

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        message = x.new_empty(len(x), x.shape[1] + 1)
        torch.mul(x, memory, out=message[:, :-1]).add_(moved)  # w x + u; w - 1 is kept
        torch.add(memory, 1, out=message[:, -1:])
        message /= neighbours.column_sums.to(x)
        mixed = neighbours.mix(message)
        w = mixed[:, -1:].clone()
        return mixed[:, :-1].div_(w), w - 1


class PushDiging(PushSum):
    """Push-DIGing: gradient tracking on directed graphs, by push-sum (Nedic et al. 2017)."""

    def width(self, size: int) -> int:
        return size + 1

    def numbers(self, size: int) -> int:
        return 2 * size + 1

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        size = x.shape[1]
        u, w = moved - x, memory[:, size:] + 1
        y = memory[:, :size] + u  # P y^(k-1) - u^(k-1) is kept
        message = torch.cat([x * w + y, w, y], 1)
        message /= neighbours.column_sums.to(x)
        s, w, y = neighbours.mix(message).split([size, 1, size], dim=1)
        return s / w, torch.cat([y - u, w - 1], 1)
