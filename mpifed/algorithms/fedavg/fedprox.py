"""FedProx (Li et al. 2020, Algorithm 2): local steps that are pulled towards the global model.

     2    the server sends x to the participants S
     3    t in S takes local steps on h_t(theta) = f_t(theta) + (mu / 2) ||theta - x||^2,
          as many as it can, and sends theta_t
     4    x <- sum_{t in S} n_t theta_t / sum_{t in S} n_t

Clients that take fewer steps than others, the paper's gamma_t-inexact solutions, are those of
``participation={name: stragglers, late: partial}``. Under gossip the pull is towards the client's
own model at the start of the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Ge
from torch import Tensor

from mpifed.algorithms.fedavg.fedavg import FedAvg
from mpifed.method import Adjustment, LocalSolver, Proximal
from mpifed.model import Model


class FedProx(FedAvg):
    """FedProx: FedAvg whose local steps a quadratic term pulls towards the global model.

    Parameters
    ----------
    mu : float
        Strength of the pull; 0 is FedAvg.
    **options
        Those of ``FedAvg``.
    """

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        mu: Annotated[float, Ge(0)] = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(model, local, **options)
        self.mu = mu

    def terms(self, start: Tensor) -> Sequence[Adjustment]:
        """The pull (Alg. 2, line 3)."""
        return [Proximal(start, self.mu)]
