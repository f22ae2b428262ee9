"""FedEM and D-FedEM: federated expectation-maximisation (Marfoq et al., NeurIPS 2021).

Each client's data follow a mixture of M distributions. The components theta_m are shared; the
mixture weights pi_t stay with the client. With a server exchange this is Algorithm 1 (Algorithm 2
in detail), with gossip Algorithm 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.base import (
    Algorithm,
    Predictor,
    StepScale,
    initial_models,
    refuse_per_client,
    step_scale,
)
from mpifed.errors import InputError
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.local.scoring import mean_by_client, train_losses
from mpifed.local.solver import LocalSGD, OptimizerState
from mpifed.models.base import Model


@dataclass(frozen=True)
class FedEMState:
    """Components, mixture weights and the clients' optimizers.

    Attributes
    ----------
    components : Tensor
        theta, (M, P); under gossip (clients, M, P).
    mixture : Tensor
        pi, (clients, M).
    optimizer : OptimizerState
        SGD buffers of the clients.
    """

    components: Tensor = state.shared()
    mixture: Tensor = state.client()
    optimizer: OptimizerState = state.client()


def posterior(model: Model, components: Tensor, mixture: Tensor, clients: Clients) -> Tensor:
    """E-step, eq. 8: q(z_i = m) proportional to pi_m exp(-l(theta_m; s_i)).

    Parameters
    ----------
    model : Model
        The model of all components.
    components : Tensor
        theta, (M, P) or (clients, M, P).
    mixture : Tensor
        pi, (clients, M).
    clients : Clients
        The clients whose samples are needed.

    Returns
    -------
    Tensor
        q of all hosted training samples, (M, samples). Columns of other clients' samples have no
        meaning.
    """
    train = clients.shards.train
    losses = train_losses(model, components, train, clients.rows)
    return posterior_of_losses(losses, mixture, clients)


def posterior_of_losses(losses: Tensor, mixture: Tensor, clients: Clients) -> Tensor:
    """Return ``posterior`` for known losses of the hosted training samples, (M, samples)."""
    # log 0 = -inf gives q = 0: a component with weight 0 keeps it, as in exact arithmetic.
    train = clients.shards.train
    log_mixture = mixture.new_zeros(mixture.shape[1], len(train.counts))
    log_mixture[:, torch.from_numpy(clients.rows).to(mixture.device)] = torch.log(mixture).T
    counts = torch.from_numpy(train.counts).to(mixture.device)
    log_q = torch.repeat_interleave(log_mixture, counts, dim=1) - losses
    q = torch.exp(log_q - log_q.amax(0))
    # Added component by component: a library's sum over this axis may group by position.
    return q / reduce(torch.add, q.unbind(0))


def mixture_weights(q: Tensor, clients: Clients, floor: float = 0.0) -> Tensor:
    """M-step for the mixture, eq. 9: pi_m = mean_i q(z_i = m).

    Parameters
    ----------
    q : Tensor
        Posterior of the hosted training samples, (M, samples).
    clients : Clients
        The clients whose weights are needed.
    floor : float
        Least weight, before the weights are normalised.

    Returns
    -------
    Tensor
        (clients, M), of the dtype of ``q``.
    """
    mean = mean_by_client(q, clients.shards.train, clients.rows)
    if floor:
        mean = mean.clamp(min=floor)
        mean /= mean.sum(1, keepdim=True)
    return mean.to(q)


class FedEM(Algorithm[Channel]):
    """FedEM; under gossip D-FedEM: shared components, personal mixture weights.

    Parameters
    ----------
    n_components : int
        Number M of shared components.
    mixture_init : {'random', 'uniform'}
        First mixture weights: drawn from the flat Dirichlet distribution, or all equal.
    component_init : {'shared', 'per_client'}, optional
        Whether all clients start from the same components. None is the paper's choice: shared
        under a server (Alg. 2, line 1), drawn by each client under gossip (Alg. 4, line 2).
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip: n_t / n,
        the same with mean one, or 1.
        The first is Algorithm 4, line 19; the last is the published code.
    mixture_floor : float
        Least mixture weight; those below it are raised before the weights are normalised.
    unseen_e_steps : int
        E-steps that fit the mixture weights of an unseen client, from uniform ones (section 3.2).
    """

    learns = "M components, mixture weights of each client"
    sends = "its M components"
    steps_locally = True

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        n_components: Annotated[int, Ge(1)] = 3,
        mixture_init: Literal["random", "uniform"] = "random",
        component_init: Literal["shared", "per_client"] | None = None,
        gossip_step_scale: StepScale = "paper",
        mixture_floor: Annotated[float, Ge(0), Lt(1)] = 0.0,
        unseen_e_steps: Annotated[int, Ge(1)] = 1,
    ) -> None:
        if mixture_floor * n_components >= 1:
            raise InputError(
                f"algorithm.mixture_floor is {mixture_floor:g}; it must be below "
                f"1 / n_components = {1 / n_components:g}"
            )
        self.model, self.local = model, local
        self.n_components, self.deploys_mixtures = n_components, n_components > 1
        self.mixture_init = mixture_init
        self.component_init = component_init
        self.gossip_step_scale: StepScale = gossip_step_scale
        self.mixture_floor = mixture_floor
        self.unseen_e_steps = unseen_e_steps

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedEMState:
        longest = int(clients.federation.n_train.max())
        if self.n_components > longest:
            raise InputError(
                f"algorithm.n_components is {self.n_components}, more than any client can tell "
                f"apart: the largest shard has {longest} training samples"
            )
        per_client = self.component_init == "per_client" or (
            self.component_init is None and exchange.shared_is_rows
        )
        components = initial_models(
            self.model, self.n_components, clients, exchange, draws, dtype, per_client
        )
        mixture = torch.full((len(clients), self.n_components), 1 / self.n_components, dtype=dtype)
        if self.mixture_init == "random":
            for row, client in enumerate(clients.ids):
                drawn = draws.stream("mixture", int(client)).dirichlet([1.0] * self.n_components)
                mixture[row] = torch.from_numpy(drawn)
        optimizer = self.local.init(len(clients), self.n_components, dtype)
        return FedEMState(components, mixture.to(components.device), optimizer)

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Return why these options do not fit together, or None."""
        return refuse_per_client(configuration, "component_init")

    def round(
        self, state: FedEMState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedEMState:
        start = channel.broadcast(state.components)  # Alg. 1, line 2
        own = self.local.own(state.components, state.optimizer)
        q = posterior(self.model, own, state.mixture, clients)  # eq. 8
        mixture = mixture_weights(q, clients, self.mixture_floor)  # eq. 9
        scale = step_scale(clients, channel, self.gossip_step_scale)  # Alg. 4, line 19
        trained, optimizer = self.local(
            start, state.optimizer, clients, draws, weights=q, step_scale=scale
        )  # eq. 10, inexactly
        components = channel.average(
            trained, clients.weights, before=state.components
        )  # Alg. 1, l. 10
        return FedEMState(components, mixture, optimizer)

    def deploy(self, state: FedEMState, clients: Clients, draws: Draws) -> Predictor:
        """h_t = sum_m pi_tm h_m (eq. 5)."""
        return Predictor(self.local.own(state.components, state.optimizer), state.mixture)

    def adapt(
        self, state: FedEMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients fit their mixture weights, with the components fixed (section 3.2)."""
        components = exchange.mean(state.components)
        mixture = components.new_full((len(clients), self.n_components), 1 / self.n_components)
        for _ in range(self.unseen_e_steps):
            q = posterior(self.model, components, mixture, clients)
            mixture = mixture_weights(q, clients, self.mixture_floor)
        return Predictor(components, mixture)

    def payload(self) -> int:
        return self.n_components * self.model.n_parameters
