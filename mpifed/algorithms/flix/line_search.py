"""Gradient descent on f~ at a server that sees the mean gradient: line search and stopping rule.

Gasanov et al. 2021, section 6.2, for networks, whose smoothness nobody knows. In a round clients
send gradient and loss; in a line search the server then tries steps 1 / L, L doubling, and after
each of them clients send the loss at what they received. All of it is booked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.exchange.base import Channel
from mpifed.federation.clients import Clients, Draws
from mpifed.local.optima import FIRST_SMOOTHNESS, MOST_SMOOTHNESS
from mpifed.local.stochastic_optima import SMALL_LOSS

StopRule = Literal["objective", "paper", "published_code"]
Stuck = Literal["stay", "redraw"]


@dataclass(frozen=True)
class Descent:
    """One round of it; see the options ``step``, ``stop_at``, ``stop_rule`` and ``stuck`` of
    ``flix``. ``step`` None searches.
    """

    objective: FlixObjective
    step: float | None
    stop_at: float | None
    stop_rule: StopRule
    stuck: Stuck

    def __call__(
        self, model: Tensor, optima: Tensor, clients: Clients, channel: Channel, draws: Draws
    ) -> tuple[Tensor, bool]:
        """The model (1, P) after this round, and whether the rule to stop was met at ``model``."""
        x = channel.broadcast(model)[:, 0]
        sent = channel.send(self.objective.local_gradients(optima, x, clients, draws), whole=True)
        uniform = clients.sampled_weights
        alpha = torch.from_numpy(self.objective.alpha(clients.ids))
        gradient = channel.sum(sent, uniform * alpha)
        value = partial(self._value, optima=optima, clients=clients, channel=channel)
        before: float | None = None
        if self.stop_at is not None:
            judged = channel.sum(sent, uniform) if self.stop_rule == "paper" else gradient
            met = float(judged.norm()) < self.stop_at
            if met and self.stop_rule == "published_code":
                before = value(x)
                met = before < SMALL_LOSS
            if met:
                return model, True
        if self.step is not None:
            return (model.double() - self.step * gradient).to(model), False
        before = value(x) if before is None else before
        guess = FIRST_SMOOTHNESS
        while guess <= MOST_SMOOTHNESS:
            moved = (model.double() - gradient / guess).to(model)
            if value(channel.broadcast(moved)[:, 0]) < before:
                return moved, False
            guess *= 2
        if self.stuck == "stay":
            return model, False
        fresh = draws.stream("redrawn").standard_normal(model.shape[1])
        return torch.from_numpy(fresh).to(model)[None], False

    def _value(self, x: Tensor, optima: Tensor, clients: Clients, channel: Channel) -> float:
        """f~(x), from the losses that clients send."""
        losses = self.objective.losses(optima, x, clients)[:, None]
        return float(channel.sum(channel.send(losses, whole=True), clients.sampled_weights)[0])
