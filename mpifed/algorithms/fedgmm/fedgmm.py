"""FedGMM (Wu et al. 2023): a mixture of joint distributions of inputs and labels.

Client c has weights pi_c(m1, m2); M1 Gaussians of inputs and M2 conditional models are shared:

    p_c(x, y) = sum_{m1, m2} pi_c(m1, m2) N(x; mu_m1, Sigma_m1) p(y | x; theta_m2)

E-step of client c, for each of its n_c samples i, with the loss l = -log p(y | x):
    q_i(m1, m2) proportional to pi_c(m1, m2) N(x_i; mu_m1, Sigma_m1) exp(-l(theta_m2; s_i))
M-step, with r_i(m1) = sum_m2 q_i(m1, m2):
    pi_c(m1, m2) = mean_i q_i(m1, m2)
    theta_m2     = local steps on the loss weighed by sum_m1 q_i(m1, m2), averaged by n_c
    mu_m1        = sum_{c, i} r_i(m1) x_i / sum_{c, i} r_i(m1)
    Sigma_m1     = sum_{c, i} r_i(m1) (x_i - mu_m1) (x_i - mu_m1)ᵀ / sum_{c, i} r_i(m1)

The last two follow from means over clients of r, r x and r x xᵀ, which is what clients send. With
M1 = 1 this is FedEM; with M2 = 1 besides, FedAvg.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import torch

from mpifed.algorithms.base import Predictor, initial_models
from mpifed.algorithms.fedem.expectation import (
    first_mixture,
    fitted_mixture_of_losses,
    mixture_weights,
    posterior_of_losses,
)
from mpifed.algorithms.fedgmm.gaussians import mean_statistics
from mpifed.algorithms.fedgmm.joint import (
    first_statistics,
    no_statistics,
    pair_losses,
    predictor,
)
from mpifed.algorithms.fedgmm.mixtures import FedGMMState, JointMixtures
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.federation.clients import Clients, Draws


class FedGMM(JointMixtures):
    """FedGMM: Gaussians of inputs and components of labels, mixed jointly by every client.

    Its options are those of ``JointMixtures``.
    """

    learns = "M1 Gaussians, M2 components, mixture weights of each client"
    sends = "its M2 components, moments of its inputs"

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedGMMState:
        m1, m2 = self.shape
        components = initial_models(self.model, m2, clients, exchange, draws, dtype, False)
        statistics = no_statistics(clients, m1, self.representation(draws), self.full)
        mixture = first_mixture(clients, draws, self.n_pairs, self.mixture_init, dtype)
        return FedGMMState(
            components, statistics, mixture, self.local.init(len(clients), m2, dtype)
        )

    def prepare(
        self, state: FedGMMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FedGMMState:
        """Place the Gaussians among all inputs. Collective."""
        columns = self.represented(self.representation(draws), clients.shards)
        first = first_statistics(columns, clients, exchange, draws, self.shape[0], self.full)
        return replace(state, statistics=first)

    def round(
        self, state: FedGMMState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedGMMState:
        start, before = channel.broadcast(state.components), channel.broadcast(state.statistics)
        own = self.local.own(state.components, state.optimizer)
        columns = self.represented(self.representation(draws), clients.shards)
        losses = pair_losses(self.model, own, self.gaussians(state), columns, clients)
        q = posterior_of_losses(losses, state.mixture, clients)
        mixture = mixture_weights(q, clients, self.mixture_floor)
        joint = q.unflatten(0, self.shape)
        of_labels, of_inputs = (reduce(torch.add, joint.unbind(axis)) for axis in (0, 1))
        trained, optimizer = self.local(start, state.optimizer, clients, draws, weights=of_labels)
        components = channel.average(trained, clients.weights, before=state.components)
        moments = mean_statistics(columns, of_inputs, clients.shards.train, clients.rows, self.full)
        # Whole: a covariance of compressed moments may be none.
        moves = channel.mean(channel.send(moments - before, whole=True), clients.weights)
        return FedGMMState(components, state.statistics + moves, mixture, optimizer)

    def deploy(self, state: FedGMMState, clients: Clients, draws: Draws) -> Predictor:
        """p(y | x) of the joint distribution: the weights of components depend on the input."""
        own = self.local.own(state.components, state.optimizer)
        pairs, gaussians = state.mixture.unflatten(1, self.shape), self.gaussians(state)
        return predictor(own, pairs, gaussians, self.representation(draws))

    def adapt(
        self, state: FedGMMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients fit their mixture weights, which without samples are uniform."""
        representation, gaussians = self.representation(draws), self.gaussians(state)
        columns = self.represented(representation, clients.shards)
        losses = pair_losses(self.model, state.components, gaussians, columns, clients)
        steps, floor = self.unseen_e_steps, self.mixture_floor
        mixture = fitted_mixture_of_losses(losses, clients, steps, floor)
        pairs = mixture.unflatten(1, self.shape)
        return predictor(state.components, pairs, gaussians, representation)
