"""FedPD (Zhang, Hong, Dhople, Yin and Liu 2021, Algorithm 1): primal and dual steps of clients.

Clients minimise augmented Lagrangians of sum_i p_i f_i(x_i) subject to x_i = x, in every round

    x_i <- argmin f_i(x_i) + <lambda_i, x_i - x_0i> + ||x_i - x_0i||^2 / (2 eta)
    lambda_i <- lambda_i + (x_i - x_0i) / eta
    x_0i <- x_i + eta lambda_i
    with probability 1 - p, by one coin for all: x_0i <- x <- sum_i p_i x_0i

with lambda_i = 0 at first. With p = 0, where nothing moves lambda_i = -grad f_i(x), and these add
up to zero; with exact minimisers it is FedDyn with alpha = 1 / eta and all clients. A round without
communication is a proximal step of each client alone, so that p > 0 is for clients that differ
little. The p_i are 1 / n in the paper. The minimiser is that of the local steps, which begin at
the last x_i (Oracle I); that they do so was read from published code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.global_model.one_model import GlobalModel
from mpifed.method import (
    Clients,
    Draws,
    LocalSolver,
    OptimizerState,
    Proximal,
    Requirement,
    ServerChannel,
    Shift,
)
from mpifed.model import Model


@dataclass(frozen=True)
class FedPDState:
    """The mean that was taken last, and what clients have: multipliers have no buffers."""

    model: Tensor = state.shared()  # x, (1, P)
    own: Tensor = state.client()  # x_i, (clients, 1, P)
    anchor: Tensor = state.client()  # x_0i, (clients, 1, P)
    multiplier: Tensor = state.client()  # lambda_i, (clients, 1, trained)
    optimizer: OptimizerState = state.client()


class FedPD(GlobalModel[ServerChannel]):
    """FedPD: clients descend on augmented Lagrangians, and average in some of the rounds.

    Parameters
    ----------
    fedpd_eta : float
        eta, the inverse of the penalty.
    fedpd_p : float
        Probability p that a round ends without communication.
    client_weights : {'samples', 'uniform'}
        The p_i: n_i / n, as in FedAvg, or 1 / n for n clients, as in the paper.
    """

    requires = (
        Requirement(
            {"participation": 1.0, "participation.late": "miss"},
            "whose clients all move in every round",
        ),
    )
    aggregates = "sums"
    compressors = "none"
    state_class = FedPDState
    step_option = "local.lr or algorithm.fedpd_eta"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        fedpd_eta: Annotated[float, Gt(0)] = 1.0,
        fedpd_p: Annotated[float, Ge(0), Lt(1)] = 0.0,
        client_weights: Literal["samples", "uniform"] = "samples",
    ) -> None:
        super().__init__(model, local)
        self.eta, self.p = fedpd_eta, fedpd_p
        self.by_samples = client_weights == "samples"

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        rows = model.expand(n_clients, 1, -1)
        return rows.clone(), rows.clone(), model.new_zeros(n_clients, 1, self.local.n_trained)

    def round(
        self, state: FedPDState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedPDState:
        start, trained, model = state.anchor, self.local.n_trained, state.model
        terms = [Shift(state.multiplier), Proximal(start, 1 / self.eta)]
        local_model, optimizer = self.local(
            state.own, state.optimizer, clients, draws, adjustments=terms
        )
        multiplier = state.multiplier + (local_model - start)[..., :trained] / self.eta
        moved = local_model[..., :trained] + self.eta * multiplier
        anchor = torch.cat([moved, local_model[..., trained:]], -1)
        if draws.stream("coin").random() >= self.p:
            p = clients.average_weights(self.by_samples)
            model = channel.average(anchor, p, before=model)
            anchor = channel.broadcast(model).clone()
        return FedPDState(model, local_model, anchor, multiplier, optimizer)
