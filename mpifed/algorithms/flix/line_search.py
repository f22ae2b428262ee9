"""Gradient descent on f~ at a server that sees the mean gradient: line search and stopping rule.

Gasanov et al. 2021, section 6.2, for networks, whose smoothness is not known. In a round clients
send gradient and loss; in a line search the server then tries steps 1 / L, L doubling, and after
each of them clients send the loss at what they received. All of it is booked.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from mpifed.algorithms.flix.message_rule import stepped
from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.algorithms.flix.options import Stopping
from mpifed.algorithms.flix.state import FlixState
from mpifed.exchange.base import ServerChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.local.optima import FIRST_SMOOTHNESS, MOST_SMOOTHNESS
from mpifed.local.stochastic_optima import SMALL_LOSS

S = TypeVar("S", bound=FlixState)


def watched_step(
    objective: FlixObjective,
    stopping: Stopping,
    state: S,
    clients: Clients,
    channel: ServerChannel,
    draws: Draws,
) -> S:
    """One round of gradient descent whose server judges gradients and losses.

    Parameters
    ----------
    objective : FlixObjective
        f~, of all clients.
    stopping : Stopping
        See the options ``stop_at``, ``stop_rule`` and ``stuck`` of ``Descent``.
    state : FlixState
        Its ``step`` 0 asks for a line search.
    clients : Clients
        The participants hosted here.
    channel : ServerChannel
        What sends, among all participants.
    draws : Draws
        The random numbers of this round.

    Returns
    -------
    FlixState
        With the next x, or with ``stopped`` where the rule to stop was met.
    """
    x = channel.broadcast(state.model)[:, 0]
    sent = channel.send(objective.local_gradients(state.optima, x, clients, draws), whole=True)
    uniform = clients.sampled_weights
    alpha = torch.from_numpy(objective.alpha(clients.ids))
    gradient = channel.sum(sent, uniform * alpha)
    value = partial(_value, objective, state.optima, clients, channel)
    before: float | None = None
    if stopping.below is not None:
        judged = channel.sum(sent, uniform) if stopping.rule == "paper" else gradient
        met = float(judged.norm()) < stopping.below
        if met and stopping.rule == "published_code":
            before = value(x)
            met = before < SMALL_LOSS
        if met:
            return replace(state, stopped=torch.tensor([draws.round]))
    if float(state.step):
        return replace(state, model=stepped(state.model, float(state.step), gradient))
    before = value(x) if before is None else before
    guess = FIRST_SMOOTHNESS
    while guess <= MOST_SMOOTHNESS:
        moved = (state.model.double() - gradient / guess).to(state.model)
        if value(channel.broadcast(moved)[:, 0]) < before:
            return replace(state, model=moved)
        guess *= 2
    if stopping.stuck == "stay":
        return state
    fresh = draws.stream("redrawn").standard_normal(state.model.shape[1])
    return replace(state, model=torch.from_numpy(fresh).to(state.model)[None])


def _value(
    objective: FlixObjective, optima: Tensor, clients: Clients, channel: ServerChannel, x: Tensor
) -> float:
    """f~(x), from the losses that clients send."""
    losses = objective.losses(optima, x, clients)[:, None]
    return float(channel.sum(channel.send(losses, whole=True), clients.sampled_weights)[0])
