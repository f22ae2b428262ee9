"""FedEM and D-FedEM (Marfoq et al. 2021): Algorithm 1 (2 in detail), and Algorithm 4 under gossip.

Each client's data follow a mixture of M distributions. The components theta_m are shared; the
mixture weights pi_t stay with the client.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from mpifed.algorithms.fedem import maximisation
from mpifed.algorithms.fedem.expectation import (
    entropies,
    first_mixture,
    fitted_mixture,
    log_likelihoods,
    mixture_weights,
    posterior,
)
from mpifed.algorithms.fedem.restarts import best_beginning
from mpifed.algorithms.fedem.surrogate import PartialSurrogate, Solver, minimise_surrogates
from mpifed.errors import InputError
from mpifed.exchange.base import Channel, Exchange
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSGD, OptimizerState
from mpifed.local.weighted_optima import check_exact
from mpifed.models.base import Model

NOTHING_LOST = ("none", "identity")


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
    unseen_e_steps : int, optional
        E-steps that fit the mixture weights of an unseen client, from uniform ones (section 3.2).
        1 is the paper's; None is until they converge.
    local_solver : {'steps', 'newton'}
        The M-step: local steps, or the exact minimiser by Newton's method, for linear models with
        one output (App. H; weighted least squares for squared losses). The latter reads no option
        of ``local`` but ``weight_decay``.
    record_improvement : bool
        Whether evaluations record the factor alpha of Assumption 9 of the local solver, as
        ``local_improvement``. It costs an exact M-step each time.
    restarts : int
        Beginnings that are tried before round 1; the one with the best training likelihood is
        kept. 1 tries none.
    restart_rounds : int
        Rounds of each trial. They are booked in round 0.
    warm_start : bool
        Whether the run continues the best trial, or begins again from its first components.
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
        unseen_e_steps: Annotated[int, Ge(1)] | None = 1,
        local_solver: Literal["steps", "newton"] = "steps",
        record_improvement: bool = False,
        restarts: Annotated[int, Ge(1)] = 1,
        restart_rounds: Annotated[int, Ge(1)] = 20,
        warm_start: bool = True,
    ) -> None:
        if mixture_floor * n_components >= 1:
            raise InputError(
                f"algorithm.mixture_floor is {mixture_floor:g}; it must be below "
                f"1 / n_components = {1 / n_components:g}"
            )
        self.ridge = local.options.weight_decay
        if local_solver == "newton" or record_improvement:
            asks = "local_solver=newton" if local_solver == "newton" else "record_improvement=true"
            check_exact(model, self.ridge, f"algorithm.{asks}")
        self.model, self.local, self.local_solver = model, local, local_solver
        self.columns = ("mixture_entropy", *["local_improvement"] * record_improvement)
        self.restarts, self.restart_rounds, self.warm_start = restarts, restart_rounds, warm_start
        self._trials: list[float] = []
        self.n_components, self.deploys_mixtures = n_components, n_components > 1
        self.mixture_init: Literal["random", "uniform"] = mixture_init
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
        mixture = first_mixture(clients, draws, self.n_components, self.mixture_init, dtype)
        optimizer = self.local.init(len(clients), self.n_components, dtype)
        return FedEMState(components, mixture, optimizer)

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Return why these options do not fit together, or None."""
        options = configuration.algorithm.options
        if options.get("restarts", 1) > 1 and configuration.compression.name not in NOTHING_LOST:
            return (
                f"algorithm.restarts is {options['restarts']}, but compression is "
                f"'{configuration.compression.name}': trials of beginnings send whole messages; "
                "allowed: compression=none, or algorithm.restarts=1"
            )
        return refuse_per_client(configuration, "component_init")

    def prepare(
        self, state: FedEMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FedEMState:
        """Return the beginning with the best training likelihood."""
        if self.restarts == 1:
            return state
        best, self._trials = best_beginning(
            lambda own: self.init(clients, exchange, own, state.components.dtype),
            self.round,
            self.log_likelihoods,
            clients,
            exchange,
            draws.seed,
            self.restarts,
            self.restart_rounds,
            self.warm_start,
        )
        return best

    def remarks(self, state: FedEMState, clients: Clients, exchange: Exchange) -> list[str]:
        """Return what the beginnings reached that were tried in this part of the run."""
        return [
            f"beginning {i} of {self.restarts}: training log-likelihood {reached:.8g} after "
            f"{self.restart_rounds} rounds"
            for i, reached in enumerate(self._trials, 1)
        ]

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
            self._black_box(clients),
        )
        return FedEMState(components, mixture, optimizer)

    def _black_box(self, clients: Clients) -> Solver | None:
        exact = self.local_solver == "newton"
        return maximisation.newton(self.model, clients, self.ridge) if exact else None

    def log_likelihoods(self, state: FedEMState, clients: Clients) -> Tensor:
        """Return the training log-likelihood of each client, float64 (clients,)."""
        own = self.local.own(state.components, state.optimizer)
        return log_likelihoods(self.model, own, state.mixture, clients)

    def measure(
        self, state: FedEMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """Return the mean entropy of the mixtures, and how good the local solver is here."""
        mean = total(clients, entropies(state.mixture)[:, None], clients.equal_weights)
        found: dict[str, float | None] = {"mixture_entropy": float(mean[0])}
        if "local_improvement" in self.columns:
            found["local_improvement"] = self._improvement(state, clients, draws)
        return found

    def _improvement(self, state: FedEMState, clients: Clients, draws: Draws) -> float:
        start = state.components.expand(len(clients), *state.components.shape[-2:])
        surrogate, _ = self.surrogate(state.components, state.mixture, clients)
        solver = self._black_box(clients)
        if solver is not None:
            found = solver(start, surrogate)
        else:
            found, _ = self.local(
                start,
                state.optimizer,
                clients,
                Draws(draws.seed, draws.round + 1),
                surrogate.weights,
            )
        risks = maximisation.weighted_risks(self.model, clients, surrogate, self.ridge)
        return maximisation.local_improvement(risks, start, found, clients)

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

    def payload(self) -> int:
        return self.n_components * self.model.n_parameters
