"""FedEM and D-FedEM (Marfoq et al. 2021): Algorithm 1 (2 in detail), and Algorithm 4 under gossip.

Each client's data follow a mixture of M distributions. The components theta_m are shared; the
mixture weights pi_t stay with the client.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.algorithms.base import Predictor, initial_models, step_scale
from mpifed.algorithms.fedem.expectation import (
    first_mixture,
    fitted_mixture,
    mixture_weights,
    posterior,
)
from mpifed.algorithms.fedem.mixtures import Mixtures, check_count
from mpifed.algorithms.fedem.state import FedEMState
from mpifed.algorithms.fedem.surrogate import PartialSurrogate, minimise_surrogates
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws


class FedEM(Mixtures):
    """FedEM; under gossip D-FedEM: shared components, personal mixture weights.

    Its options are those of ``Mixtures``.
    """

    learns = "M components, mixture weights of each client"
    sends = "its M components"

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedEMState:
        check_count(self.n_components, clients)
        per_client = self.component_init == "per_client" or (
            self.component_init is None and exchange.shared_is_rows
        )
        components = initial_models(
            self.model, self.n_components, clients, exchange, draws, dtype, per_client
        )
        mixture = first_mixture(clients, draws, self.n_components, self.mixture_init, dtype)
        optimizer = self.local.init(len(clients), self.n_components, dtype)
        return FedEMState(components, mixture, optimizer)

    def surrogate(
        self, components: Tensor, mixture: Tensor, clients: Clients
    ) -> tuple[PartialSurrogate, Tensor]:
        """Return g_t near (components, mixture), and pi that minimises it (Alg. 3, lines 4, 5)."""
        q = posterior(self.model, components, mixture, clients)  # eq. 8
        return PartialSurrogate(q), mixture_weights(q, clients, self.mixture_floor)  # eq. 9

    def round(
        self, state: FedEMState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedEMState:
        own = self.local.own(state.components, state.optimizer)
        surrogate, mixture = self.surrogate(own, state.mixture, clients)
        components, optimizer = minimise_surrogates(  # eq. 10, inexactly, and Alg. 1, line 10
            state.components,
            state.optimizer,
            surrogate,
            self.local,
            clients,
            channel,
            draws,
            step_scale(clients, channel, self.gossip_step_scale),  # Alg. 4, line 19
            self.m_step.black_box(clients),
        )
        return FedEMState(components, mixture, optimizer)

    def deploy(self, state: FedEMState, clients: Clients, draws: Draws) -> Predictor:
        """h_t = sum_m pi_tm h_m (eq. 5)."""
        return Predictor(self.local.own(state.components, state.optimizer), state.mixture)

    def adapt(
        self, state: FedEMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients fit their mixture weights, with the components fixed (section 3.2)."""
        components = exchange.mean(state.components)
        steps, floor = self.unseen_e_steps, self.mixture_floor
        return Predictor(components, fitted_mixture(self.model, components, clients, steps, floor))
