"""FedMM in the space of parameters (Dieuleveut et al. 2025, section 4.1, eq. 21).

The exchange is that of ``fedmm``, but a client maps its statistics to parameters before it sends
them, and the server mixes parameters. The paper uses it to show why surrogates should be mixed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.algorithms.fedmm.fedmm import FedMM, rows_or_nan, shards_of
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients, Draws


class FedMMTheta(FedMM):
    """The naive twin of FedMM: aggregates parameters, not surrogates."""

    learns = "the parameters of a surrogate"
    sends = "a change of its parameters"

    def first(self, theta: Tensor) -> Tensor:
        """theta_0 itself is iterated."""
        return theta

    def message_size(self) -> int:
        """Messages are parameters."""
        return self.surrogate.n_parameters

    def shared_parameters(self, s: Tensor, start: Tensor, by_row: bool) -> Tensor:
        """Return theta as iterated, (n_parameters,), or its rows in ``start`` under gossip."""
        return start if by_row else s

    def oracle(self, start: Tensor, theta: Tensor, clients: Clients, draws: Draws) -> Tensor:
        """Return theta_i = T(mean statistics under theta), (clients, n_parameters)."""
        if not len(clients):
            return start.clone()
        found = self.statistics(theta, self.samples(clients, draws))
        return rows_or_nan(self.surrogate.minimiser, found, self.message_size())

    def onto(self, s: Tensor) -> Tensor:
        """Return the nearest point of Theta, where the surrogate has one."""
        return self.surrogate.project_parameters(s)

    def parameters(self, s: Tensor) -> Tensor:
        """theta of what is iterated, which is theta."""
        return s

    def updates(self, now: Tensor, before: Tensor, clients: Clients) -> dict[str, float]:
        """As in ``FedMM``, with statistics of all data for the surrogates' space; collective."""
        moves = torch.zeros(len(clients), self.surrogate.size, dtype=torch.float64)
        if len(clients):
            split = shards_of(clients)
            moves = self.statistics(now, split) - self.statistics(before, split)
        return {
            "surrogate_update": float(total(clients, moves, self.weights(clients)).square().sum()),
            "parameter_update": float((now - before).square().sum()),
        }
