"""Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512): fragments synchronised in turns.

The layers of the model are divided into P fragments: layer l belongs to fragment l mod P. Clients
keep models theta_i of their own, all equal to theta at first. In round t, for p = (t - 1) mod P,

    theta_i <- local steps from theta_i
    Delta <- sum_i p_i (theta_i - theta) on the numbers of fragment p, which alone are sent
    m <- beta m + Delta,   theta <- theta + eta (Delta + beta m)    on the same numbers
    theta_i <- alpha theta_i + (1 - alpha) theta                    on the same numbers

With P = 1 and alpha = 0 it is DiLoCo, FedAvg with ``server_optimizer=nesterov``. A round of DiLoCo
is P rounds here, of as many local steps in all.

The paper's text could not be had beyond its abstract. Read were the code of torchft, which has the
same recursion with alpha = 0, and public summaries. The delay from sending a fragment to receiving
it, hidden behind computation there, is 0 here. That clients deploy theta is assumed. Running
statistics are averaged in every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.global_model.one_model import GlobalModel
from mpifed.message import Moment, Nesterov
from mpifed.method import Clients, Draws, LocalSolver, OptimizerState, Requirement, ServerChannel
from mpifed.model import Model


@dataclass(frozen=True)
class StreamingState:
    """The model as it was synchronised last, its momentum, and the clients' models."""

    model: Tensor = state.shared()  # theta, (1, P)
    momentum: Tensor = state.server()  # m, (1, P)
    own: Tensor = state.client()  # theta_i, (clients, 1, P)
    optimizer: OptimizerState = state.client()


class StreamingDiLoCo(GlobalModel[ServerChannel]):
    """Streaming DiLoCo: clients keep their models, of which one fragment a round is synchronised.

    The paper's text could not be had: this is from its abstract, public code and summaries.

    Parameters
    ----------
    fragments : int
        P; a model with fewer layers has one fragment for each.
    outer_lr : float
        eta, the rate of the server.
    outer_momentum : float
        beta, the decay of its momentum.
    own_share : float
        alpha, the share of a client's own fragment that it keeps.
    """

    requires = (
        Requirement(
            {"participation": 1.0, "participation.late": "miss"},
            "whose clients all move in every round",
        ),
    )
    aggregates = "means"
    compressors = "unbiased"
    state_class = StreamingState

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        fragments: Annotated[int, Ge(1)] = 2,
        outer_lr: Annotated[float, Gt(0)] = 0.7,
        outer_momentum: Annotated[float, Ge(0), Lt(1)] = 0.9,
        own_share: Annotated[float, Ge(0), Le(1)] = 0.0,
    ) -> None:
        super().__init__(model, local)
        self.outer, self.own_share = Nesterov(lr=outer_lr, beta=outer_momentum), own_share
        trained = model.n_parameters - model.n_buffers
        layers: dict[str, list[Tensor]] = {}
        for span in model.spans():
            if span.end <= trained:
                numbers = torch.arange(span.begin, span.end)
                layers.setdefault(span.name.rpartition(".")[0], []).append(numbers)
        parts = [torch.cat(layer) for layer in layers.values()] or [torch.arange(trained)]
        statistics = torch.arange(trained, model.n_parameters)
        count = min(fragments, len(parts))
        self.fragments = [torch.cat([*parts[p::count], statistics]) for p in range(count)]

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        return torch.zeros_like(model), model.expand(n_clients, 1, -1).clone()

    def round(
        self, state: StreamingState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> StreamingState:
        trained, optimizer = self.local(state.own, state.optimizer, clients, draws)
        part = self.fragments[(draws.round - 1) % len(self.fragments)].to(trained.device)
        moves = channel.send(trained[..., part] - state.model[..., part])
        mean = channel.mean(moves, clients.weights).to(moves)
        step, moment = self.outer.step(mean, Moment(state.momentum[..., part]))
        n_trained = len(part) - self.model.n_buffers
        step[..., n_trained:] = mean[..., n_trained:]
        model, momentum = state.model.clone(), state.momentum.clone()
        model[..., part] += step
        momentum[..., part] = moment.first
        received = channel.broadcast(model[..., part])
        trained = trained.clone()
        trained[..., part] = received.lerp(trained[..., part], self.own_share)
        return StreamingState(model, momentum, trained, optimizer)

    def payload(self) -> int:
        return max(map(len, self.fragments))
