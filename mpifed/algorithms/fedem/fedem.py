"""FedEM and D-FedEM (Marfoq et al. 2021): Algorithm 1 (2 in detail), and Algorithm 4 under gossip.

Each client's data follow a mixture of M distributions. The components theta_m are shared; the
mixture weights pi_t stay with the client. Of several beginnings the one with the best training
likelihood is kept.

The general form, federated surrogate optimisation, is section 3.4 with Algorithms 3 and 5.
Assumption 9 (App. H) asks of a black-box local solver of the M-step that for some alpha < 1, all
clients t and components m

    Phi_tm(theta_tm) - Phi_tm* <= alpha (Phi_tm(theta_m) - Phi_tm*)

where it starts at theta_m and ends at theta_tm, and Phi_tm is the risk weighted by q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed import state as states
from mpifed.algorithms.fedem.expectation import (
    check_floor,
    entropies,
    first_mixture,
    fitted_mixture,
    log_likelihoods,
    mixture_weights,
    posterior,
)
from mpifed.dataset import stream
from mpifed.errors import InputError
from mpifed.method import (
    Algorithm,
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    Requirement,
    StepScale,
    heartbeat,
    initial_models,
)
from mpifed.model import CROSS_ENTROPY, HALF_SQUARED, SQUARED, Linear, Loss, Model, design, sigmoid

# Norm of the gradient at which Newton's method stops.
TOLERANCE = 1e-10

# Largest number of its steps.
MOST_STEPS = 100

# Least share of a Newton step that is tried.
SHORTEST = 2.0**-30

# Share of Phi below which a gap to Phi* counts as closed: rounding would decide the ratio.
SMALLEST_GAP = 1e-9


@dataclass(frozen=True)
class PartialSurrogate:
    """g_t(., v_t) as local solvers read it: weights of the samples' losses."""

    weights: Tensor | None = None


# A black box: from (clients, M, P) and the surrogates to their (inexact) minimisers.
Solver = Callable[[Tensor, PartialSurrogate], Tensor]


def minimise_surrogates(
    shared: Tensor,
    optimizer: OptimizerState,
    surrogate: PartialSurrogate,
    local: LocalSolver,
    clients: Clients,
    channel: Channel,
    draws: Draws,
    solver: Solver | None = None,
) -> tuple[Tensor, OptimizerState]:
    """Lines 2, 6 and 8 of Algorithm 3 under a server, 5 to 9 of Algorithm 5 under gossip."""
    start = channel.broadcast(shared)
    if solver is None:
        moved, optimizer = local(
            start,
            optimizer,
            clients,
            draws,
            channel,  # Alg. 4, line 19
            weights=surrogate.weights,
        )
    else:
        moved = solver(start, surrogate)
    return channel.average(moved, clients.weights, before=shared), optimizer


def check_exact(model: Model, ridge: float, field: str) -> None:
    """Refuse models whose weighted risks have no minimiser that is found here."""
    linear = isinstance(model, Linear) and model.n_outputs == 1
    if not linear or model.loss not in (CROSS_ENTROPY, SQUARED, HALF_SQUARED):
        raise InputError(
            f"{field} needs model=linear with one output (two classes, or one target); other "
            "models have no closed form: allowed for them: algorithm.local_solver=steps"
        )
    if model.loss is CROSS_ENTROPY and not ridge:
        raise InputError(
            f"{field} needs local.weight_decay above 0 for logistic losses, which otherwise have "
            "no minimiser where a line separates a client's labels"
        )


@dataclass(frozen=True)
class OwnRisks:
    """Phi_tm of one client t, as functions of its M components, in float64."""

    a: Tensor
    y: Tensor
    shares: Tensor
    loss: Loss
    ridge: float

    @property
    def scale(self) -> float:
        """The second derivative of a squared loss."""
        return 2.0 if self.loss is SQUARED else 1.0

    def values(self, theta: Tensor) -> Tensor:
        """Return Phi_tm, (M, P) to (M,)."""
        z = theta @ self.a.T
        if self.loss is CROSS_ENTROPY:
            losses = torch.nn.functional.softplus(z) - self.y * z
        else:
            losses = self.scale / 2 * (z - self.y) ** 2
        return (self.shares * losses).sum(1) + self.ridge / 2 * theta.square().sum(1)

    def derivatives(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients and Hessians, (M, P) to (M, P) and (M, P, P)."""
        z = theta @ self.a.T
        if self.loss is CROSS_ENTROPY:
            p = sigmoid(z)
            slopes, second = p - self.y, p * (1 - p)
        else:
            slopes, second = self.scale * (z - self.y), torch.full_like(z, self.scale)
        gradient = (self.shares * slopes) @ self.a + self.ridge * theta
        curved = torch.stack([self.a.T @ (self.a * row[:, None]) for row in self.shares * second])
        curved.diagonal(dim1=1, dim2=2).add_(self.ridge)
        return gradient, curved

    def minimiser(self, theta: Tensor) -> Tensor:
        """Return argmin Phi_tm, (M, P), by Newton's method; steps that increase it are halved."""
        risk, (gradient, curved) = self.values(theta), self.derivatives(theta)
        for _ in range(MOST_STEPS):
            open_ = gradient.norm(dim=1) > TOLERANCE
            if not open_.any():
                break
            step = self._direction(curved, gradient)
            scale = open_.double()[:, None]
            while True:
                there = theta - scale * step
                after = self.values(there)
                worse = (after > risk) & (scale[:, 0] > 0)
                if not worse.any():
                    break
                scale = torch.where(worse[:, None], scale / 2, scale)
                scale = torch.where(scale < SHORTEST, 0.0, scale)
            before = gradient.norm(dim=1)
            theta, risk, (gradient, curved) = there, after, self.derivatives(there)
            if not ((scale[:, 0] > 0) & (gradient.norm(dim=1) < before)).any():
                break  # the limit of rounding
        return theta

    def _direction(self, curved: Tensor, gradient: Tensor) -> Tensor:
        if self.ridge:
            return torch.linalg.solve(curved, gradient[..., None])[..., 0]
        # Fewer samples than inputs: the least-norm step ends in the minimiser closest to the start.
        solution = torch.linalg.lstsq(curved, gradient[..., None], driver="gelsd").solution
        return solution[..., 0]


@dataclass(frozen=True)
class WeightedRisks:
    """Phi_tm of some clients and M components."""

    model: Linear
    clients: Clients
    weights: Tensor
    ridge: float

    def losses(self, parameters: Tensor) -> Tensor:
        """Return Phi_tm at ``parameters`` (clients, M, P), float64 (clients, M)."""
        values = torch.zeros(parameters.shape[:2], dtype=torch.float64)
        for i in range(len(self.clients)):
            values[i] = self.of_client(i).values(parameters[i].double().cpu())
        return values

    def minimisers(self, start: Tensor) -> Tensor:
        """Return argmin Phi_tm, (clients, M, P); the one closest to ``start`` if there are many."""
        minima = start.clone()
        for i in range(len(self.clients)):
            heartbeat.step()
            minima[i] = self.of_client(i).minimiser(start[i].double().cpu()).to(start)
        return minima

    def of_client(self, i: int) -> OwnRisks:
        """Return the risks of the i-th client."""
        row, split = int(self.clients.rows[i]), self.clients.shards.train
        part = split.rows_of(row)
        a = torch.from_numpy(design(self.model, split, row)).double()
        y = split.y[part].double().cpu().reshape(-1)
        shares = self.weights[:, part].double().cpu() / max(1, len(a))
        return OwnRisks(a, y, shares, self.model.loss, self.ridge)


def local_improvement(
    risks: WeightedRisks, start: Tensor, trained: Tensor, clients: Clients
) -> float:
    """Return the largest alpha of Assumption 9 over all clients and components. Collective."""
    best = risks.losses(risks.minimisers(start))
    before, after = risks.losses(start) - best, risks.losses(trained) - best
    counts = before > SMALLEST_GAP * best.abs().clamp(min=SMALLEST_GAP)
    ratios = (after.clamp(min=0) / before).where(counts, before.new_zeros(()))
    return clients.largest(ratios.flatten())


@dataclass(frozen=True)
class FedEMState:
    """Components, mixture weights and the clients' optimizers."""

    components: Tensor = states.shared()
    mixture: Tensor = states.client()
    optimizer: OptimizerState = states.client()


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
        one output (Appendix H; weighted least squares for squared losses). The latter reads no
        option of ``local`` but ``weight_decay``, and has no learning rate that gossip could scale.
    record_improvement : bool
        Whether evaluations record the factor alpha of Assumption 9 of the local solver, as
        ``local_improvement``. It costs an exact M-step each time.
    restarts : int
        Starts that are tried before round 1; the one with the best training likelihood is
        kept. 1 tries none.
    restart_rounds : int
        Rounds of each trial. They are booked in round 0.
    warm_start : bool
        Whether the run continues the best trial, or begins again from its first components.
    """

    requires = (
        Requirement(
            {
                "compression": ("none", "identity"),
                "exchange.correction": None,
                "server_optimizer": "sgd",
                "server_optimizer.lr": 1.0,
                "exchange.aggregator:centred": (None, False),
                "privacy.noise_multiplier": None,
            },
            "whose trials send whole messages and remember none",
            {"algorithm.restarts": Gt(1)},
        ),
        Requirement(
            {"participation.late": "miss", "exchange.correction:within_steps": (None, False)},
            "which takes no steps that could be cut or corrected",
            {"algorithm.local_solver": "newton"},
        ),
        Requirement(
            {"exchange.correction:looks_at_losses": (None, False)},
            "whose clients have several models each",
        ),
        Requirement(
            {"algorithm.gossip_step_scale": "none"},
            "which has no rate to scale",
            {"algorithm.local_solver": "newton", "exchange": "gossip"},
        ),
    )

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
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
        self.model, self.local = model, local.scaled(gossip_step_scale)
        # Factor of (1 / 2) ||theta||^2 in Phi_tm.
        self.ridge = local.options.weight_decay
        self.is_exact = local_solver == "newton"
        if self.is_exact or record_improvement:
            asks = "local_solver=newton" if self.is_exact else "record_improvement=true"
            check_exact(model, self.ridge, f"algorithm.{asks}")
        if self.is_exact:
            self.local_options = ("weight_decay",)
        self.restarts, self.restart_rounds, self.warm_start = restarts, restart_rounds, warm_start
        self.reached: list[float] = []
        likelihood = ["nll"] * (n_components > 1)
        improvement = ["local_improvement"] * record_improvement
        self.columns = (*likelihood, "mixture_entropy", *improvement)
        self.n_components = n_components
        self.mixture_init: Literal["random", "uniform"] = mixture_init
        self.component_init = component_init
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

    def prepare(
        self, state: FedEMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FedEMState:
        """Return the beginning with the best training likelihood."""
        if self.restarts == 1:
            return state
        federation, is_rows = clients.federation, exchange.shared_is_rows
        active = ~federation.unseen
        rows = torch.from_numpy(np.flatnonzero(active[clients.ids]))
        training = Clients(federation, clients.shards, clients.rows[rows.numpy()])
        best, self.reached = state, []
        for trial in range(self.restarts):
            seed = draws.seed
            if trial:
                seed = int(stream(seed, "restart", trial).integers(1 << 62))
            first = trial_state = self.init(
                clients, exchange, Draws(seed, 0), state.components.dtype
            )
            for k in range(1, self.restart_rounds + 1):
                clients.agreed(heartbeat.raise_if_stop_requested)
                part = states.select(trial_state, rows, is_rows)
                moved = self.round(part, training, exchange.at(k, active), Draws(seed, k))
                trial_state = states.merge(trial_state, moved, rows, is_rows)
            last = self.log_likelihoods(states.select(trial_state, rows, is_rows), training)
            likelihood = float(training.total(last[:, None])[0])
            if not self.reached or likelihood > max(self.reached):
                best = trial_state if self.warm_start else first
            self.reached.append(likelihood)
        return best

    def remarks(self, state: FedEMState, clients: Clients, exchange: Exchange) -> list[str]:
        """Return what the beginnings reached that were tried, and a warning of a fixed point."""
        lines = [
            f"beginning {i} of {self.restarts}: training log-likelihood {reached:.8g} after "
            f"{self.restart_rounds} rounds"
            for i, reached in enumerate(self.reached, 1)
        ]
        models = state.components.view(-1, *state.components.shape[-2:])
        differ = bool((state.mixture != state.mixture[:, :1]).any()) or any(
            not torch.equal(each, client[0]) for client in models for each in client
        )
        if self.n_components > 1 and not clients.largest(torch.tensor([float(differ)])):
            lines.append(
                "warning: the components of each client are equal, and so are its mixture weights, "
                "so that only the noise of minibatches tells components apart, unless you set "
                "algorithm.mixture_init=random or, with model.weights, model.new_classifier=true"
            )
        return lines

    def log_likelihoods(self, state: FedEMState, clients: Clients) -> Tensor:
        """Return the training log-likelihood of each client, float64 (clients,)."""
        models = self.local.with_statistics(state.components, state.optimizer)
        return log_likelihoods(self.model, models, state.mixture, clients)

    def surrogate(
        self, components: Tensor, mixture: Tensor, clients: Clients
    ) -> tuple[PartialSurrogate, Tensor]:
        """Return g_t near (components, mixture), and pi that minimises it (Alg. 3, lines 4, 5)."""
        q = posterior(self.model, components, mixture, clients)  # eq. 8
        return PartialSurrogate(q), mixture_weights(q, clients, self.mixture_floor)  # eq. 9

    def black_box(self, clients: Clients) -> Solver | None:
        """Return the exact minimiser of Phi_tm for Algorithm 3, or None for local steps."""
        if not self.is_exact:
            return None
        return lambda start, surrogate: self.risks(surrogate, clients).minimisers(start)

    def risks(self, surrogate: PartialSurrogate, clients: Clients) -> WeightedRisks:
        """Return the Phi_tm; ``check_exact`` has accepted the model."""
        assert surrogate.weights is not None
        return WeightedRisks(cast(Linear, self.model), clients, surrogate.weights, self.ridge)

    def round(
        self, state: FedEMState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedEMState:
        models = self.local.with_statistics(state.components, state.optimizer)
        surrogate, mixture = self.surrogate(models, state.mixture, clients)
        components, optimizer = minimise_surrogates(  # eq. 10, inexactly, and Alg. 1, line 10
            state.components,
            state.optimizer,
            surrogate,
            self.local,
            clients,
            channel,
            draws,
            self.black_box(clients),
        )
        return FedEMState(components, mixture, optimizer)

    def measure(
        self, state: FedEMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """Return the mean entropy of the mixtures, and how good the local solver is here."""
        mean = clients.total(entropies(state.mixture)[:, None], clients.equal_weights)
        measures: dict[str, float | None] = {"mixture_entropy": float(mean[0])}
        if "local_improvement" in self.columns:
            surrogate, _ = self.surrogate(state.components, state.mixture, clients)
            start = state.components.expand(len(clients), *state.components.shape[-2:])
            solver, after = self.black_box(clients), Draws(draws.seed, draws.round + 1)
            if solver is None:
                moved, _ = self.local(
                    start, state.optimizer, clients, after, weights=surrogate.weights
                )
            else:
                moved = solver(start, surrogate)
            risks = self.risks(surrogate, clients)
            measures["local_improvement"] = local_improvement(risks, start, moved, clients)
        return measures

    def deploy(self, state: FedEMState, clients: Clients, draws: Draws) -> Predictor:
        """h_t = sum_m pi_tm h_m (eq. 5)."""
        return Predictor(
            self.local.with_statistics(state.components, state.optimizer), state.mixture
        )

    def adapt(
        self, state: FedEMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients fit their mixture weights, with the components fixed (section 3.2)."""
        components = exchange.mean(state.components)
        steps, floor = self.unseen_e_steps, self.mixture_floor
        return Predictor(components, fitted_mixture(self.model, components, clients, steps, floor))

    def payload(self) -> int:
        return self.n_components * self.model.n_parameters
