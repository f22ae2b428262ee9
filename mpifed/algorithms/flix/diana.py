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
from torch import Tensor

from mpifed import state as states
from mpifed.algorithms.flix.descent import Descent
from mpifed.algorithms.flix.forecast import Problem, theorem_four
from mpifed.algorithms.flix.messages import send_gradients, stepped
from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.algorithms.flix.options import StepSize, refuse_compressed
from mpifed.algorithms.flix.state import FlixState
from mpifed.algorithms.server_messages import message_variance
from mpifed.components.schema import Above, AtMost
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSGD
from mpifed.models.base import Model
from mpifed.sparse_rows import added
from mpifed.theory import flix as theory


@dataclass(frozen=True)
class DianaState(FlixState):
    """``FlixState`` with h_i, (clients, P), and their mean h, float64 (P,)."""

    memories: Tensor = states.client()
    memory: Tensor = states.server()


@dataclass(frozen=True)
class GradientDifferences:
    """Clients send C_i(g_i - h_i); the methods are those of ``MessageRule``.

    Parameters
    ----------
    rate : float or None
        beta; None is 1 / (1 + omega).
    starts_with_gradients : bool
        Whether h_i^0 is the gradient at x^0, sent whole, and not zero.
    """

    rate: float | None
    starts_with_gradients: bool

    def start(self, state: FlixState) -> DianaState:
        memory = torch.zeros(state.optima.shape[1], dtype=torch.float64)
        return DianaState(**vars(state), memories=torch.zeros_like(state.optima), memory=memory)

    def step(
        self,
        objective: FlixObjective,
        state: DianaState,
        clients: Clients,
        channel: Channel,
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
            memories=added(h_i, sent, beta / inclusion),  # line 6
            memory=h + beta * mean,  # line 10
        )

    def variance(self, exchange: Exchange, size: int) -> float:
        """omega, in which clients that do not take part are included."""
        return message_variance(exchange.compressor, exchange.federation, size)

    def memory_rate(self, omega: float) -> float:
        return 1 / (1 + omega) if self.rate is None else self.rate

    def step_size(self, c: theory.Constants, how: StepSize) -> float:
        """Theorems 4, 6 and 8."""
        shared = how.smoothness == "safe"
        return theory.diana_step(c, how.setting, "safe" if shared else "paper")

    def unproven(self, exchange: Exchange) -> list[str]:
        return []

    def predicted_rounds(self, problem: Problem) -> list[str]:
        """Rounds by Theorem 4, which asks for beta (1 + omega) <= 1."""
        if not self.is_stable(problem.constants.omega):
            return []
        return theorem_four(problem, self.starts_with_gradients)

    def is_stable(self, omega: float) -> bool:
        """Whether the memories are known to converge: beta (1 + omega) <= 1."""
        return self.memory_rate(omega) * (1 + omega) <= 1 + 1e-12


class Diana(Descent[DianaState]):
    """DIANA: gradient descent on the FLIX objective with compressed gradient differences.

    Parameters
    ----------
    model : Model
    local : LocalSGD
        Its batch size alone is read, where ``gradient`` is stochastic.
    control_variate_rate : float, optional
        beta; None is 1 / (1 + omega), above which DIANA may diverge.
    memory_start : {'zeros', 'gradients'}
        ``gradients`` sends the first gradients whole, so that h_i^0 is the gradient at x^0, as
        Corollary 2 and Theorem 8 assume; ``zeros`` is Corollary 4 and the published code.
    **options
        See ``Descent``.
    """

    exchanges = ("server",)
    compressors = "unbiased"
    refuse = staticmethod(refuse_compressed)

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        control_variate_rate: Annotated[float, Above(0), AtMost(1)] | None = None,
        memory_start: Literal["zeros", "gradients"] = "zeros",
        **options: Any,
    ) -> None:
        self.differences = GradientDifferences(control_variate_rate, memory_start == "gradients")
        super().__init__(model, local, self.differences, **options)

    def remarks(self, state: DianaState, clients: Clients, exchange: Exchange) -> list[str]:
        """Those of ``Descent``, and a warning where beta is above what is proven."""
        lines = super().remarks(state, clients, exchange)
        omega = self.differences.variance(exchange, self.model.n_parameters)
        if not self.differences.is_stable(omega):
            rate, most = self.differences.memory_rate(omega), 1 / (1 + omega)
            lines.append(
                f"warning: algorithm.control_variate_rate {rate:g} is above 1 / (1 + omega) = "
                f"{most:.4g}, up to which DIANA is known to converge"
            )
        return lines
