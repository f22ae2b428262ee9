"""FedMM-OT: federated optimal transport maps (Dieuleveut et al. 2025, Algorithm 3).

Clients hold parts of the source P; the target Q is public. Each client improves the potential
f_omega by one gradient step, and the results are aggregated with control variates as in FedMM. The
server alone improves the conjugate f_theta, on samples of Q. The gradient of f_omega is the map
from P to Q. A ``server_optimizer`` moves omega along the clients' mean move; the paper's adds it.

The baseline of the paper's section 7.2 is FedAdam: a client makes one gradient step on potential
and conjugate together, and the server applies Adam to the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from mpifed import state
from mpifed.algorithms.fedmm.fedmm import StepRule, gamma_of
from mpifed.algorithms.fedmm.transport import (
    SCORED,
    Cycle,
    FlatAdam,
    FlatAdamState,
    JointObjective,
    ThetaObjective,
    TransportObjective,
    conjugate_steps,
    cosine,
    identity_potential,
    l2_uvp,
    linear_maps,
    source_gradient,
    source_gradients,
    target_gradient,
    target_gradients,
)
from mpifed.message import Adam, Moments
from mpifed.method import (
    Algorithm,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Only,
    OptimizerState,
    Predictor,
    Requirement,
    ServerChannel,
)
from mpifed.model import DenseICNN, batches
from mpifed.surrogate import Benchmark, check_targets


@dataclass(frozen=True)
class FedMMOTState:
    """Potential, conjugate and control variates; P parameters of a network."""

    omega: Tensor = state.shared()
    theta: Tensor = state.server()
    optimizer: FlatAdamState = state.server()
    variates: Tensor = state.client()
    variate: Tensor = state.server()


class FedMMOT(Algorithm[ServerChannel]):
    """FedMM-OT: an optimal transport map from potentials that clients improve together.

    Parameters
    ----------
    step_rule : {'constant', 'sqrt', 'inverse', 'inverse_kept'}
        gamma_t of round t, from 1, with beta = ``step``: beta, beta / sqrt(beta + t), 1 / t or
        1 / (t + 1). It is the share of the clients' mean move that omega makes; the control
        variates move by alpha of it alone.
    step : float
        The beta of ``step_rule``.
    control_variate_rate : float
        Rate alpha of the control variates; 0 has none.
    conjugate_steps : int
        The server's Adam steps on theta in a round.
    conjugate_lr : float
        Step size of these.
    theta_objective : {'mmv2', 'w2gn'}
        What theta minimises: the conjugate's objective with the cycle term (MMv2), or the cycle
        term alone (W2GN); see ``mpifed/algorithms/fedmm/transport.py``.
    lambda_cycle : float
        Weight of the cycle terms ||grad f_omega(grad f_theta(y)) - y||^2.
    cycle : {'fwd', 'both'}
        Whether the cycle from P and back counts too.
    pretraining : int
        Most iterations that bring both networks near the identity map before round 1.
    """

    requires = (
        Requirement(
            {
                "data": "transport",
                "model": "icnn",
                "local": Only("lr", "batch_size", "steps"),
                "participation.late": "miss",
            },
            "which reads lr, batch_size and steps of local",
        ),
    )
    aggregates = "mean_and_sums"
    tasks = ("unlabelled",)
    compressors = "unbiased"
    columns = ("l2_uvp", "cosine")

    def __init__(
        self,
        model: DenseICNN,
        local: LocalSolver,
        *,
        step_rule: StepRule = "constant",
        step: Annotated[float, Gt(0), Le(1)] = 1.0,
        control_variate_rate: Annotated[float, Ge(0), Le(1)] = 0.0,
        conjugate_steps: Annotated[int, Ge(1)] = 10,
        conjugate_lr: Annotated[float, Gt(0)] = 1e-3,
        theta_objective: ThetaObjective = "mmv2",
        lambda_cycle: Annotated[float, Ge(0)] = 1.0,
        cycle: Cycle = "fwd",
        pretraining: Annotated[int, Ge(0)] = 5000,
    ) -> None:
        self.model, self.options = model, local.options
        check_targets(self.options.batch_size, model.dimension)
        self.step_rule, self.step, self.rate = step_rule, step, control_variate_rate
        self.conjugate_steps, self.adam = conjugate_steps, FlatAdam(conjugate_lr)
        self.objective = TransportObjective(model, theta_objective, lambda_cycle, cycle)
        self.pretraining = pretraining
        self.benchmark: Benchmark = model.problem

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedMMOTState:
        zero = torch.zeros(self.model.n_parameters, dtype=dtype, device=clients.device)
        return FedMMOTState(
            zero, zero, self.adam.init(zero), zero.repeat(len(clients), 1), zero.clone()
        )

    def prepare(
        self, state: FedMMOTState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FedMMOTState:
        """Bring both networks near the identity map; collective."""
        omega = first_potential(self.model, clients, draws, state.omega.dtype, self.pretraining)
        return replace(state, omega=omega, theta=omega)

    def round(
        self, state: FedMMOTState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedMMOTState:
        channel.broadcast(torch.cat([state.omega, state.theta]))
        moved = self.local_steps(state, clients, draws)
        arrived = channel.send(moved - state.omega - state.variates)
        p = clients.federation.inclusion
        summed = channel.sum(arrived, clients.sampled_weights).to(state.omega)
        direction = state.variate + summed
        gamma = gamma_of(self.step_rule, self.step, draws.round)
        omega = self.model.convexify(state.omega + channel.along(gamma * direction))
        conjugated = channel.at_server(lambda: self.conjugate(omega, state, draws))
        theta, first, second = (conjugated[i].to(omega.device) for i in (0, 2, 3))
        return FedMMOTState(
            omega,
            theta,
            FlatAdamState(conjugated[1], first, second),
            state.variates + self.rate / p * arrived,
            state.variate + self.rate * summed,
        )

    def idle(
        self, state: FedMMOTState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedMMOTState:
        """Move along V also where no message arrives."""
        return self.round(state, clients, channel, draws)

    def local_steps(self, state: FedMMOTState, clients: Clients, draws: Draws) -> Tensor:
        """Return omega_i after gradient steps from omega_t on W_i(., theta_t), (clients, P)."""
        rows = state.omega.repeat(len(clients), 1)
        size = self.options.batch_size
        for step in range(self.options.steps or 1):
            y = self.benchmark.sample_target(
                draws.stream(f"target {step}"), size, state.omega.dtype
            ).to(state.omega.device)
            batches = batches_of(clients, draws, f"samples {step}", size)
            # All clients have one batch of Q: its part is computed once while they share omega.
            shared = None
            if step == 0 and len(clients):
                shared = target_gradient(self.objective, state.omega, state.theta, y)
            for row, x in zip(rows, batches, strict=True):
                gradient = source_gradient(self.objective, row, state.theta, x)
                gradient += (
                    target_gradient(self.objective, row, state.theta, y)
                    if shared is None
                    else shared
                )
                row -= self.options.lr * gradient
        return rows

    def conjugate(self, omega: Tensor, state: FedMMOTState, draws: Draws) -> list[Tensor]:
        """Return theta and Adam's state after the server's steps (Algorithm 3, line 16)."""
        count, size = self.conjugate_steps, self.options.batch_size
        generator = draws.stream("conjugate")
        targets = (
            self.benchmark.sample_target(generator, size, omega.dtype).to(omega.device)
            for _ in range(count)
        )
        theta, adam_state = conjugate_steps(
            self.objective, omega, state.theta, self.adam, state.optimizer, targets
        )
        return [theta, adam_state.step, adam_state.first, adam_state.second]

    def remarks(self, state: FedMMOTState, clients: Clients, exchange: Exchange) -> list[str]:
        return map_lines(self.benchmark)

    def deploy(self, state: FedMMOTState, clients: Clients, draws: Draws) -> Predictor:
        """Nothing is predicted: the gradient of f_omega maps samples."""
        return Predictor(None)

    def learnt(self, state: FedMMOTState, exchange: Exchange) -> dict[str, Tensor]:
        """``potential`` omega and ``conjugate`` theta, parameters of the networks, (P,) each."""
        return {"potential": state.omega, "conjugate": state.theta}

    def measure(
        self, state: FedMMOTState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        return map_scores(self.model, self.benchmark, state.omega, clients, draws)

    def payload(self) -> int:
        return self.model.n_parameters


@dataclass(frozen=True)
class FedAdamOTState:
    """Potential and conjugate in one row, the clients' optimizers, and the moments of Adam."""

    model: Tensor = state.shared()  # [omega, theta], (1, 2 P)
    optimizer: OptimizerState = state.client()
    moments: Moments = state.inline()


class FedAdamOT(Algorithm[ServerChannel]):
    """FedAdam on the transport benchmark: potential and conjugate are one model, [omega, theta].

    Its options are those of ``FedAdam``, of which it does not read ``client_weights``: clients
    count alike.
    """

    compressors = "unbiased"
    columns = ("l2_uvp", "cosine")
    tasks = ("unlabelled",)
    step_option = "algorithm.server_lr"

    def __init__(
        self,
        model: DenseICNN,
        local: LocalSolver,
        *,
        server_lr: float = 0.1,
        client_weights: str = "samples",
        theta_objective: JointObjective = "w2gn",
        lambda_cycle: float = 1.0,
        cycle: Cycle = "fwd",
        pretraining: int = 5000,
        **moments: Any,
    ) -> None:
        self.model, self.local, self.pretraining = model, local, pretraining
        self.adam = Adam(lr=server_lr, **moments)
        check_targets(local.options.batch_size, model.dimension)
        self.objective = TransportObjective(model, theta_objective, lambda_cycle, cycle)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedAdamOTState:
        model = torch.zeros(1, self.payload(), dtype=dtype, device=clients.device)
        optimizer = self.local.init(len(clients), 1, dtype)
        return FedAdamOTState(model, optimizer, self.adam.init(model))

    def prepare(
        self, state: FedAdamOTState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FedAdamOTState:
        """Bring both networks near the identity map; collective."""
        icnn, dtype = self.objective.model, state.model.dtype
        omega = first_potential(icnn, clients, draws, dtype, self.pretraining)
        return replace(state, model=torch.cat([omega, omega])[None])

    def round(
        self, state: FedAdamOTState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedAdamOTState:
        channel.broadcast(state.model)
        arrived = channel.send(self.updates(state.model, clients, draws))
        ones, everyone = torch.ones(len(clients), dtype=torch.float64), clients.federation.training
        mean = channel.mean(arrived, ones, len(everyone)).to(state.model)
        step, moments = self.adam.step(mean, state.moments)
        rows = [self.model.convexify(row) for row in (state.model + step).view(2, -1)]
        return replace(state, model=torch.cat(rows)[None], moments=moments)

    def updates(self, model: Tensor, clients: Clients, draws: Draws) -> Tensor:
        """Return a negative gradient of each client on a batch of samples, (clients, 1, 2 P)."""
        omega, theta = model.view(2, -1)
        size, benchmark = self.local.options.batch_size, self.objective.model.problem
        y = benchmark.sample_target(draws.stream("target 0"), size, omega.dtype).to(omega.device)
        if not len(clients):
            return model.new_zeros(0, *model.shape)
        target = torch.cat(target_gradients(self.objective, omega, theta, y))
        rows = [
            torch.cat(source_gradients(self.objective, omega, theta, x)) + target
            for x in batches_of(clients, draws, "samples 0", size)
        ]
        return -torch.stack(rows)[:, None]

    def remarks(self, state: FedAdamOTState, clients: Clients, exchange: Exchange) -> list[str]:
        return map_lines(self.objective.model.problem)

    def deploy(self, state: FedAdamOTState, clients: Clients, draws: Draws) -> Predictor:
        """Nothing is predicted: the gradient of f_omega maps samples."""
        return Predictor(None)

    def adapt(
        self, state: FedAdamOTState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        return Predictor(None)

    def learnt(self, state: FedAdamOTState, exchange: Exchange) -> dict[str, Tensor]:
        """``potential`` omega and ``conjugate`` theta, parameters of the networks, (P,) each."""
        omega, theta = state.model.view(2, -1)
        return {"potential": omega, "conjugate": theta}

    def measure(
        self, state: FedAdamOTState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        icnn, omega = self.objective.model, state.model.view(2, -1)[0]
        return map_scores(icnn, icnn.problem, omega, clients, draws)

    def payload(self) -> int:
        return 2 * self.model.n_parameters


def first_potential(
    model: DenseICNN, clients: Clients, draws: Draws, dtype: torch.dtype, iterations: int
) -> Tensor:
    """Compute parameters near the identity map at the server; collective."""
    generator = draws.stream("potential")
    potential = clients.computed_once(
        lambda: identity_potential(model, generator, dtype, iterations=iterations)
    )
    return potential.to(clients.device)


def batches_of(clients: Clients, draws: Draws, purpose: str, size: int) -> list[Tensor]:
    """Draw a batch of each client's training samples without replacement, (size,
    dimension) each.
    """
    x = clients.shards.train.x
    return [x[torch.from_numpy(rows)] for rows in batches(clients, draws, purpose, size)]


def map_lines(benchmark: Benchmark) -> list[str]:
    """Return a line for the log on the affine maps, from the same samples in all runs."""
    x = benchmark.sample_source(Draws(0, 0).stream("score"), SCORED, torch.float64)
    scores = (f"{name} {score:.1f}" for name, score in linear_maps(benchmark, x).items())
    return [f"l2_uvp of affine maps: {', '.join(scores)}"]


def map_scores(
    model: DenseICNN, benchmark: Benchmark, omega: Tensor, clients: Clients, draws: Draws
) -> dict[str, float | None]:
    """Return L2-UVP in per cent and cosine of the map grad f_omega, where metrics are recorded."""

    def scores() -> dict[str, float | None]:
        # The same points in every evaluation, so that a curve shows the map alone.
        points = Draws(draws.seed, 0).stream("score")
        x = benchmark.sample_source(points, SCORED, omega.dtype)
        mapped = model.push(omega, x.to(omega.device)).cpu()
        return {"l2_uvp": l2_uvp(mapped, benchmark, x), "cosine": cosine(mapped, benchmark, x)}

    return clients.where_recorded(scores)
