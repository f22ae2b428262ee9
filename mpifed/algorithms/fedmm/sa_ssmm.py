"""SA-SSMM: stochastic approximation of a surrogate, one client (Dieuleveut et al. 2025, Alg. 1).

    S <- S + gamma_t (S_t - S),   S_t a mini-batch mean of the statistics under T(S)

With ``step_rule: inverse_kept``, batches of one and the unit-ball dictionary it is online
dictionary learning (Mairal et al. 2010), in which the first S counts as one sample.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mpifed.algorithms.fedmm.fedmm import FedMM, FedMMState
from mpifed.exchange.base import Channel, Exchange, to_server
from mpifed.federation.clients import Clients, Draws


class SaSsmm(FedMM):
    """SA-SSMM: centralised stochastic majorise-minimise, one client."""

    learns = "the parameters of a surrogate"
    sends = ""
    communicates = False
    compressors = "none"

    def round(
        self, state: FedMMState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedMMState:
        self.recall(state)
        start = state.surrogate.expand(len(clients), -1)
        oracle = self.oracle(start, self.parameters(state.surrogate), clients, draws)
        # The sum has one term; it brings the direction to ranks without a client.
        server = to_server(channel)
        direction = server.sum(oracle - start, torch.ones(len(clients), dtype=torch.float64))
        (surrogate,) = server.at_server(
            lambda: [self.project(state.surrogate + self.gamma(draws.round) * direction)]
        )
        return replace(state, surrogate=surrogate, previous=state.surrogate)

    def remarks(self, state: FedMMState, clients: Clients, exchange: Exchange) -> list[str]:
        """The facts about the data, and which options have no effect."""
        unread = []
        if self.rate:
            unread.append(
                f"algorithm.control_variate_rate={self.rate:g} changes nothing: sa_ssmm has one "
                "client, which does not differ from itself"
            )
        return [*unread, *self.about(state)]

    def payload(self) -> int:
        return 0
