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

from mpifed.algorithms.base import message_variance
from mpifed.algorithms.flix.descent import (
    Descent,
    MessageRule,
    Problem,
    bold_memory_rate,
    report_theorem_four,
    send_gradients,
    stepped,
)
from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.algorithms.flix.options import DianaState, FlixState, StepSize
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.exchange.reduction import add_scaled
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model
from mpifed.theory import flix as theory


@dataclass(frozen=True)
class GradientDifferences(MessageRule[DianaState, ServerChannel]):
    """Clients send how their gradients differ from the memories h_i, compressed."""

    rate: float | None
    starts_with_gradients: bool

    def start(self, state: FlixState) -> DianaState:
        memory = state.optima.new_zeros(state.optima.shape[1], dtype=torch.float64)
        return DianaState(**vars(state), memories=torch.zeros_like(state.optima), memory=memory)

    def step(
        self,
        objective: FlixObjective,
        state: DianaState,
        clients: Clients,
        channel: ServerChannel,
        draws: Draws,
        first: bool,
    ) -> DianaState:
        channel.broadcast(state.model)  # line 2
        x, x_i, h_i, h = state.model[0], state.optima, state.memories, state.memory
        whole = first and self.starts_with_gradients
        sent = send_gradients(  # lines 4 and 5
            objective, x_i, x, h_i, clients, channel, draws, whole
        )
        mean = channel.sum(sent, clients.sampled_weights)
        omega = message_variance(channel.compressor, clients.federation, len(x))
        inclusion = clients.federation.inclusion
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

    def step_size(self, c: theory.Constants, how: StepSize) -> float:
        """Theorems 4, 6 and 8."""
        # The published code differs in the L_i, which are in ``c``, not in the theorems.
        return theory.diana_step(c, how.setting, "safe" if how.smoothness == "safe" else "paper")

    def predicted_rounds(self, problem: Problem) -> list[str]:
        """Rounds by Theorem 4."""
        return report_theorem_four(problem, self.starts_with_gradients)

    def warnings(self, exchange: Exchange, size: int) -> list[str]:
        omega = self.variance(exchange, size)
        return bold_memory_rate(self.memory_rate(omega), omega)


class Diana(Descent[DianaState, ServerChannel]):
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

    learns = "one model, mixed with local optima"
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
        differences = GradientDifferences(control_variate_rate, memory_start == "gradients")
        super().__init__(model, local, differences, **options)
