"""What clients send in FLIX, DCGD and DIANA, and what the server makes of it.

The three methods are one descent (``descent``). They differ in their ``MessageRule``: whole models
(``flix``), compressed gradients (``dcgd``), compressed differences of gradients (``diana``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from mpifed.algorithms.base import AnyChannel
from mpifed.algorithms.flix.forecast import Problem
from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.algorithms.flix.options import StepSize
from mpifed.algorithms.flix.state import FlixState
from mpifed.algorithms.server_messages import message_variance
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.sparse_rows import SparseRows, gathered
from mpifed.theory import flix as theory

S = TypeVar("S", bound=FlixState)


class MessageRule(ABC, Generic[S, AnyChannel]):
    """How gradients of f~ travel, and what the paper proves about it.

    It is generic in the state that it moves on and in the channel that it needs.
    """

    @abstractmethod
    def start(self, state: FlixState) -> S:
        """Return the state before round 1, with what this rule keeps from round to round."""

    @abstractmethod
    def step(
        self,
        objective: FlixObjective,
        state: S,
        clients: Clients,
        channel: AnyChannel,
        draws: Draws,
        first: bool,
    ) -> S:
        """Return the state with x^{k+1} for x^k: one communication round.

        Parameters
        ----------
        objective : FlixObjective
            f~, of all clients.
        state : FlixState
            x^k, with the rows of the participants.
        clients : Clients
            The participants hosted here.
        channel : Channel or ServerChannel
            What sends, among all participants.
        draws : Draws
            The random numbers of this round.
        first : bool
            Whether no gradient has been sent yet.
        """

    @abstractmethod
    def step_size(self, c: theory.Constants, how: StepSize) -> float:
        """Return gamma by the theorem for this rule."""

    @abstractmethod
    def predicted_rounds(self, problem: Problem) -> list[str]:
        """Return log lines on what the theorem for this rule predicts; collective."""

    def variance(self, exchange: Exchange, size: int) -> float:
        """Return omega of a message of ``size`` numbers, absent clients included; 0 if it arrives
        whole.
        """
        return message_variance(exchange.compressor, exchange.federation, size)

    def memory_rate(self, omega: float) -> float:
        """Return beta of DIANA's memories; 1 without memories."""
        return 1.0

    def unproven(self, exchange: Exchange) -> list[str]:
        """Return what of the exchange the theorem for this rule does not cover, in words."""
        return []

    def warnings(self, exchange: Exchange, size: int) -> list[str]:
        """Return log lines on options with which the method may diverge."""
        return []


def send_gradients(
    objective: FlixObjective,
    optima: Tensor,
    x: Tensor,
    memories: Tensor | None,
    clients: Clients,
    channel: ServerChannel,
    draws: Draws,
    whole: bool = False,
) -> Tensor | SparseRows:
    """C_i(alpha_i grad f_i(T_i(x)) - h_i) as the server receives it.

    A client that knows which coordinates of its message will be kept computes no others.

    Parameters
    ----------
    objective : FlixObjective
        f~, of all clients.
    optima : Tensor
        x_i, (clients, P).
    x : Tensor
        What the server has broadcast, (P,).
    memories : Tensor or None
        h_i, (clients, P); None for zeros.
    clients : Clients
        The participants hosted here.
    channel : ServerChannel
        What sends, among all participants.
    draws : Draws
        The random numbers of this round.
    whole : bool
        Whether the gradients are sent without C_i.

    Returns
    -------
    Tensor or SparseRows
        Rows of (clients, P).
    """
    size, exact = optima.shape[1], objective.batch_size is None
    columns = channel.coordinates(size) if exact and not whole else None
    if columns is not None:
        chosen = objective.partial_gradients(optima, x, clients, columns)
        if chosen is not None:
            if memories is not None:
                chosen.sub_(gathered(memories, columns))
            return channel.send_chosen(SparseRows(columns, chosen, size))
    rows = objective.gradients(optima, x, clients, draws)
    if memories is not None:
        rows.sub_(memories)
    return channel.send(rows, whole)


def stepped(model: Tensor, step: float, gradient: Tensor) -> Tensor:
    """x - step * gradient, computed in float64 at the server.

    Parameters
    ----------
    model : Tensor
        x, (1, P).
    step : float
        gamma.
    gradient : Tensor
        At the server, float64 (P,).

    Returns
    -------
    Tensor
        (1, P), of the dtype of ``model``.

    Examples
    --------
    >>> stepped(torch.tensor([[1.0, 2.0]]), 0.5, torch.tensor([2.0, -2.0]).double())
    tensor([[0., 3.]])
    """
    return (model.double() - step * gradient).to(model)


def one_shot_average(
    optima: Tensor, squares: Tensor, smoothness: Tensor, channel: ServerChannel
) -> Tensor | None:
    """The average of Theorem 1: x_avg = sum_i w_i x_i with w_i proportional to alpha_i^2 L_i.

    Parameters
    ----------
    optima : Tensor
        x_i, (clients, P).
    squares : Tensor
        alpha_i^2, float64 (clients,).
    smoothness : Tensor
        L_i, float64 (clients,); 0 where it is unknown, which counts as 1.
    channel : ServerChannel
        What sends, among all participants.

    Returns
    -------
    Tensor or None
        float64 (P,); None where all w_i are 0.
    """
    known = torch.where(smoothness > 0, smoothness, torch.ones_like(smoothness))
    mass = (squares * known)[:, None].to(optima)
    sent = channel.send(torch.cat([optima * mass, mass], 1), whole=True)
    summed = channel.sum(sent, torch.ones(len(optima), dtype=torch.float64))
    return summed[:-1] / summed[-1] if float(summed[-1]) > 0 else None
