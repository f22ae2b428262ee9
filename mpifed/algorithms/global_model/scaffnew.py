"""Scaffnew, ProxSkip (Mishchenko, Malinovsky, Stich and Richtarik 2022, Algs. 2 and 5).

    3    xhat_i <- x_i - gamma (g_i(x_i) - h_i)
    4    with probability p, by one coin for all clients:
    5        x_i <- mean of all xhat_j (a server), or ((I + W) / 2 xhat)_i (gossip)
    8    h_i <- h_i + (p / gamma) (x_i - xhat_i)
         otherwise x_i <- xhat_i, and h_i stays

A round is the steps up to the next communication, so their number is geometric with mean 1 / p.
The h_i add up to zero, and become the clients' gradients at the optimum. With p = 1 gossip is
exact diffusion.

Convergence (Theorem 3.6): gamma <= 1 / L, and the error falls by 1 - min(gamma mu, p^2) a step
under a server; p = sqrt(gamma mu) is best. Under gossip p^2 is multiplied by the spectral gap of
(I + W) / 2 (section 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le
from torch import Tensor

from mpifed import state
from mpifed.algorithms.global_model.one_model import GlobalModel
from mpifed.method import (
    Channel,
    Clients,
    Draws,
    LocalSolver,
    OptimizerState,
    Requirement,
    Shift,
    over_rates,
)
from mpifed.model import Model


@dataclass(frozen=True)
class ScaffnewState:
    """The models and the control variates, which have no entries for buffers."""

    model: Tensor = state.shared()  # x, (1, P); under gossip (clients, 1, P)
    variate: Tensor = state.client()  # h_i, (clients, 1, trained)
    optimizer: OptimizerState = state.client()


class Scaffnew(GlobalModel[Channel]):
    """Scaffnew: a random number of corrected local steps between communications.

    Parameters
    ----------
    scaffnew_p : float
        Probability p of a communication behind a step.
    """

    requires = (
        Requirement(
            {"local.optimizer": "sgd", "local.momentum": 0.0}, "which corrects steps of plain SGD"
        ),
        Requirement(
            {
                "participation.late": "miss",
                "server_optimizer": "sgd",
                "server_optimizer.lr": 1.0,
            },
            "whose clients all take the steps that a coin shows, from the mean itself",
        ),
        Requirement(
            {"exchange.asynchrony": "none", "exchange.correction": None},
            "which corrects gossip itself, in rounds",
        ),
        Requirement(
            {"exchange.average_over": "participants", "participation.weights": "renormalised"},
            "which averages participants",
        ),
        Requirement(
            {"privacy.observers": "none"},
            "whose models are not averages of each round",
            {"exchange": "gossip"},
        ),
    )
    compressors = "none"
    state_class = ScaffnewState

    def __init__(
        self, model: Model, local: LocalSolver, *, scaffnew_p: Annotated[float, Gt(0), Le(1)] = 0.1
    ) -> None:
        self.model, self.local, self.p = model, local, scaffnew_p

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        return (model.new_zeros(n_clients, 1, self.local.n_trained),)

    def round(
        self, state: ScaffnewState, clients: Clients, channel: Channel, draws: Draws
    ) -> ScaffnewState:
        x, h, trained = channel.broadcast(state.model), state.variate, self.local.n_trained
        steps = int(draws.stream("coin").geometric(self.p))  # line 4
        moved, optimizer = self.local(
            x, state.optimizer, clients, draws, adjustments=[Shift(-h)], steps=steps
        )  # line 3
        mean = channel.average(moved, clients.equal_weights, before=state.model)
        x = (moved + mean) / 2 if channel.shared_is_rows else mean  # line 5
        gamma = self.local.total_rates(state.optimizer, clients, draws, steps=1)[:, None, None]
        h = h + over_rates(self.p, gamma.to(h)) * (x - moved)[..., :trained]  # line 8
        return ScaffnewState(x, h, optimizer)
