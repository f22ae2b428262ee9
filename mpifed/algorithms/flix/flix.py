"""FLIX (Gasanov et al. 2021), DCGD and DIANA: mixtures of each client's own optimum and one model.

    T_i(x) = alpha_i x + (1 - alpha_i) x_i,   minimise f~(x) = (1/n) sum_i f_i(T_i(x))

where x_i = argmin f_i is found before the first round, without communication. This is Algorithm 1,
distributed gradient descent on f~:

    1  for k = 0, 1, ...
    2    every client i
    3      g_i = alpha_i grad f_i(T_i(x))
    4    x <- x - (gamma / n) sum_i g_i

With ``start: average`` the first round is the one-shot average of Theorem 1, from which gradient
descent starts.

DCGD (Algorithm 2) descends on the same objective, and clients send compressed gradients:

    1  for k = 0, 1, ...
    2    broadcast x
    3    every client i
    4      compute alpha_i grad f_i(T_i(x))
    5      g_i = C_i(alpha_i grad f_i(T_i(x)))
    6    g = (1/n) sum_i g_i
    7    x <- x - gamma g

It ends in a floor that falls with gamma omega / n (Theorem 3); ``diana`` has none.

DIANA (Algorithm 3) compresses the changes of gradients instead:

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

import mpifed.algorithms.flix.theorems as theory
from mpifed import state as states
from mpifed.algorithms.flix.descent import Descent, FlixState, send_gradients, stepped
from mpifed.algorithms.flix.objective import weighted_mean, weighted_variance
from mpifed.message import add_scaled, message_variance
from mpifed.method import (
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Not,
    Requirement,
    ServerChannel,
)
from mpifed.model import Model


class Flix(Descent[Channel]):
    """FLIX by distributed gradient descent: mixtures of a local optimum and a shared model.

    Clients take the step and send their models, which the exchange averages.

    Parameters
    ----------
    **options
        Those of ``Descent``.
    """

    requires = (
        *Descent.requires,
        Requirement(
            {"exchange": "server", "compression": ("none", "identity")},
            "which asks for whole gradients at a server",
            {"algorithm.step": "line_search"},
        ),
        Requirement(
            {"exchange": "server", "compression": ("none", "identity")},
            "which asks for whole gradients at a server",
            {"algorithm.stop_at": Not(None)},
        ),
    )

    def descend(
        self, state: FlixState, clients: Clients, channel: Channel, draws: Draws, first: bool
    ) -> FlixState:
        x = channel.broadcast(state.model)
        g = self.objective.gradients(state.optima, x[:, 0], clients, draws)  # line 3
        moved = x - float(state.step) * g[:, None]
        weights = clients.equal_weights
        return replace(state, model=channel.average(moved, weights, before=state.model))  # line 4

    def variance(self, exchange: Exchange) -> float:
        """Return omega; 0 under gossip and with error feedback, which make up for what is lost."""
        compressor = exchange.compressor
        if compressor is None or exchange.shared_is_rows or not compressor.unbiased:
            return 0.0
        return compressor.omega(self.model.n_parameters)

    def proven_step(self, c: theory.Constants) -> float:
        """Theorem 2; with unbiased compression gradient descent is DCGD."""
        return theory.dcgd_step(c, self.setting) if c.omega else theory.dgd_step(c)

    def unproven(self, exchange: Exchange) -> list[str]:
        absent = ["partial participation"] if exchange.federation.inclusion < 1 else []
        return [*super().unproven(exchange), *absent]

    def predicted_rounds(
        self, state: FlixState, clients: Clients, exchange: Exchange, c: theory.Constants
    ) -> list[str]:
        """Rounds that Theorem 2, which is about whole messages, needs with equal coefficients."""
        alpha = self.objective.alpha(clients.federation.training)
        equal = bool((alpha == alpha[0]).all())
        if exchange.compressor is not None or not self.averages or c.mu_hat <= 0 or not equal:
            return []
        variance = weighted_variance(state.optima, state.smoothness, clients)
        rounds = theory.communications(c, variance, self.accuracy, float(alpha[0]))
        most = theory.one_shot_alpha(c, variance, self.accuracy)
        return [
            f"Theorem 2: at most {rounds} rounds to a gap of {self.accuracy:g}; one round is "
            f"enough up to flix_alpha {most:.3g}"
        ]


class Dcgd(Descent[ServerChannel]):
    """DCGD: gradient descent on the FLIX objective with unbiased compression of gradients.

    Parameters
    ----------
    **options
        Those of ``Descent``.
    """

    requires = (
        *Descent.requires,
        Requirement(
            {"algorithm.step": Not("line_search"), "algorithm.stop_at": None},
            "whose server has no whole gradients",
        ),
    )
    compressors = "unbiased"

    def descend(
        self, state: FlixState, clients: Clients, channel: ServerChannel, draws: Draws, first: bool
    ) -> FlixState:
        channel.broadcast(state.model)  # line 2
        sent = send_gradients(self.objective, state, None, clients, channel, draws)  # lines 4, 5
        g = channel.sum(sent, clients.sampled_weights)  # line 6
        return replace(state, model=stepped(state.model, float(state.step), g))  # line 7

    def proven_step(self, c: theory.Constants) -> float:
        """Theorems 3, 5 and 7."""
        return theory.dcgd_step(c, self.setting)

    def predicted_rounds(
        self, state: FlixState, clients: Clients, exchange: Exchange, c: theory.Constants
    ) -> list[str]:
        """Where Theorem 3 puts the floor."""
        if not self.knows_minimiser(state, c):
            return []
        noise = self.squared_gradients(state, clients) / c.n
        floor = theory.dcgd_floor(c, float(state.step), c.omega * noise)
        gap = c.l_alpha / 2 * floor
        return [f"Theorem 3: E||x - x*||^2 ends at {floor:.3g} at most, the gap at {gap:.3g}"]


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

    requires = (
        *Descent.requires,
        Requirement(
            {"algorithm.step": Not("line_search"), "algorithm.stop_at": None},
            "whose server has no whole gradients",
        ),
    )
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
        h_i, h, uncompressed = state.memories, state.memory, first and self.starts_with_gradients
        sent = send_gradients(
            self.objective, state, h_i, clients, channel, draws, uncompressed
        )  # 4, 5
        mean = channel.sum(sent, clients.sampled_weights)
        size, inclusion = self.model.n_parameters, clients.federation.inclusion
        omega = message_variance(channel.compressor, clients.federation, size)
        # h_i^0 is the gradient of those who take part, and stays zero for the others.
        beta = inclusion if uncompressed else self.memory_rate(omega)
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
