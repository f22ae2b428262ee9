"""DCGD on the FLIX objective (Gasanov et al. 2021, Algorithm 2): compressed gradients.

    x <- x - gamma (1/n) sum_i C_i(alpha_i grad f_i(T_i(x)))

It ends in a floor that falls with gamma omega / n (Theorem 3); ``diana`` has none.
"""

from __future__ import annotations

from dataclasses import replace

from mpifed.algorithms.flix.flix import Flix
from mpifed.algorithms.flix.forecast import theorem_three
from mpifed.algorithms.flix.messages import sent_gradients
from mpifed.algorithms.flix.refusals import refuse_compressed
from mpifed.algorithms.flix.state import FlixState
from mpifed.algorithms.server_messages import message_variance
from mpifed.exchange.base import Channel, Exchange
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients, Draws
from mpifed.theory import flix as theory


class Dcgd(Flix):
    """DCGD: gradient descent on the FLIX objective with unbiased compression of gradients."""

    exchanges = ("server",)
    compressors = "unbiased"
    refuse = staticmethod(refuse_compressed)

    def variance(self, exchange: Exchange) -> float:
        return message_variance(exchange.compressor, exchange.federation, self.model.n_parameters)

    def theoretical_step(self, c: theory.Constants) -> float:
        return theory.dcgd_step(c, self.setting)

    def foretold(self, state: FlixState, c: theory.Constants, clients: Clients) -> list[str]:
        """The floor of Theorem 3; collective."""
        if not int(state.known) or c.mu_alpha <= 0 or self.setting != "strongly_convex":
            return []
        x = state.reference.to(state.optima)
        g = self.objective.gradients(state.optima, x, clients, Draws(0, 0))
        squares = float(total(clients, g.double().square().sum(1)[:, None])[0])
        return theorem_three(c, float(state.step), squares / c.n)

    def round(
        self, state: FlixState, clients: Clients, channel: Channel, draws: Draws
    ) -> FlixState:
        if self.objective.is_local:
            return state
        if self.averages(channel) and draws.round == 1:
            return replace(state, model=self.average(state, clients, channel))
        channel.broadcast(state.model)
        x = state.model[0]
        arrived = sent_gradients(self.objective, state.optima, x, None, clients, channel, draws)
        mean = channel.sum(arrived, clients.sampled_weights)
        moved = state.model.double() - float(state.step) * mean[None]
        return replace(state, model=moved.to(state.model))
