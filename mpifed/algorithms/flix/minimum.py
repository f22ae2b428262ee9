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

from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients
from mpifed.local.linear_objective import hessian, smoothness
from mpifed.local.objective import Objective, Regulariser
from mpifed.models.base import Model
from mpifed.models.linear import Linear

NEWTON_UP_TO = 600
"""Parameters up to which Newton's method is preferred: its matrices are summed over clients."""


FLAT = 1e-12
"""Smallest over largest curvature up to which f~ counts as flat in some direction."""

ARRIVED = 1e-4
"""The last Newton step, over 1 + ||x||, up to which x counts as a minimiser. Where f~ only comes
near its infimum, steps go on and on."""


@dataclass(frozen=True)
class Risk:
    """f~ and its gradient at x (P,), float64; and T_i(x) of the hosted clients. Collective."""

    value: Callable[[Tensor], tuple[float, Tensor]]
    mixed: Callable[[Tensor], Tensor]
    alpha: Tensor
    like: Tensor


@dataclass(frozen=True)
class Minimum:
    """f~ at its least: ``x`` (P,), float64, ``value``, and whether x is its one minimiser.

    Where it is not, as for classes that can be told apart without error, there are several or
    none, and a distance from x says nothing; ``value`` is the infimum all the same.
    """

    x: Tensor
    value: float
    unique: bool


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
) -> Minimum | None:
    """The minimum of f~; None where nobody asks for it, or all alpha_i are 0. Collective.

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
) -> Minimum:
    """The minimum of f~, as exactly as float64 allows. Collective.

    ``newton`` is for linear models with one output.
    """
    one_output = isinstance(model, Linear) and model.n_outputs == 1
    small = one_output and model.n_parameters <= NEWTON_UP_TO
    if how == "newton" or (how == "auto" and small):
        assert isinstance(model, Linear) and one_output
        return _newton(risk, model, clients, regulariser)
    # Without Hessians only a strongly convex risk is known to have one minimiser.
    x, value = _lbfgs(risk, model.n_parameters)
    return Minimum(x, value, _strongly_convex(model, regulariser))


def _strongly_convex(model: Model, regulariser: Regulariser) -> bool:
    return isinstance(model, Linear) and regulariser.strong_convexity > 0


def _newton(risk: Risk, model: Linear, clients: Clients, regulariser: Regulariser) -> Minimum:
    x = torch.zeros(model.n_parameters, dtype=torch.float64)
    value, gradient = risk.value(x)
    for _ in range(100):
        step = _newton_step(_curvature(risk, x, model, clients, regulariser), gradient)
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
    if _strongly_convex(model, regulariser):
        return Minimum(x, value, True)
    curvature = _curvature(risk, x, model, clients, regulariser)
    eigenvalues = torch.linalg.eigvalsh(curvature)
    away = float(_newton_step(curvature, gradient).norm())
    curved = float(eigenvalues[0]) > FLAT * float(eigenvalues[-1])
    return Minimum(x, value, curved and away <= ARRIVED * (1 + float(x.norm())))


def _curvature(
    risk: Risk, x: Tensor, model: Linear, clients: Clients, regulariser: Regulariser
) -> Tensor:
    """The Hessian of f~ at x, (P, P); collective."""
    rows = [
        alpha.double() ** 2
        * hessian(model, clients.shards.train, int(row), point.double(), regulariser)
        for alpha, row, point in zip(risk.alpha, clients.rows, risk.mixed(x), strict=True)
    ]
    square = (len(x), len(x))
    stacked = torch.stack(rows) if rows else torch.zeros(0, *square, dtype=torch.float64)
    return total(clients, stacked) / len(clients.federation.training)


def _newton_step(curvature: Tensor, gradient: Tensor) -> Tensor:
    """The step of least norm: a Hessian may be singular."""
    return torch.linalg.lstsq(curvature, gradient[:, None], driver="gelsd").solution[:, 0]


def _lbfgs(risk: Risk, size: int) -> tuple[Tensor, float]:
    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        f, g = risk.value(torch.from_numpy(w))
        return f, g.numpy()

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0.0, "gtol": 1e-14, "maxcor": 30}
    found = scipy.optimize.minimize(
        value, np.zeros(size), jac=True, method="L-BFGS-B", options=options
    )
    return torch.from_numpy(found.x), float(found.fun)
