"""DIANA on the FLIX objective (Gasanov et al. 2021, Algorithm 3): compressed gradient differences.

     1  for k = 0, 1, ...
     2    broadcast x
     3    every client i
     4      Delta_i = alpha_i grad f_i(T_i(x)) - h_i
     5      D_i = C_i(Delta_i)
     6      h_i <- h_i + beta D_i
     7      g_i = h_i + D_i, with h_i as it was before line 6
     8    g = (1/n) sum_i g_i = h + (1/n) sum_i D_i
     9    x <- x - gamma g
    10    h <- h + (beta / n) sum_i D_i

Client i and the server both know h_i, an estimate of the client's gradient. Only the difference is
sent; what compression loses of it goes to zero, so x converges linearly (Theorem 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le
from torch import Tensor

from mpifed import state as states
from mpifed.algorithms.base import message_variance
from mpifed.algorithms.flix.descent import Descent, FlixState, send_gradients, stepped
from mpifed.algorithms.flix.objective import weighted_mean
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.exchange.reduction import add_scaled
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model
from mpifed.theory import flix as theory


@dataclass(frozen=True)
class DianaState(FlixState):
    """The state of ``flix``, with the memories h_i and their mean h."""

    memories: Tensor = states.client()
    memory: Tensor = states.server()


class Diana(Descent[ServerChannel]):
    """DIANA: gradient descent on the FLIX objective with compressed gradient differences.

    Parameters
    ----------
    control_variate_rate : float, optional
        beta; None is 1 / (1 + omega), above which DIANA may diverge.
    memory_start : {'zeros', 'gradients'}
        ``gradients`` sends the first gradients whole, so that h_i^0 is the gradient at x^0, as
        Corollary 2 and Theorem 8 assume; ``zeros`` is Corollary 4 and the published code.
    **options
        Those of ``Descent``.
    """

    sends = "a compressed difference of gradients"
    exchanges = ("server",)
    averages_by = None
    compressors = "unbiased"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        control_variate_rate: Annotated[float, Gt(0), Le(1)] | None = None,
        memory_start: Literal["zeros", "gradients"] = "zeros",
        **options: Any,
    ) -> None:
        super().__init__(model, local, **options)
        self.rate, self.starts_with_gradients = control_variate_rate, memory_start == "gradients"

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> DianaState:
        begun = super().init(clients, exchange, draws, dtype)
        memory = torch.zeros_like(begun.reference)
        return DianaState(**vars(begun), memories=torch.zeros_like(begun.optima), memory=memory)

    def descend(
        self, state: FlixState, clients: Clients, channel: ServerChannel, draws: Draws, first: bool
    ) -> DianaState:
        assert isinstance(state, DianaState)
        channel.broadcast(state.model)  # line 2
        h_i, h, whole = state.memories, state.memory, first and self.starts_with_gradients
        sent = send_gradients(self.objective, state, h_i, clients, channel, draws, whole)  # 4, 5
        mean = channel.sum(sent, clients.sampled_weights)
        size, inclusion = self.model.n_parameters, clients.federation.inclusion
        omega = message_variance(channel.compressor, clients.federation, size)
        # h_i^0 is the gradient of those who take part, and stays zero for the others.
        beta = inclusion if whole else self.memory_rate(omega)
        return replace(
            state,
            model=stepped(state.model, float(state.step), h + mean),  # lines 7 to 9
            memories=add_scaled(h_i, sent, beta / inclusion),  # line 6
            memory=h + beta * mean,  # line 10
        )

    def memory_rate(self, omega: float) -> float:
        return theory.largest_memory_rate(omega) if self.rate is None else self.rate

    def proven_step(self, c: theory.Constants) -> float:
        """Theorems 4, 6 and 8."""
        # The published code differs in the L_i, which are in ``c``, not in the theorems.
        return theory.diana_step(c, self.setting, "safe" if self.smoothness == "safe" else "paper")

    def predicted_rounds(
        self, state: FlixState, clients: Clients, exchange: Exchange, c: theory.Constants
    ) -> list[str]:
        """Rounds after which Theorem 4 puts the expected gap below the accuracy."""
        if not self.knows_minimiser(state, c) or not theory.is_stable(c.rho, c.omega):
            return []
        x = state.model[0].to(state.optima)
        if self.averages:
            mass = state.smoothness * self.objective.squares(clients)
            x = weighted_mean(state.optima, mass, clients)
        away = float((x.double() - state.reference).square().sum())
        first = x if self.starts_with_gradients else None
        sigma = c.omega * self.squared_gradients(state, clients, first) / c.n
        step = float(state.step)
        start = away + 4 * step**2 / (c.n * c.rho) * sigma
        rate = theory.diana_rate(c, step)
        rounds = theory.rounds_until(c.l_alpha / 2 * start, self.accuracy, rate)
        return [
            f"Theorem 4: an expected gap of {self.accuracy:g} after at most "
            f"{rounds + self.averages} rounds"
        ]

    def remarks(self, state: FlixState, clients: Clients, exchange: Exchange) -> list[str]:
        """Those of ``Descent``, and a warning where beta is above what is proven."""
        lines, omega = super().remarks(state, clients, exchange), self.variance(exchange)
        rate, most = self.memory_rate(omega), theory.largest_memory_rate(omega)
        if theory.is_stable(rate, omega):
            return lines
        return [
            *lines,
            f"warning: algorithm.control_variate_rate {rate:g} is above 1 / (1 + omega) = "
            f"{most:.4g}, up to which DIANA is known to converge",
        ]
