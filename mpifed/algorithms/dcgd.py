"""DCGD on the FLIX objective (Gasanov et al. 2021, Algorithm 2): compressed gradients.

    x <- x - gamma (1/n) sum_i C_i(alpha_i grad f_i(T_i(x)))

It ends in a floor that falls with gamma omega / n (Theorem 3); ``diana`` has none.
"""

from __future__ import annotations

from dataclasses import replace

from mpifed.algorithms.flix import Flix, FlixState
from mpifed.algorithms.flix_refusals import refuse_compressed, refuse_messages
from mpifed.exchange.base import Channel, Exchange
from mpifed.exchange.compression import Compressor
from mpifed.federation import Clients, Draws, Federation
from mpifed.theory import flix as theory

__all__ = ["Dcgd", "message_variance", "refuse_messages"]


class Dcgd(Flix):
    """DCGD: gradient descent on the FLIX objective with unbiased compression of gradients."""

    exchanges = ("server",)
    compressors = "unbiased"
    refuse = staticmethod(refuse_compressed)

    def variance(self, exchange: Exchange) -> float:
        return message_variance(exchange.compressor, exchange.federation, self.model.n_parameters)

    def theoretical_step(self, c: theory.Constants) -> float:
        return theory.dcgd_step(c, self._setting())

    def round(
        self, state: FlixState, clients: Clients, channel: Channel, draws: Draws
    ) -> FlixState:
        if self.averages(channel) and draws.round == 1:
            return replace(state, model=self.average(state, clients, channel))
        x = channel.broadcast(state.model)
        g = self.objective.gradients(state.optima, x[:, 0], clients, draws)
        arrived = channel.send(g)
        mean = channel.sum(arrived, clients.sampled_weights)
        moved = state.model.double() - float(state.step) * mean[None]
        return replace(state, model=moved.to(state.model))


def message_variance(compressor: Compressor | None, federation: Federation, size: int) -> float:
    """omega of a client's message, participation included: (1 + omega) / p - 1.

    A client that takes part with probability p sends U / p of its compressed message, U in {0, 1}.
    """
    omega = compressor.omega(size) if compressor is not None else 0.0
    return (1 + omega) / federation.inclusion - 1
