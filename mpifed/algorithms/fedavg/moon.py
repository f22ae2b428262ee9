"""MOON (Li, He and Song 2021, Algorithm 1): representations stay near those of the global model.

Client i takes local steps from the global model w on the mean over samples x of

    l_sup + mu l_con
    l_con = -log(exp(s(z, z_glob) / tau) / (exp(s(z, z_glob) / tau) + exp(s(z, z_prev) / tau)))

with the cosine s, and the representations of x by the model that is trained, z, by w, z_glob, and
by the model that the client sent last, z_prev. The server averages as in FedAvg.

A representation is what the last layer is given. A projection head, which the paper puts there, is
part of the network. Clients that have sent nothing yet have the first model in place of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.method import Channel, Clients, Draws, Exchange, LocalSolver, Requirement
from mpifed.model import Model, contrastive


@dataclass(frozen=True)
class MoonState(FedAvgState):
    """The global model, the optimizers, and what each client sent last."""

    previous: Tensor = state.client()


class Moon(FedAvg):
    """MOON: FedAvg with a contrastive loss between representations by the client's models.

    Parameters
    ----------
    moon_mu : float
        Weight mu of the contrastive loss; 0 is FedAvg.
    moon_tau : float
        Temperature tau.
    **options
        Those of ``FedAvg``.
    """

    requires = (
        Requirement({"local.buffers": "average"}, "whose models take their statistics along"),
        Requirement(
            {"exchange.correction:within_steps": (None, False)},
            "whose steps move more numbers than are averaged",
        ),
    )

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        moon_mu: Annotated[float, Ge(0)] = 1.0,
        moon_tau: Annotated[float, Gt(0)] = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(model, local, **options)
        contrasted = contrastive(model, moon_mu, moon_tau)
        self.solver = self.local.variant(local.purpose, model=contrasted, stepping="auto")

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> MoonState:
        first = super().init(clients, exchange, draws, dtype)
        previous = first.model.expand(len(clients), 1, -1).clone()
        return MoonState(first.model, first.optimizer, previous)

    def round(  # type: ignore[override]
        self, state: MoonState, clients: Clients, channel: Channel, draws: Draws
    ) -> MoonState:
        w = channel.broadcast(state.model)
        rows = torch.cat([w, w, state.previous], -1)
        rows, optimizer = self.solver(rows, state.optimizer, clients, draws, channel)
        trained = rows[..., : self.model.n_parameters].clone()
        model = channel.average(trained, clients.weights, before=state.model)
        return MoonState(model, optimizer, trained)
