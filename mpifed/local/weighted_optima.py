"""Exact minimisers of weighted risks of linear models, for black-box local solvers.

Marfoq et al. 2021, eq. 359: client t minimises, for each component m,

    Phi_tm(theta) = (1 / n_t) sum_i q_i(m) l(theta; s_i) + (ridge / 2) ||theta||^2

with its responsibilities q fixed. Squared losses have a closed form (weighted least squares), which
is one step of Newton's method; logistic losses take a few. SGD with ``local.weight_decay`` descends
the same function with ``ridge`` equal to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpifed.errors import InputError
from mpifed.federation.clients import Clients
from mpifed.local.linear_objective import design
from mpifed.models.base import Model
from mpifed.models.likelihoods import sigmoid
from mpifed.models.linear import Linear
from mpifed.models.losses import CROSS_ENTROPY, HALF_SQUARED, SQUARED, Loss
from mpifed.supervision import heartbeat

if TYPE_CHECKING:
    from jaxtyping import Float

TOLERANCE = 1e-10
"""Norm of the gradient at which Newton's method stops."""

MOST_STEPS = 100
"""Largest number of its steps."""

SHORTEST = 2.0**-30
"""Least share of a Newton step that is tried."""


def check_exact(model: Model, ridge: float, field: str) -> None:
    """Refuse models whose weighted risks have no minimiser that is found here.

    Parameters
    ----------
    model : Model
        The model of all components.
    ridge : float
        Factor of (1 / 2) ||theta||^2.
    field : str
        What asks for the minimiser; the beginning of messages.

    Raises
    ------
    InputError
        Unless the model is linear with one output, and for logistic losses without a ridge, which
        have no minimiser where a line separates the labels.
    """
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
    """Phi_tm of one client t, as functions of its M components, in float64.

    Attributes
    ----------
    a : Tensor
        The design of its samples, (n_t, P).
    y : Tensor
        Their targets, (n_t,).
    shares : Tensor
        q / n_t, (M, n_t).
    loss : Loss
        l.
    ridge : float
        Factor of (1 / 2) ||theta||^2.
    """

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
    """Phi_tm of some clients and M components.

    Attributes
    ----------
    model : Linear
        One output; see ``check_exact``.
    clients : Clients
        The clients hosted here.
    weights : Tensor
        q, (M, hosted training samples).
    ridge : float
        Factor of (1 / 2) ||theta||^2.
    """

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
