"""GASLoC (Cagnasso, Belilovsky and Oyallon 2026, arXiv 2606.11081): DiLoCo by gossip.

DiLoCo's outer step is Nesterov's momentum on the mean of updates, which is what accelerates gossip
too, so that one momentum does both. With eta the outer rate, gamma the outer momentum, and
W = I - alpha Lambda for the paper's Laplacian Lambda:

    y^k = x^k + eta u^k
    z^k = W y^k
    x^(k+1) = z^k + gamma (z^k - z^(k-1)),   z^(-1) = x^0

On the complete graph with uniform weights all z_i are the mean, and this is DiLoCo (Douillard et
al. 2023, Algorithm 1): ``server_optimizer: nesterov`` with the same eta and gamma.

The paper itself could not be had: its update was read in a summary of its formulas, which has
y^k - y^(k-1) in place of z^k - z^(k-1) (``momentum_of: own``). Then clients differ on the complete
graph as well, where the paper is said to recover DiLoCo, hence the default. How the momentum
begins, and the values of eta and gamma (those of DiLoCo), are assumed.

Convergence of gossip alone, u = 0, with one W: for each eigenvalue l < 1 both roots r of
r^2 - l (1 + gamma) r + l gamma are within the unit circle if and only if l > -1 / (1 + 2 gamma);
with momentum of the own y, r^2 - (l + gamma) r + gamma, always. Where W changes, a smaller gamma
may be needed: random pairs of neighbours on a ring of eight bear 0.5, and not 0.9.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed.message import Correction, Neighbours


class Gasloc(Correction):
    """GASLoC, DiLoCo by gossip: outer Nesterov momentum that speeds up mixing (Cagnasso 2026).

    The paper's text could not be had: this is from a summary of its formulas.

    Parameters
    ----------
    outer_lr : float
        eta, by which a client's update is multiplied.
    outer_momentum : float
        gamma, the share of the last move that is made again.
    momentum_of : {'mixed', 'own'}
        Whether moves are those of the mixed values or of the client's own before they are mixed.
    """

    linear = True

    def __init__(
        self,
        *,
        outer_lr: Annotated[float, Gt(0)] = 0.7,
        outer_momentum: Annotated[float, Ge(0), Lt(1)] = 0.9,
        momentum_of: Literal["mixed", "own"] = "mixed",
    ) -> None:
        self.outer_lr, self.outer_momentum = outer_lr, outer_momentum
        self.of_mixed = momentum_of == "mixed"
        if self.of_mixed:
            self.least_eigenvalue = -1 / (1 + 2 * outer_momentum)

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        y = (moved - x).mul_(self.outer_lr).add_(x)
        z = neighbours.mix(y)
        now = z if self.of_mixed else y
        move = (now - x).sub_(memory)  # where it was in the last round, minus x, is kept
        after = move.mul_(self.outer_momentum).add_(z)
        return after, now - after
