"""DCGD on the FLIX objective (Gasanov et al. 2021, Algorithm 2): compressed gradients.

    x <- x - gamma (1/n) sum_i C_i(alpha_i grad f_i(T_i(x)))

It ends in a floor that falls with gamma omega / n (Theorem 3); ``diana`` has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mpifed.algorithms.flix import Flix, FlixState
from mpifed.components import find
from mpifed.exchange.base import Channel, Exchange
from mpifed.exchange.compression import Compressor
from mpifed.federation import Clients, Draws, Federation
from mpifed.theory import flix as theory


class Dcgd(Flix):
    """DCGD: gradient descent on the FLIX objective with unbiased compression of gradients."""

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Why these options do not go together, if they do not."""
        return refuse_messages(configuration) or Flix.refuse(configuration)

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
        g = self.mixed_gradient(state, x[:, 0], clients, draws)
        arrived = channel.send(g)
        mean = channel.sum(arrived, uniform_weights(clients))
        moved = state.model.double() - float(state.step) * mean[None]
        return replace(state, model=moved.to(state.model))


def refuse_messages(configuration: Any) -> str | None:
    """Refuses exchanges and compressors with which sums of messages mean nothing."""
    name = configuration.algorithm["name"]
    if configuration.exchange["name"] != "server":
        return (
            f"exchange is '{configuration.exchange['name']}', but {name} sends messages to a "
            "server; under gossip use algorithm=flix with a compression, which neighbours keep "
            "replicas for"
        )
    section = configuration.compression
    if section["name"] != "none":
        options = {key: value for key, value in section.items() if key != "name"}
        made: Any = find("compression", section["name"])
        if not made(**options).unbiased:
            return (
                f"compression.name is '{section['name']}', which is biased, but {name} needs "
                "E C(v) = v; use algorithm=flix, whose messages have error feedback, or an "
                "unbiased compressor such as rand_k"
            )
    return None


def message_variance(compressor: Compressor | None, federation: Federation, size: int) -> float:
    """omega of a client's message, participation included: (1 + omega) / p - 1.

    A client that takes part with probability p sends U / p of its compressed message, U in {0, 1}.
    """
    omega = compressor.omega(size) if compressor is not None else 0.0
    return (1 + omega) / federation.inclusion - 1


def uniform_weights(clients: Clients) -> Tensor:
    """1 / (n p) for each of the participants, float64: the mean over all n training clients."""
    federation = clients.federation
    share = 1 / (len(federation.training) * federation.inclusion)
    return torch.full((len(clients),), share, dtype=torch.float64)
