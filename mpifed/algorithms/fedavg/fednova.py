"""FedNova (Wang et al. 2020): moves are divided by how far clients could step.

    y_i <- local steps on f_i, from x;      x - y_i = eta G_i a_i
    d_i <- G_i a_i / ||a_i||_1,             a weighted mean of the gradients of the steps
    x   <- x - tau_eff eta sum over S of p_i d_i,      tau_eff = sum over S of p_i ||a_i||_1

The columns of G_i are the gradients of client i. FedAvg, which adds the moves as they are, has
another minimiser where clients take different numbers of steps; here it is that of
sum_i p_i f_i. eta ||a_i||_1 is the sum of the rates of a client's steps, for tau steps with
momentum rho from rest

    ||a_i||_1 = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)
"""

from __future__ import annotations

from dataclasses import replace

import torch
from annotated_types import Gt
from torch import Tensor

from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.method import Channel, Clients, Draws, LocalSolver, Requirement, over_rates, to_server
from mpifed.model import Model


class FedNova(FedAvg):
    """FedNova: FedAvg whose clients' moves count alike, however many steps they took."""

    requires = (
        Requirement(
            {"local.optimizer": "sgd"}, "which divides moves by the learning rates of their steps"
        ),
        Requirement(
            {"local.reset_momentum": True, "local.lr_clock": "round"},
            "which divides moves by what momentum makes of steps from rest at one rate",
            {"local.momentum": Gt(0)},
        ),
    )
    aggregates = "mean_and_sums"
    exchanges = ("server",)

    def __init__(self, model: Model, local: LocalSolver) -> None:
        # Without FedAvg's options, which are for gossip.
        super().__init__(model, local)

    def round(
        self, state: FedAvgState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedAvgState:
        x = channel.broadcast(state.model)
        y, optimizer = self.local(x, state.optimizer, clients, draws)
        reach = self.reach(state, clients, draws)
        server = to_server(channel)
        sent = server.send(reach[:, None].to(x), uncompressed=True)
        total, mass = server.sum(torch.cat([sent, torch.ones_like(sent)], 1), clients.weights)
        factor = over_rates(total / mass, reach.to(total))  # tau_eff / ||a_i||_1
        trained = self.local.n_trained
        moved = x + factor[:, None, None].to(x) * (y - x)
        moved = torch.cat([moved[..., :trained], y[..., trained:]], -1)
        model = channel.average(moved, clients.weights, before=state.model)
        return replace(state, model=model, optimizer=optimizer)

    def reach(self, state: FedAvgState, clients: Clients, draws: Draws) -> Tensor:
        """Return eta ||a_i||_1, how far gradients of ones would move a client, (clients,)."""
        total = self.local.total_rates(state.optimizer, clients, draws)
        rho = self.local.options.momentum
        if not rho:
            return total
        rate = self.local.total_rates(state.optimizer, clients, draws, steps=1)
        return (total - rate * rho * (1 - rho ** over_rates(total, rate)) / (1 - rho)) / (1 - rho)

    def payload(self) -> int:
        """Return the numbers of a move, and of how far it could have gone."""
        return self.model.n_parameters + 1
