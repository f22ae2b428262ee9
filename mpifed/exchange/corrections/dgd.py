"""DGD (Nedic and Ozdaglar 2009): gossip before the step, combine then adapt.

    x^(k+1) = W x^k + u^k

where plain gossip adapts first, x^(k+1) = W (x^k + u^k). Both have a bias where data are unlike,
of the same order; this one bears steps eta < (1 + lambda_min(W)) / L only (Yuan, Ling and Yin 2016,
Theorem 2), the other one eta < 2 / L (Chen and Sayed 2013).
"""

from __future__ import annotations

from torch import Tensor

from mpifed.message import Correction, Neighbours


class Dgd(Correction):
    """DGD: gossip before the step (Nedic and Ozdaglar 2009)."""

    needs = "positive"

    def width(self, size: int) -> int:
        return 0

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        return neighbours.mix(x).add_(moved).sub_(x), memory
