"""SVRG within clients, which with gradient tracking is GT-SVRG (GT-VR, Xin et al. 2020).

A client keeps an anchor tau and the gradient of its whole risk there, by which it corrects the
gradients of minibatches I:

    g(x) = grad f_I(x) - grad f_I(tau) + grad f(tau)

Their noise vanishes as x and tau near each other. With one step in a round, gossip and
``exchange.correction={name: tracking, tracking_mixes: before}`` this is GT-SVRG of the framework
GT-VR (Xin, Khan and Kar 2020, arXiv 1912.04230),

    y^(k+1) = W y^k + g^(k+1) - g^k,   x^(k+1) = W x^k - eta y^k

which converges linearly to the optimum at one step size. The anchor moves to x every
``anchor_rounds`` rounds in which a client takes part. Several steps drift as FedAvg's do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from mpifed import state
from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.errors import InputError
from mpifed.method import Channel, Clients, Coupling, Draws, Exchange, LocalSolver, Minibatch
from mpifed.model import Model, Objectives, Regulariser


@dataclass(frozen=True)
class SvrgState(FedAvgState):
    """Besides the model: anchors, gradients there, and for how many rounds they have stood."""

    anchor: Tensor = state.client()  # tau, (clients, 1, P)
    gradient: Tensor = state.client()  # (clients, 1, P)
    age: Tensor = state.client()  # int64 (clients, 1)


@dataclass(frozen=True)
class Anchored(Coupling):
    """Steps along gradients of minibatches that an anchor corrects."""

    anchor: Tensor
    gradient: Tensor

    def move(self, batch: Minibatch) -> None:
        anchor, full_gradient = self.anchor[batch.clients, 0], self.gradient[batch.clients, 0]
        away = full_gradient - batch.gradient(anchor, 0)
        batch.step(away.add_(batch.gradient(batch.rows[:, 0], 0)), 0)


class Svrg(FedAvg):
    """SVRG: FedAvg whose minibatches an anchor corrects; with tracking GT-SVRG (Xin et al. 2020).

    Parameters
    ----------
    anchor_rounds : int
        Rounds of a client from one whole gradient to the next.
    **options
        Those of ``FedAvg``.
    """

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        anchor_rounds: Annotated[int, Ge(1)] = 10,
        **options: Any,
    ) -> None:
        if not model.deterministic:
            raise InputError(
                "algorithm 'svrg' computes gradients of whole risks, which a model with dropout or "
                "batch normalisation does not have; allowed: such as one with GroupNorm"
            )
        super().__init__(model, local, **options)
        self.anchor_rounds, self.objectives = anchor_rounds, Objectives(model, Regulariser())

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> SvrgState:
        first, n = super().init(clients, exchange, draws, dtype), len(clients)
        none = first.model.new_zeros(n, 1, self.model.n_parameters)
        due = torch.full((n, 1), self.anchor_rounds, device=none.device)
        return SvrgState(first.model, first.optimizer, none, none.clone(), due)

    def round(  # type: ignore[override]
        self, state: SvrgState, clients: Clients, channel: Channel, draws: Draws
    ) -> SvrgState:
        start = channel.broadcast(state.model)
        state = self.anchored(state, start, clients)
        coupling = Anchored(state.anchor, state.gradient)
        trained, optimizer = self.local(
            start, state.optimizer, clients, draws, channel, coupling=coupling
        )
        model = channel.average(trained, clients.weights, before=state.model)
        return replace(state, model=model, optimizer=optimizer)

    def anchored(self, state: SvrgState, start: Tensor, clients: Clients) -> SvrgState:
        """Return the state whose anchors that are due have moved to where clients ``start``."""
        due = torch.nonzero(state.age[:, 0] >= self.anchor_rounds)[:, 0]
        anchor, gradient, age = state.anchor, state.gradient, state.age
        if len(due):
            rows = clients.rows[due.cpu().numpy()]
            at, some = start[due], Clients(clients.federation, clients.shards, rows)
            anchor = anchor.index_copy(0, due, at)
            full_gradient = self.objectives(some).gradients(at[:, 0])[:, None]
            gradient = gradient.index_copy(0, due, full_gradient)
            age = age.index_fill(0, due, 0)
        return replace(state, anchor=anchor, gradient=gradient, age=age + 1)
