"""K-GT (Liu, Lin, Koloskova and Stich 2024, Alg. 1): gradient tracking with local steps.

     3    y_i <- x_i
     4    K times y_i <- y_i - eta_c (g_i(y_i) + c_i)
     6    z_i <- (x_i - y_i) / (K eta_c)
     7    c_i <- c_i - z_i + sum_j W[i, j] z_j
     8    x_i <- sum_j W[i, j] (x_j - eta_s (x_j - y_j))

z_i is the mean gradient that client i has stepped along, so that c_i becomes an estimate of how
the gradient of all differs from its own, and every local step follows the former. The c_i add up
to zero from the start, where they are zero (the paper begins with one more exchange of gradients).
The limit is the optimum of the mean risk whatever K is: tracking the sum of local steps
(``exchange.correction=tracking``) has the limit of FedAvg. On a complete graph it is SCAFFOLD by
option II.

Convergence (Theorem 1): eta_c of the order of p / (K L) with p = 1 - ||W - 11'/n||^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt
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
class KGTState:
    """The models and the corrections, which have no entries for buffers."""

    model: Tensor = state.shared()  # x, (clients, 1, P)
    correction: Tensor = state.client()  # c_i, (clients, 1, trained)
    optimizer: OptimizerState = state.client()


class KGT(GlobalModel[Channel]):
    """K-GT: gradient tracking whose corrections are part of each local step.

    Parameters
    ----------
    eta_s : float
        eta_s, the share of the way to y that is gone.
    """

    requires = (
        Requirement(
            {"local.optimizer": "sgd", "local.momentum": 0.0}, "which corrects steps of plain SGD"
        ),
        Requirement(
            {"exchange.asynchrony": "none", "exchange.correction": None},
            "which corrects gossip itself, in rounds",
        ),
    )
    aggregates = "sums"
    exchanges = ("gossip",)
    compressors = "none"
    state_class = KGTState

    def __init__(
        self, model: Model, local: LocalSolver, *, eta_s: Annotated[float, Gt(0)] = 1.0
    ) -> None:
        super().__init__(model, local)
        self.eta_s = eta_s

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        """Return corrections, (clients, 1, trained): there are none for buffers."""
        return (model.new_zeros(n_clients, 1, self.local.n_trained),)

    def payload(self) -> int:
        """Return the numbers of a model and of a correction."""
        return self.model.n_parameters + self.local.n_trained

    def round(self, state: KGTState, clients: Clients, channel: Channel, draws: Draws) -> KGTState:
        x, c, trained = channel.broadcast(state.model), state.correction, self.local.n_trained
        terms = [Shift(c)]
        y, optimizer = self.local(x, state.optimizer, clients, draws, adjustments=terms)  # line 4
        rates = self.local.total_rates(state.optimizer, clients, draws)[:, None, None].to(x)
        z = over_rates((x - y)[..., :trained], rates)  # line 6
        y = torch.cat([x[..., :trained] - self.eta_s * rates * z, y[..., trained:]], -1)
        both = torch.cat([y, z], -1)
        mixed = channel.average(both, clients.equal_weights, before=both)
        x, mean = mixed[..., :-trained], mixed[..., -trained:]
        return KGTState(x, c - z + mean, optimizer)  # lines 7 and 8
