"""The minimiser of the FLIX objective, from which gaps are measured: outside the federation.

Every rank runs the same solver in lockstep on exact sums over all clients, so the answer is the
same bit for bit on any number of ranks, and no rank holds more than its own shards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from mpifed.algorithms.flix.objective import FlixObjective, as_linear
from mpifed.algorithms.flix.options import MINIMISER, FlixState, Method
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients
from mpifed.local.linear_objective import hessian, smoothness
from mpifed.local.objective import Regulariser
from mpifed.models.base import Model
from mpifed.models.linear import Linear

# Parameters up to which Newton's method is preferred: its matrices are summed over clients.
NEWTON_UP_TO = 600

# Smallest over largest curvature up to which f~ counts as flat in some direction.
FLAT = 1e-12

# The last Newton step, over 1 + ||x||, up to which x counts as a minimiser. Where f~ has an infimum
# but no minimiser, the steps do not shrink.
ARRIVED = 1e-4


@dataclass(frozen=True)
class Minimum:
    """f~ at its least."""

    x: Tensor
    value: float
    unique: bool


def curvatures(
    model: Model, clients: Clients, regulariser: Regulariser, published_code: bool
) -> Tensor:
    """L_i, float64 (clients,); zeros where the smoothness of the model is not known."""
    if as_linear(model) is None:
        return torch.zeros(len(clients), dtype=torch.float64)
    found = smoothness(model, clients, regulariser)
    if published_code:
        lam = regulariser.smoothness
        found = found - lam + lam / (4 * torch.from_numpy(clients.n_train).double())
    return found


def minimum(
    objective: FlixObjective, optima: Tensor, clients: Clients, method: Method
) -> Minimum | None:
    """The minimum of f~, as exactly as float64 allows; collective."""
    linear = as_linear(objective.model)
    if method == "none" or (method == "auto" and linear is None):
        return None
    if not objective.alpha(clients.federation.training).any():
        return None
    risk = Risk(objective, optima, clients)
    strongly_convex = linear is not None and objective.regulariser.strong_convexity > 0
    one_output = linear is not None and linear.n_outputs == 1
    small = objective.model.n_parameters <= NEWTON_UP_TO
    if method == "newton" or (method == "auto" and one_output and small):
        assert linear is not None and one_output
        return _newton(risk, linear, strongly_convex)
    # Without Hessians only a strongly convex risk is known to have one minimiser.
    x, value = _lbfgs(risk, objective.model.n_parameters)
    return Minimum(x, value, strongly_convex)


def measured(
    objective: FlixObjective, state: FlixState, x: Tensor, clients: Clients
) -> dict[str, float | None]:
    """What FLIX adds to metrics.csv; collective."""
    n = len(clients.federation.training)
    losses = objective.losses(state.optima, x, clients)
    value = float(total(clients, losses[:, None])[0]) / n
    found: dict[str, float | None] = {"objective": value}
    if int(state.known):
        found["objective_gap"] = value - float(state.least)
    if int(state.known) == MINIMISER:
        away = float((x.double() - state.reference).square().sum())
        squares = float(total(clients, objective.squares(clients)[:, None])[0])
        found["deployed_distance"] = squares * away / n
    return found


class Risk:
    """f~ and its derivatives at x, float64 (P,), over all training clients; collective."""

    def __init__(self, objective: FlixObjective, optima: Tensor, clients: Clients) -> None:
        self._risks, self._regulariser = objective.risks(clients), objective.regulariser
        self._optima, self._clients = optima, clients
        self._alpha = torch.from_numpy(objective.alpha(clients.ids)).to(optima)[:, None]
        self._n = len(clients.federation.training)

    def _mixed(self, x: Tensor) -> Tensor:
        """T_i(x) as ``FlixObjective.mixed``, with alpha rounded to the type of the optima."""
        return self._alpha * x.to(self._optima) + (1 - self._alpha) * self._optima

    def __call__(self, x: Tensor) -> tuple[float, Tensor]:
        """f~(x) and its gradient, float64 (P,)."""
        points = self._mixed(x)
        losses = self._risks.losses(points).double()[:, None]
        gradients = self._alpha * self._risks.gradients(points)
        summed = total(self._clients, torch.cat([losses, gradients.double()], 1)) / self._n
        return float(summed[0]), summed[1:].cpu()

    def hessian(self, x: Tensor, model: Linear) -> Tensor:
        """The Hessian of f~ at x, float64 (P, P), of a linear model with one output."""
        train = self._clients.shards.train
        rows = [
            alpha.double() ** 2 * hessian(model, train, int(row), point, self._regulariser)
            for alpha, row, point in zip(
                self._alpha.cpu(), self._clients.rows, self._mixed(x), strict=True
            )
        ]
        square = (len(x), len(x))
        stacked = torch.stack(rows) if rows else torch.zeros(0, *square, dtype=torch.float64)
        return total(self._clients, stacked) / self._n


def _newton(risk: Risk, model: Linear, strongly_convex: bool) -> Minimum:
    x = torch.zeros(model.n_parameters, dtype=torch.float64)
    value, gradient = risk(x)
    for _ in range(100):
        step = _newton_step(risk.hessian(x, model), gradient)
        scale = 1.0
        while scale > 2.0**-30:
            moved = x - scale * step
            new_value, new_gradient = risk(moved)
            better = float(new_gradient.norm()) < float(gradient.norm())
            if new_value < value or (new_value == value and better):
                break
            scale /= 2
        else:
            break
        x, value, gradient = moved, new_value, new_gradient
    if strongly_convex:
        return Minimum(x, value, True)
    curvature = risk.hessian(x, model)
    eigenvalues = torch.linalg.eigvalsh(curvature)
    away = float(_newton_step(curvature, gradient).norm())
    curved = float(eigenvalues[0]) > FLAT * float(eigenvalues[-1])
    return Minimum(x, value, curved and away <= ARRIVED * (1 + float(x.norm())))


def _newton_step(curvature: Tensor, gradient: Tensor) -> Tensor:
    """The step of least norm: a Hessian may be singular."""
    return torch.linalg.lstsq(curvature, gradient[:, None], driver="gelsd").solution[:, 0]


def _lbfgs(risk: Callable[[Tensor], tuple[float, Tensor]], size: int) -> tuple[Tensor, float]:
    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        f, g = risk(torch.from_numpy(w))
        return f, g.numpy()

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0.0, "gtol": 1e-14, "maxcor": 30}
    found = scipy.optimize.minimize(
        value, np.zeros(size), jac=True, method="L-BFGS-B", options=options
    )
    return torch.from_numpy(found.x), float(found.fun)
