"""Black-box local solvers of the M-step, and how good one is (Marfoq et al. 2021, App. H).

Assumption 9 asks of a local solver that for some alpha < 1, all clients t and components m

    Phi_tm(theta_tm) - Phi_tm* <= alpha (Phi_tm(theta_m) - Phi_tm*)

where it starts at theta_m and ends at theta_tm, and Phi_tm is the risk weighted by q.

Federated surrogate optimisation (Marfoq et al. 2021, section 3.4, Algorithms 3 and 5).

Exact minimisers of weighted risks of linear models, for black-box local solvers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from mpifed.exchange.base import Channel
from mpifed.federation.clients import Clients, Draws
from mpifed.local.adjustments import Adjustment
from mpifed.local.solver import LocalSGD, OptimizerState

if TYPE_CHECKING:
    from jaxtyping import Float
from typing import cast

import torch

from mpifed.errors import InputError
from mpifed.exchange.measuring import largest
from mpifed.local.linear_objective import design
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.models.losses import CROSS_ENTROPY, HALF_SQUARED, SQUARED, Loss, sigmoid
from mpifed.watchdog import heartbeat


@dataclass(frozen=True)
class PartialSurrogate:
    """What a local solver needs of g_t(., v_t): its gradient on a minibatch I at u is"""

    weights: Float[Tensor, "components samples"] | None = None
    adjustments: Sequence[Adjustment] = ()


# A black box: from (clients, M, P) and the surrogates to their (inexact) minimisers.
Solver = Callable[[Tensor, PartialSurrogate], Tensor]


def minimise_surrogates(
    shared: Tensor,
    optimizer: OptimizerState,
    surrogate: PartialSurrogate,
    local: LocalSGD,
    clients: Clients,
    channel: Channel,
    draws: Draws,
    step_scale: np.ndarray | None = None,
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
            weights=surrogate.weights,
            step_scale=step_scale,
            adjustments=surrogate.adjustments,
        )
    else:
        moved = solver(start, surrogate)
    return channel.average(moved, clients.weights, before=shared), optimizer


# Norm of the gradient at which Newton's method stops.
TOLERANCE = 1e-10

# Largest number of its steps.
MOST_STEPS = 100

# Least share of a Newton step that is tried.
SHORTEST = 2.0**-30


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
        found = torch.linalg.lstsq(curved, gradient[..., None], driver="gelsd").solution
        return found[..., 0]


@dataclass(frozen=True)
class WeightedRisks:
    """Phi_tm of some clients and M components."""

    model: Linear
    clients: Clients
    weights: Float[Tensor, "components samples"]
    ridge: float

    def losses(
        self, parameters: Float[Tensor, "clients components size"]
    ) -> Float[Tensor, "clients components"]:
        """Return Phi_tm at ``parameters`` (clients, M, P), float64 (clients, M)."""
        found = torch.zeros(parameters.shape[:2], dtype=torch.float64)
        for i in range(len(self.clients)):
            found[i] = self.of_client(i).values(parameters[i].double().cpu())
        return found

    def minimisers(
        self, start: Float[Tensor, "clients components size"]
    ) -> Float[Tensor, "clients components size"]:
        """Return argmin Phi_tm, (clients, M, P); the one closest to ``start`` if there are many."""
        found = start.clone()
        for i in range(len(self.clients)):
            heartbeat.step()
            found[i] = self.of_client(i).minimiser(start[i].double().cpu()).to(start)
        return found

    def of_client(self, i: int) -> OwnRisks:
        """Return the risks of the i-th client."""
        row, split = int(self.clients.rows[i]), self.clients.shards.train
        part = split.rows_of(row)
        a = torch.from_numpy(design(self.model, split, row)).double()
        y = split.y[part].double().cpu().reshape(-1)
        shares = self.weights[:, part].double().cpu() / max(1, len(a))
        return OwnRisks(a, y, shares, self.model.loss, self.ridge)


# Share of Phi below which a gap to Phi* counts as closed: rounding would decide the ratio.
SMALLEST_GAP = 1e-9


def weighted_risks(
    model: Model, clients: Clients, surrogate: PartialSurrogate, ridge: float
) -> WeightedRisks:
    """Return Phi_tm of the clients; ``check_exact`` has accepted the model."""
    assert surrogate.weights is not None
    return WeightedRisks(cast(Linear, model), clients, surrogate.weights, ridge)


def local_improvement(
    risks: WeightedRisks, start: Tensor, found: Tensor, clients: Clients
) -> float:
    """Return the largest alpha of Assumption 9 over all clients and components. Collective."""
    best = risks.losses(risks.minimisers(start))
    before, after = risks.losses(start) - best, risks.losses(found) - best
    counts = before > SMALLEST_GAP * best.abs().clamp(min=SMALLEST_GAP)
    ratios = (after.clamp(min=0) / before).where(counts, before.new_zeros(()))
    return largest(clients, ratios.flatten())


@dataclass(frozen=True)
class MStep:
    """The M-step of the components: local steps, or exact minimisers."""

    model: Model
    local: LocalSGD
    is_exact: bool
    is_recorded: bool

    def __post_init__(self) -> None:
        if self.is_exact or self.is_recorded:
            asks = "local_solver=newton" if self.is_exact else "record_improvement=true"
            check_exact(self.model, self.ridge, f"algorithm.{asks}")

    @property
    def ridge(self) -> float:
        """Factor of (1 / 2) ||theta||^2 in Phi_tm."""
        return self.local.options.weight_decay

    def black_box(self, clients: Clients) -> Solver | None:
        """Return the exact minimiser of Phi_tm for Algorithm 3, or None for local steps."""

        def newton(start: Tensor, surrogate: PartialSurrogate) -> Tensor:
            return weighted_risks(self.model, clients, surrogate, self.ridge).minimisers(start)

        return newton if self.is_exact else None

    def improvement(
        self,
        components: Tensor,
        optimizer: OptimizerState,
        surrogate: PartialSurrogate,
        clients: Clients,
        draws: Draws,
    ) -> float:
        """Return alpha of the M-step from ``components``, which is not kept. Collective."""
        start = components.expand(len(clients), *components.shape[-2:])
        solver = self.black_box(clients)
        if solver is None:
            found, _ = self.local(start, optimizer, clients, draws, surrogate.weights)
        else:
            found = solver(start, surrogate)
        risks = weighted_risks(self.model, clients, surrogate, self.ridge)
        return local_improvement(risks, start, found, clients)
