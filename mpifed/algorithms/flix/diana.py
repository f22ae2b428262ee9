"""DIANA on the FLIX objective (Gasanov et al. 2021, Algorithm 3): compressed gradient differences.

Client i and the server remember h_i, what they agree that the gradient is; only the difference
travels, so what compression loses goes to zero and x converges linearly (Theorem 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mpifed import state
from mpifed.algorithms.flix.flix import Flix
from mpifed.algorithms.flix.forecast import theorem_four
from mpifed.algorithms.flix.messages import sent_gradients
from mpifed.algorithms.flix.objective import weighted_mean
from mpifed.algorithms.flix.refusals import refuse_compressed
from mpifed.algorithms.flix.state import FlixState
from mpifed.algorithms.server_messages import message_variance
from mpifed.components.schema import Above, AtMost
from mpifed.exchange.base import Channel, Exchange
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSGD
from mpifed.models.base import Model
from mpifed.sparse_rows import added
from mpifed.theory import flix as theory


@dataclass(frozen=True)
class DianaState:
    """FLIX's state, the clients' memories h_i (clients, P) and the server's h (P,), their mean."""

    flix: FlixState = state.inline()
    memories: Tensor = state.client()
    memory: Tensor = state.server()


class Diana(Flix):
    """DIANA: gradient descent on the FLIX objective with compressed gradient differences."""

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        control_variate_rate: Annotated[float, Above(0), AtMost(1)] | None = None,
        memory_start: Literal["zeros", "gradients"] = "zeros",
        **options: Any,
    ) -> None:
        """``control_variate_rate`` is beta; null is 1 / (1 + omega); above it DIANA may diverge.

        ``memory_start: gradients`` sends the first gradients whole, so that h_i^0 is the gradient
        at x^0, as Corollary 2 and Theorem 8 assume; zeros is Corollary 4 and the published code.
        """
        super().__init__(model, local, **options)
        self.rate, self.memory_start = control_variate_rate, memory_start

    exchanges = ("server",)
    compressors = "unbiased"
    refuse = staticmethod(refuse_compressed)

    def variance(self, exchange: Exchange) -> float:
        return message_variance(exchange.compressor, exchange.federation, self.model.n_parameters)

    def memory_rate(self, omega: float) -> float:
        return 1 / (1 + omega) if self.rate is None else self.rate

    def theoretical_step(self, c: theory.Constants) -> float:
        shared = self.smoothness == "safe"
        return theory.diana_step(c, self.setting, "safe" if shared else "paper")

    def init(self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype) -> Any:
        size = self.model.n_parameters
        return DianaState(
            super().init(clients, exchange, draws, dtype),
            torch.zeros(len(clients), size, dtype=dtype),
            torch.zeros(size, dtype=torch.float64),
        )

    def prepare(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Any:
        return replace(state, flix=super().prepare(state.flix, clients, exchange, draws))

    def round(self, state: Any, clients: Clients, channel: Channel, draws: Draws) -> Any:
        if self.objective.is_local:
            return state
        flix = state.flix
        first = 1
        if self.averages(channel):
            if draws.round == 1:
                return replace(
                    state, flix=replace(flix, model=self.average(flix, clients, channel))
                )
            first = 2
        channel.broadcast(flix.model)
        whole = self.memory_start == "gradients" and draws.round == first
        x, h = flix.model[0], state.memories
        arrived = sent_gradients(  # Delta-hat_i
            self.objective, flix.optima, x, h, clients, channel, draws, whole
        )
        mean = channel.sum(arrived, clients.sampled_weights)
        omega = message_variance(channel.compressor, clients.federation, len(x))
        inclusion = clients.federation.inclusion
        # h_i^0 is the gradient of those who took part, and stays zero for the others.
        beta = inclusion if whole else self.memory_rate(omega)
        moved = flix.model.double() - float(flix.step) * (state.memory + mean)[None]
        # The server adds what it has received, and its own old h stands in the step above.
        scale = beta / inclusion
        return DianaState(
            replace(flix, model=moved.to(flix.model)),
            added(h, arrived, scale),
            state.memory + beta * mean,
        )

    def remarks(self, state: Any, clients: Clients, exchange: Exchange) -> list[str]:
        lines, omega = super().remarks(state.flix, clients, exchange), self.variance(exchange)
        if not self.is_steady(omega):
            most = 1 / (1 + omega)
            lines.append(
                f"warning: algorithm.control_variate_rate {self.rate:g} is above 1 / (1 + omega) = "
                f"{most:.4g}, up to which DIANA is known to converge"
            )
        return lines

    def is_steady(self, omega: float) -> bool:
        """Whether the memories are known to settle: beta (1 + omega) <= 1."""
        return self.rate is None or self.rate * (1 + omega) <= 1 + 1e-12

    def foretold(self, state: FlixState, c: theory.Constants, clients: Clients) -> list[str]:
        """Rounds after which Theorem 4 puts the expected gap below ``accuracy``; collective."""
        if not int(state.known) or c.mu_alpha <= 0 or self.setting != "strongly_convex":
            return []
        if not self.is_steady(c.omega):
            return []
        x = state.model[0].to(state.optima)
        if self.from_average:
            mass = state.smoothness * self.objective.squares(clients)
            x = weighted_mean(state.optima, mass, clients)
        away = float((x.double() - state.reference).square().sum())
        draws = Draws(0, 0)
        error = self.objective.gradients(state.optima, state.reference.to(x), clients, draws)
        if self.memory_start == "gradients":
            error = error - self.objective.gradients(state.optima, x, clients, draws)
        squares = float(total(clients, error.double().square().sum(1)[:, None])[0])
        step = float(state.step)
        return theorem_four(c, step, away, squares, self.accuracy, self.from_average)

    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Any:
        return super().deploy(state.flix, clients, draws)

    def measure(
        self, state: Any, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        return super().measure(state.flix, clients, exchange, draws)
