"""The minimiser of the FLIX objective, from which gaps are measured: outside the federation.

Every rank runs the same solver in lockstep on exact sums over all clients, so the answer is the
same bit for bit on any number of ranks, and nobody holds more than its own shards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from mpifed.algorithms.flix_objective import FlixObjective
from mpifed.exchange.measuring import total
from mpifed.federation import Clients
from mpifed.local.linear_objective import hessian, smoothness
from mpifed.local.objective import Objective, Regulariser
from mpifed.models.base import Model
from mpifed.models.linear import Linear

NEWTON_UP_TO = 600
"""Parameters up to which Newton's method is preferred: its matrices are summed over clients."""


@dataclass(frozen=True)
class Risk:
    """f~ and its gradient at x (P,), float64; and T_i(x) of the hosted clients. Collective."""

    value: Callable[[Tensor], tuple[float, Tensor]]
    mixed: Callable[[Tensor], Tensor]
    alpha: Tensor
    like: Tensor


def curvatures(
    model: Model, clients: Clients, regulariser: Regulariser, published_code: bool
) -> Tensor:
    """L_i; ``published_code`` divides lambda by 4 m_i (it stands inside its eigenvalue)."""
    found = smoothness(model, clients, regulariser)
    if published_code:
        lam = regulariser.smoothness
        found = found - lam + lam / (4 * torch.from_numpy(clients.n_train).double())
    return found


def flix_risk(objective: Objective, optima: Tensor, alpha: np.ndarray, clients: Clients) -> Risk:
    """f~(x) = (1/n) sum_i f_i(alpha_i x + (1 - alpha_i) x_i) over all training clients."""
    n = len(clients.federation.training)
    a = torch.from_numpy(alpha).to(optima)[:, None]

    def mixed(x: Tensor) -> Tensor:
        return a * x.to(optima) + (1 - a) * optima

    def value(x: Tensor) -> tuple[float, Tensor]:
        points = mixed(x)
        losses = objective.losses(points).double()[:, None]
        gradients = a * objective.gradients(points)
        summed = total(clients, torch.cat([losses, gradients.double()], 1)) / n
        return float(summed[0]), summed[1:]

    return Risk(value, mixed, a, optima)


def minimum(
    objective: FlixObjective,
    optima: Tensor,
    clients: Clients,
    how: Literal["auto", "newton", "lbfgs", "none"],
) -> tuple[Tensor, float] | None:
    """argmin f~ (P,) and min f~; None where nobody asks for it, or all alpha_i are 0. Collective.

    ``how: auto`` asks for that of linear models.
    """
    model = objective.model
    if how == "none" or (how == "auto" and not isinstance(model, Linear)):
        return None
    if not objective.alpha(clients.federation.training).any():
        return None
    risk = flix_risk(objective.risks(clients), optima, objective.alpha(clients.ids), clients)
    return minimise(risk, model, clients, objective.regulariser, how)


def minimise(
    risk: Risk,
    model: Model,
    clients: Clients,
    regulariser: Regulariser,
    how: Literal["auto", "newton", "lbfgs"],
) -> tuple[Tensor, float]:
    """argmin f~ (P,) and min f~, as exactly as float64 allows. Collective.

    ``newton`` is for linear models with one output.
    """
    one_output = isinstance(model, Linear) and model.n_outputs == 1
    small = one_output and model.n_parameters <= NEWTON_UP_TO
    if how == "newton" or (how == "auto" and small):
        assert isinstance(model, Linear) and one_output
        return _newton(risk, model, clients, regulariser)
    return _lbfgs(risk, model.n_parameters)


def _newton(
    risk: Risk, model: Linear, clients: Clients, regulariser: Regulariser
) -> tuple[Tensor, float]:
    n, split = len(clients.federation.training), clients.shards.train
    x = torch.zeros(model.n_parameters, dtype=torch.float64)
    value, gradient = risk.value(x)
    for _ in range(100):
        points = risk.mixed(x)
        rows = [
            alpha.double() ** 2 * hessian(model, split, int(row), point.double(), regulariser)
            for alpha, row, point in zip(risk.alpha, clients.rows, points, strict=True)
        ]
        square = (len(x), len(x))
        stacked = torch.stack(rows) if rows else torch.zeros(0, *square, dtype=torch.float64)
        curvature = total(clients, stacked) / n
        step = torch.linalg.lstsq(curvature, gradient[:, None], driver="gelsd").solution[:, 0]
        scale = 1.0
        while scale > 2.0**-30:
            moved = x - scale * step
            new_value, new_gradient = risk.value(moved)
            better = float(new_gradient.norm()) < float(gradient.norm())
            if new_value < value or (new_value == value and better):
                break
            scale /= 2
        else:
            break
        x, value, gradient = moved, new_value, new_gradient
    return x, value


def _lbfgs(risk: Risk, size: int) -> tuple[Tensor, float]:
    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        f, g = risk.value(torch.from_numpy(w))
        return f, g.numpy()

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0.0, "gtol": 1e-14, "maxcor": 30}
    found = scipy.optimize.minimize(
        value, np.zeros(size), jac=True, method="L-BFGS-B", options=options
    )
    return torch.from_numpy(found.x), float(found.fun)
