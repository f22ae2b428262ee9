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

from typing import Annotated, Literal

from annotated_types import Ge

from mpifed.algorithms.base import StepScale, step_scale
from mpifed.algorithms.global_model.fedavg import FedAvg, FedAvgState
from mpifed.exchange.base import Channel
from mpifed.federation.clients import Clients, Draws
from mpifed.local.adjustments import Proximal
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model


class FedProx(FedAvg):
    """FedProx: FedAvg whose local steps a quadratic term pulls towards the global model.

    Parameters
    ----------
    mu : float
        Strength of the pull; 0 is FedAvg.
    **options
        Those of ``FedAvg``.
    """

    learns = "one model"
    sends = "its model"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        mu: Annotated[float, Ge(0)] = 0.01,
        model_init: Literal["shared", "per_client"] = "shared",
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        super().__init__(model, local, model_init=model_init, gossip_step_scale=gossip_step_scale)
        self.mu = mu

    def round(
        self, state: FedAvgState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedAvgState:
        x = channel.broadcast(state.model)  # Alg. 2, line 2
        scale = step_scale(clients, channel, self.gossip_step_scale)
        pull = Proximal(x, self.mu)
        trained, optimizer = self.local(  # line 3
            x, state.optimizer, clients, draws, step_scale=scale, adjustments=[pull]
        )
        model = channel.average(trained, clients.weights, before=state.model)  # line 4
        return FedAvgState(model, optimizer)
