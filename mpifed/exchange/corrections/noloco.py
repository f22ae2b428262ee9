"""NoLoCo (Kolehmainen et al. 2025, arXiv 2506.10911): DiLoCo in random pairs, without all-reduce.

In each round a client meets a random other one: ``exchange.schedule=random_matching`` on the
complete graph, whose W averages the two. Its outer momentum m also pulls it towards the mean of
the pair. With x the slow weights phi, and u = theta - phi the update,

    m^k = alpha m^(k-1) + beta W u^k - gamma (x^k - W x^k),   m^0 = 0
    x^(k+1) = x^k + m^k

for groups of any size, hence any W. Both products are one message, W (beta u + gamma x). All
clients count alike. Where all x agree this is ``server_optimizer: momentum``: the paper calls m a
variant of Nesterov's momentum, but the step does not look ahead.

The paper itself could not be had: the update was read in a summary of it and in its authors' code,
``sparse_optimizer_c.py`` of github.com/jkolehm/noloco. alpha = 0.5 and beta = 0.7 are in both;
gamma is beta in the code, hence here, and 1 in the summary.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed.message import Correction, Neighbours


class Noloco(Correction):
    """NoLoCo: outer momentum that also pulls clients together, in random pairs (Kolehmainen 2025).

    The paper's text could not be had: this is from a summary of it and its authors' code.

    Parameters
    ----------
    outer_lr : float
        beta, by which the mean of updates is multiplied.
    outer_momentum : float
        alpha, the share of the momentum that stays from round to round.
    pull : float, optional
        gamma, how strongly a client is pulled to the mean of its group; None is ``outer_lr``.
    """

    needs = "doubly_stochastic"
    linear = True

    def __init__(
        self,
        *,
        outer_lr: Annotated[float, Gt(0)] = 0.7,
        outer_momentum: Annotated[float, Ge(0), Lt(1)] = 0.5,
        pull: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        self.outer_lr, self.outer_momentum = outer_lr, outer_momentum
        self.pull = outer_lr if pull is None else pull

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        pulled = self.pull * x
        momentum = neighbours.mix((moved - x).mul_(self.outer_lr).add_(pulled)).sub_(pulled)
        momentum += self.outer_momentum * memory
        return x + momentum, momentum
