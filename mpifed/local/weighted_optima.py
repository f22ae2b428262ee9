"""Exact minimisers of weighted risks of linear models, for black-box local solvers.

Marfoq et al. 2021, eq. 359: client t minimises, for each component m,

    Phi_tm(theta) = (1 / n_t) sum_i q_i(m) l(theta; s_i) + (ridge / 2) ||theta||^2

with its responsibilities q fixed. Squared losses have a closed form (weighted least squares), which
is one step of Newton's method; logistic losses take a few. SGD with ``local.weight_decay`` descends
the same function with ``ridge`` equal to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpifed.errors import InputError
from mpifed.federation.clients import Clients
from mpifed.local.linear_objective import design
from mpifed.models.base import Model
from mpifed.models.likelihoods import sigmoid
from mpifed.models.linear import Linear
from mpifed.models.losses import CROSS_ENTROPY, HALF_SQUARED, SQUARED
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


class WeightedRisks:
    """Phi_tm of some clients and M components.

    Parameters
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

    def __init__(
        self,
        model: Linear,
        clients: Clients,
        weights: Float[Tensor, "components samples"],
        ridge: float,
    ) -> None:
        self.model, self.clients, self.weights, self.ridge = model, clients, weights, ridge

    def losses(
        self, parameters: Float[Tensor, "clients components size"]
    ) -> Float[Tensor, "clients components"]:
        """Return Phi_tm at ``parameters`` (clients, M, P), float64 (clients, M)."""
        found = torch.zeros(parameters.shape[:2], dtype=torch.float64)
        for i in range(len(self.clients)):
            found[i] = self._terms(i)(parameters[i].double().cpu())[0]
        return found

    def minimisers(
        self, start: Float[Tensor, "clients components size"]
    ) -> Float[Tensor, "clients components size"]:
        """Return argmin Phi_tm, (clients, M, P); the one closest to ``start`` if there are many."""
        found = start.clone()
        for i in range(len(self.clients)):
            heartbeat.step()
            found[i] = self._newton(i, start[i].double().cpu()).to(start)
        return found

    def _terms(self, i: int):  # type: ignore[no-untyped-def]
        """Phi, its gradient and its Hessian for client ``i``, as a function of (M, P)."""
        row = int(self.clients.rows[i])
        split = self.clients.shards.train
        part = split.rows_of(row)
        a = torch.from_numpy(design(self.model, split, row)).double()
        y = split.y[part].double().cpu().reshape(-1)
        shares = self.weights[:, part].double().cpu() / max(1, len(a))
        logistic, scale = self.model.loss is CROSS_ENTROPY, 1.0
        if self.model.loss is SQUARED:
            scale = 2.0

        def terms(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            z = theta @ a.T
            if logistic:
                p = sigmoid(z)
                values, slopes, second = torch.nn.functional.softplus(z) - y * z, p - y, p * (1 - p)
            else:
                values, slopes = scale / 2 * (z - y) ** 2, scale * (z - y)
                second = torch.full_like(z, scale)
            risk = (shares * values).sum(1) + self.ridge / 2 * theta.square().sum(1)
            gradient = (shares * slopes) @ a + self.ridge * theta
            curved = torch.stack([a.T @ (a * row[:, None]) for row in shares * second])
            curved.diagonal(dim1=1, dim2=2).add_(self.ridge)
            return risk, gradient, curved

        return terms

    def _newton(self, i: int, theta: Tensor) -> Tensor:
        """Newton's method for all components of a client, halving steps that increase Phi."""
        terms = self._terms(i)
        risk, gradient, curved = terms(theta)
        for _ in range(MOST_STEPS):
            open_ = gradient.norm(dim=1) > TOLERANCE
            if not open_.any():
                break
            step = self._direction(curved, gradient)
            scale = open_.double()[:, None]
            while True:
                there = theta - scale * step
                after = terms(there)
                worse = (after[0] > risk) & (scale[:, 0] > 0)
                if not worse.any():
                    break
                scale = torch.where(worse[:, None], scale / 2, scale)
                scale = torch.where(scale < SHORTEST, 0.0, scale)
            moved = (scale[:, 0] > 0) & (after[1].norm(dim=1) < gradient.norm(dim=1))
            theta, (risk, gradient, curved) = there, after
            if not moved.any():
                break  # the limit of rounding
        return theta

    def _direction(self, curved: Tensor, gradient: Tensor) -> Tensor:
        if self.ridge:
            return torch.linalg.solve(curved, gradient[..., None])[..., 0]
        # Fewer samples than inputs: the least-norm step ends in the minimiser closest to the start.
        found = torch.linalg.lstsq(curved, gradient[..., None], driver="gelsd").solution
        return found[..., 0]
