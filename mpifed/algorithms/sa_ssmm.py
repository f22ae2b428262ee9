"""SA-SSMM: stochastic approximation of a surrogate, one client (Dieuleveut et al. 2025, Alg. 1).

    S <- S + gamma_t (S_t - S),   S_t a mini-batch mean of the statistics under T(S)

This is FedMM with one client that always takes part and sends everything: then V cancels and
H = S_t - S. With ``step_rule: inverse_kept``, batches of one and the unit-ball dictionary it is
online dictionary learning (Mairal et al. 2010), in which the first S counts as one sample.
"""

from __future__ import annotations

from typing import Any

from mpifed.algorithms.fedmm import FedMM
from mpifed.algorithms.server_messages import refuse_gossip


class SaSsmm(FedMM):
    """SA-SSMM: centralised stochastic majorise-minimise, one client."""

    exchanges = ("server",)
    compressors = "none"

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Why these options do not go together, if they do not."""
        if configuration.clients != 1:
            return (
                f"clients is {configuration.clients}, but sa_ssmm is centralised; allowed: 1 "
                "(fedmm is its federated form)"
            )
        if configuration.compression["name"] != "none" or configuration.participation != 1.0:
            return "sa_ssmm sends nothing; compression must be none and participation 1.0"
        return refuse_gossip(configuration)
