"""The FLIX objective (Gasanov et al. 2021, eq. 3): f~(x) = (1/n) sum_i f_i(T_i(x)).

T_i(x) = alpha_i x + (1 - alpha_i) x_i is what client i deploys; x_i is its own optimum.

``partial_gradients`` computes some coordinates of every client's gradient, for compressors that
send only these. ``minimum`` is the point from which gaps are measured; every rank finds it in
lockstep, on exact sums over all clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import scipy.optimize
import torch
from annotated_types import Ge, Le
from torch import Tensor

from mpifed.errors import InputError
from mpifed.message import flat_positions, gathered
from mpifed.method import Clients, Draws
from mpifed.model import (
    Linear,
    Model,
    Objective,
    Objectives,
    Regulariser,
    SparseObjective,
    batches,
    hessian,
    sampled_gradients,
)

Fraction = Annotated[float, Ge(0), Le(1)]

# Parameters up to which Newton's method is preferred: its matrices are summed over clients.
NEWTON_UP_TO = 600

# Smallest over largest curvature up to which f~ counts as flat in some direction.
FLAT = 1e-12

# The last Newton step, over 1 + ||x||, up to which x counts as a minimiser. Where f~ has an infimum
# but no minimiser, the steps do not shrink.
ARRIVED = 1e-4


def partial_gradients(
    objective: Objective, parameters: Tensor, columns: np.ndarray
) -> Tensor | None:
    """Return some coordinates of the gradients of f_i at w_i."""
    if not isinstance(objective, SparseObjective) or objective.model.n_outputs > 1:
        gradients = objective.gradients(parameters)
        return gathered(gradients, columns) if math.isfinite(float(gradients.sum())) else None
    slopes = objective.shared_slopes(parameters)
    if not math.isfinite(float(slopes.sum())):
        return None
    # With one output the parameters have the order of the design's columns.
    at = flat_positions(columns, parameters.shape[1])
    back = torch.from_numpy(objective.backward[at.ravel()] @ slopes.numpy()).view(columns.shape)
    return back.add_(objective.regulariser.gradient(gathered(parameters, columns)))


@dataclass(frozen=True)
class Mixtures:
    """T_i(x) of the clients."""

    coefficients: float | list[float]

    def alpha(self, ids: np.ndarray) -> np.ndarray:
        """alpha_i of the clients ``ids``, float64 (len(ids),)."""
        alpha = np.asarray(self.coefficients, np.float64)
        return np.full(len(ids), float(alpha)) if alpha.ndim == 0 else alpha[ids]

    @property
    def is_local(self) -> bool:
        """Whether all alpha_i are 0: no T_i(x) depends on x, so nothing needs to be sent."""
        return not np.any(self.coefficients)

    def squares(self, clients: Clients) -> Tensor:
        """alpha_i^2, float64 (clients,)."""
        return torch.from_numpy(self.alpha(clients.ids) ** 2)

    def mixed(self, optima: Tensor, x: Tensor, clients: Clients) -> Tensor:
        """T_i(x), (clients, P)."""
        alpha = self._column(optima, clients)
        return ((1 - alpha) * optima).add_(alpha * x)

    def _column(self, like: Tensor, clients: Clients) -> Tensor | float:
        """alpha_i as a factor of rows; one number is quicker than a column of it."""
        if isinstance(self.coefficients, (int, float)):
            return float(self.coefficients)
        return torch.from_numpy(self.alpha(clients.ids)).to(like)[:, None]


def check_coefficients(coefficients: float | list[float], clients: int) -> None:
    """Refuse a list ``flix_alpha`` that has not one entry for each client."""
    if isinstance(coefficients, list) and len(coefficients) != clients:
        raise InputError(
            f"algorithm.flix_alpha has {len(coefficients)} entries, but there are {clients} "
            "clients; it must be one number, or one for each"
        )


@dataclass(frozen=True)
class FlixObjective(Mixtures):
    """f~ as the clients compute it."""

    model: Model
    regulariser: Regulariser
    risks: Objectives
    batch_size: int | None = None

    def losses(self, optima: Tensor, x: Tensor, clients: Clients) -> Tensor:
        """f_i(T_i(x)), float64 (clients,); for the parameters see ``mixed``."""
        return self.risks(clients).losses(self.mixed(optima, x, clients))

    def local_gradients(self, optima: Tensor, x: Tensor, clients: Clients, draws: Draws) -> Tensor:
        """grad f_i at T_i(x), without the factor alpha_i: (clients, P)."""
        points = self.mixed(optima, x, clients)
        if self.batch_size is None:
            return self.risks(clients).gradients(points)
        drawn = batches(clients, draws, "samples", self.batch_size)
        return sampled_gradients(self.model, clients, self.regulariser, points, drawn)

    def gradients(self, optima: Tensor, x: Tensor, clients: Clients, draws: Draws) -> Tensor:
        """alpha_i grad f_i(T_i(x)), (clients, P): the gradients of f_i(T_i(x)) in x."""
        gradients = self.local_gradients(optima, x, clients, draws)
        return gradients.mul_(self._column(optima, clients))

    def partial_gradients(
        self, optima: Tensor, x: Tensor, clients: Clients, columns: np.ndarray
    ) -> Tensor | None:
        """Some coordinates of the exact ``gradients``."""
        points = self.mixed(optima, x, clients)
        gradients = partial_gradients(self.risks(clients), points, columns)
        return None if gradients is None else gradients.mul_(self._column(optima, clients))


def as_linear(model: Model) -> Linear | None:
    """``model`` where it is linear, so that its smoothness and Hessians are known; else None."""
    return model if isinstance(model, Linear) else None


def weighted_mean(rows: Tensor, mass: Tensor, clients: Clients) -> Tensor:
    """sum_i w_i rows_i with w_i proportional to ``mass``; collective."""
    mass = mass.to(rows.device)
    sums = clients.total(torch.cat([rows.double() * mass[:, None], mass[:, None]], 1))
    mean = sums[:-1] / sums[-1] if float(sums[-1]) > 0 else torch.zeros_like(sums[:-1])
    return mean.to(rows)


def weighted_variance(rows: Tensor, mass: Tensor, clients: Clients) -> float:
    """sum_i w_i ||rows_i - mean||^2 with w_i proportional to ``mass``; collective. With the optima
    x_i for rows and L_i for mass it is the V of Theorem 1.
    """
    away = (rows - weighted_mean(rows, mass, clients)).double().square().sum(1)
    return float(weighted_mean(away[:, None], mass, clients)[0])


Method = Literal["auto", "newton", "lbfgs", "none"]


@dataclass(frozen=True)
class Minimum:
    """f~ at its least."""

    x: Tensor
    value: float
    unique: bool


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
        summed = self._clients.total(torch.cat([losses, gradients.double()], 1)) / self._n
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
        return self._clients.total(stacked) / self._n


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
    optimum = scipy.optimize.minimize(
        value, np.zeros(size), jac=True, method="L-BFGS-B", options=options
    )
    return torch.from_numpy(optimum.x), float(optimum.fun)
