"""RelaySum: the exact mean of all clients on a tree, delayed by distance (Vogels et al. 2021).

RelaySGD, Alg. 1: a client sends each neighbour the sum of its own value and of what the other
neighbours have sent it in the round before, and a count of the clients in that sum:

    m_(i->j)^k = x_i^(k+1/2) + sum over neighbours s of i but j of m_(s->i)^(k-1)
    x_i^(k+1) = (x_i^(k+1/2) + sum over neighbours j of m_(j->i)^k) / n_i^k

with x^(k+1/2) = x + u. So x_i^(k+1) is the mean over all clients j of x_j as it was d(i, j) - 1
rounds before; n_i^k counts those from whom something has come. A receiver knows what it has sent
itself, so that every client can send all neighbours the same row y_i, which they subtract it from:

    M_i = sum over neighbours j of m_(j->i)        what has come in the last round
    y_i^k = x_i^(k+1/2) + M_i^(k-1)                what it sends to all neighbours
    M_i^k = sum over neighbours j of y_j^k - R_i^(k-1)
    R_i^k = d_i y_i^k - M_i^(k-1)                  all that it has sent, by m

Convergence (Theorem 1): a step below about 1 / (L times the diameter); nothing is said of spectral
gaps, since messages are not mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import topologies
from mpifed.message import Correction, Neighbours, halves


@dataclass(frozen=True)
class Ones(topologies.Around):
    """The edges of ``inner`` with weights of one: W y = the sum of neighbours' y + (1 - d) y."""

    symmetric = False
    doubly_stochastic = False

    def matrix(self, k: int) -> topologies.MixingMatrix:
        """Return W^k for the round k >= 1."""
        inner = self.inner.matrix(k)
        used = inner.weights != 0
        return topologies.MixingMatrix(
            inner.n, inner.edges[used], np.ones(int(used.sum())), inner.symmetric
        )


class RelaySum(Correction):
    """RelaySum, RelaySGD: the exact delayed mean on a tree (Vogels et al. 2021)."""

    needs = "tree"

    def width(self, size: int) -> int:
        return 2 * (size + 1)

    def numbers(self, size: int) -> int:
        return size + 1

    def mixes(self, schedule: Any) -> Any:
        return Ones(schedule)

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        came, sent = halves(memory)
        degrees = neighbours.degrees.to(x)
        y = came.clone()
        y[:, :-1] += moved
        y[:, -1] += 1  # counts itself
        memory = memory.new_empty(memory.shape)
        now, all_sent = halves(memory)
        torch.mul(y, degrees - 1, out=now).add_(neighbours.mix(y)).sub_(sent)
        torch.mul(y, degrees, out=all_sent).sub_(came)
        for counts in (now, all_sent):
            counts[:, -1].round_()
        total = y.sub_(came).add_(now)
        return total[:, :-1].div_(total[:, -1:].clone()), memory
