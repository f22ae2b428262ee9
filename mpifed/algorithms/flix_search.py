"""Gradient descent on f~ at a server that sees the mean gradient: line search and stopping rule.

Gasanov et al. 2021, section 6.2, for networks, whose smoothness nobody knows. In a round clients
send gradient and loss; in a line search the server then tries steps 1 / L, L doubling, and after
each of them clients send the loss at what they received. All of it is booked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mpifed.algorithms.flix_objective import FlixObjective
from mpifed.exchange.base import Channel
from mpifed.federation import Clients, Draws
from mpifed.local.optima import FIRST_SMOOTHNESS, MOST_SMOOTHNESS

StopRule = Literal["objective", "paper"]
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
        if self.stop_at is not None:
            judged = channel.sum(sent, uniform) if self.stop_rule == "paper" else gradient
            if float(judged.norm()) < self.stop_at:
                return model, True
        if self.step is not None:
            return (model.double() - self.step * gradient).to(model), False
        return self._searched(model, gradient, optima, clients, channel, draws), False

    def _searched(
        self,
        model: Tensor,
        gradient: Tensor,
        optima: Tensor,
        clients: Clients,
        channel: Channel,
        draws: Draws,
    ) -> Tensor:
        """x - g / L for the first L of 0.1, 0.2, 0.4, ... at which f~ is less than at x."""

        def value(x: Tensor) -> float:
            losses = self.objective.losses(optima, x, clients)[:, None]
            return float(channel.sum(channel.send(losses, whole=True), clients.sampled_weights)[0])

        before, guess = value(model[0]), FIRST_SMOOTHNESS
        while guess <= MOST_SMOOTHNESS:
            moved = (model.double() - gradient / guess).to(model)
            if value(channel.broadcast(moved)[:, 0]) < before:
                return moved
            guess *= 2
        if self.stuck == "stay":
            return model
        fresh = draws.stream("redrawn").standard_normal(model.shape[1])
        return torch.from_numpy(fresh).to(model)[None]
