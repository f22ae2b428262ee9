"""FedEM and D-FedEM (Marfoq et al. 2021): Algorithm 1 (2 in detail), and Algorithm 4 under gossip.

Each client's data follow a mixture of M distributions. The components theta_m are shared; the
mixture weights pi_t stay with the client.

The state of FedEM.

Several beginnings of FedEM, of which the one with the best training likelihood is kept.

The options of FedEM, and what surrounds its rounds: several beginnings, and measurements.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from annotated_types import Ge, Lt
from torch import Tensor

from mpifed import state
from mpifed import state as states
from mpifed.algorithms.base import (
    Algorithm,
    Predictor,
    StepScale,
    initial_models,
    step_scale,
)
from mpifed.algorithms.fedem.expectation import (
    check_floor,
    entropies,
    first_mixture,
    fitted_mixture,
    log_likelihoods,
    mixture_weights,
    posterior,
)
from mpifed.algorithms.fedem.maximisation import (
    MStep,
    PartialSurrogate,
    minimise_surrogates,
)
from mpifed.errors import InputError
from mpifed.exchange.base import Channel, Exchange
from mpifed.exchange.measuring import agreed, total
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSGD, OptimizerState
from mpifed.models.base import Model
from mpifed.random import stream
from mpifed.watchdog.stop_requests import raise_if_stop_requested


@dataclass(frozen=True)
class FedEMState:
    """Components, mixture weights and the clients' optimizers."""

    components: Tensor = state.shared()
    mixture: Tensor = state.client()
    optimizer: OptimizerState = state.client()


S = TypeVar("S")


@dataclass
class Restarts:
    """Trials of several beginnings."""

    trials: int
    rounds: int
    keep_training: bool
    reached: list[float] = field(default_factory=list)

    def best(
        self,
        state: S,
        begin: Callable[[Draws], S],
        round_of: Callable[[S, Clients, Any, Draws], S],
        likelihood: Callable[[S, Clients], Tensor],
        clients: Clients,
        exchange: Exchange,
        seed: int,
    ) -> S:
        """Run the trials and return the best one's state. Collective."""
        if self.trials == 1:
            return state
        federation, is_rows = clients.federation, exchange.shared_is_rows
        active = ~federation.unseen
        rows = torch.from_numpy(np.flatnonzero(active[clients.ids]))
        training = Clients(federation, clients.shards, clients.rows[rows.numpy()])
        best, self.reached = state, []
        for trial in range(self.trials):
            own = seed if trial == 0 else int(stream(seed, "restart", trial).integers(1 << 62))
            first = whole = begin(Draws(own, 0))
            for k in range(1, self.rounds + 1):
                agreed(clients, raise_if_stop_requested)
                part = states.select(whole, rows, is_rows)
                moved = round_of(part, training, exchange.at(k, active), Draws(own, k))
                whole = states.merge(whole, moved, rows, is_rows)
            last = likelihood(states.select(whole, rows, is_rows), training)
            here = float(total(training, last[:, None])[0])
            if not self.reached or here > max(self.reached):
                best = whole if self.keep_training else first
            self.reached.append(here)
        return best

    def remarks(self) -> list[str]:
        """Return a line on each trial, for the log."""
        return [
            f"beginning {i} of {self.trials}: training log-likelihood {reached:.8g} after "
            f"{self.rounds} rounds"
            for i, reached in enumerate(self.reached, 1)
        ]


def check_count(n_components: int, clients: Clients) -> None:
    """Refuse more components than the largest shard has samples."""
    longest = int(clients.federation.n_train.max())
    if n_components > longest:
        raise InputError(
            f"algorithm.n_components is {n_components}, more than any client can tell "
            f"apart: the largest shard has {longest} training samples"
        )


class Mixtures(Algorithm[Channel]):
    """Base class of FedEM.

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
        one output (Appendix H; weighted least squares for squared losses). The latter reads no
        option of ``local`` but ``weight_decay``, and has no learning rate that gossip could scale.
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
        check_floor(mixture_floor, n_components, "n_components")
        self.model, self.local = model, local
        self.m_step = MStep(model, local, local_solver == "newton", record_improvement)
        if local_solver == "newton":
            self.local_options = ("weight_decay",)
        if restarts == 1:
            moot = ("restart_rounds", "warm_start")
            self.unread_options = dict.fromkeys(moot, "restarts above 1")
        self.restarts = Restarts(restarts, restart_rounds, warm_start)
        self.columns = ("mixture_entropy", *["local_improvement"] * record_improvement)
        self.n_components, self.deploys_mixtures = n_components, n_components > 1
        self.mixture_init: Literal["random", "uniform"] = mixture_init
        self.component_init = component_init
        self.gossip_step_scale: StepScale = gossip_step_scale
        self.mixture_floor = mixture_floor
        self.unseen_e_steps = unseen_e_steps

    @abstractmethod
    def surrogate(
        self, components: Tensor, mixture: Tensor, clients: Clients
    ) -> tuple[PartialSurrogate, Tensor]:
        """Return g_t near (components, mixture), and pi that minimises it."""

    def prepare(
        self, state: FedEMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FedEMState:
        """Return the beginning with the best training likelihood."""
        dtype = state.components.dtype

        def begin(own: Draws) -> FedEMState:
            return self.init(clients, exchange, own, dtype)

        return self.restarts.best(
            state, begin, self.round, self.log_likelihoods, clients, exchange, draws.seed
        )

    def remarks(self, state: FedEMState, clients: Clients, exchange: Exchange) -> list[str]:
        """Return what the beginnings reached that were tried in this part of the run."""
        return self.restarts.remarks()

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
            surrogate, _ = self.surrogate(state.components, state.mixture, clients)
            start = state.components, state.optimizer, surrogate
            after = Draws(draws.seed, draws.round + 1)
            found["local_improvement"] = self.m_step.improvement(*start, clients, after)
        return found

    def payload(self) -> int:
        return self.n_components * self.model.n_parameters


class FedEM(Mixtures):
    """FedEM; under gossip D-FedEM: shared components, personal mixture weights."""

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
