"""The FLIX objective (Gasanov et al. 2021, eq. 3): f~(x) = (1/n) sum_i f_i(T_i(x)).

T_i(x) = alpha_i x + (1 - alpha_i) x_i is what client i deploys; x_i is its own optimum.

Some coordinates of every client's gradient, for compressors that send only these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.measuring import total
from mpifed.exchange.reduction import gathered, places
from mpifed.federation.clients import Clients, Draws
from mpifed.local.linear_objective import Objectives, SparseObjective
from mpifed.local.minibatches import batches
from mpifed.local.objective import Objective, Regulariser, sampled_gradients
from mpifed.models.base import Model
from mpifed.models.linear import Linear


def partial_gradients(
    objective: Objective, parameters: Tensor, columns: np.ndarray
) -> Tensor | None:
    """Return some coordinates of the gradients of f_i at w_i."""
    if not isinstance(objective, SparseObjective) or objective.model.n_outputs > 1:
        whole = objective.gradients(parameters)
        return gathered(whole, columns) if math.isfinite(float(whole.sum())) else None
    slopes = objective.shared_slopes(parameters)
    if not math.isfinite(float(slopes.sum())):
        return None
    # With one output the parameters have the order of the design's columns.
    at = places(columns, parameters.shape[1])
    back = torch.from_numpy(objective.backward[at.ravel()] @ slopes.numpy()).view(columns.shape)
    return back.add_(objective.regulariser.gradient(gathered(parameters, columns)))


@dataclass(frozen=True)
class FlixObjective:
    """f~ as the clients compute it."""

    model: Model
    regulariser: Regulariser
    coefficients: float | list[float]
    risks: Objectives
    batch_size: int | None = None

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
        found = self.local_gradients(optima, x, clients, draws)
        return found.mul_(self._column(optima, clients))

    def partial_gradients(
        self, optima: Tensor, x: Tensor, clients: Clients, columns: np.ndarray
    ) -> Tensor | None:
        """Some coordinates of the exact ``gradients``."""
        points = self.mixed(optima, x, clients)
        found = partial_gradients(self.risks(clients), points, columns)
        return None if found is None else found.mul_(self._column(optima, clients))

    def _column(self, like: Tensor, clients: Clients) -> Tensor | float:
        """alpha_i as a factor of rows; one number is quicker than a column of it."""
        if isinstance(self.coefficients, (int, float)):
            return float(self.coefficients)
        return torch.from_numpy(self.alpha(clients.ids)).to(like)[:, None]


def as_linear(model: Model) -> Linear | None:
    """``model`` where it is linear, so that its smoothness and Hessians are known; else None."""
    return model if isinstance(model, Linear) else None


def weighted_mean(rows: Tensor, mass: Tensor, clients: Clients) -> Tensor:
    """sum_i w_i rows_i with w_i proportional to ``mass``; collective."""
    mass = mass.to(rows.device)
    whole = total(clients, torch.cat([rows.double() * mass[:, None], mass[:, None]], 1))
    found = whole[:-1] / whole[-1] if float(whole[-1]) > 0 else torch.zeros_like(whole[:-1])
    return found.to(rows)


def weighted_variance(rows: Tensor, mass: Tensor, clients: Clients) -> float:
    """sum_i w_i ||rows_i - mean||^2 with w_i proportional to ``mass``; collective. With the optima
    x_i for rows and L_i for mass it is the V of Theorem 1.
    """
    away = (rows - weighted_mean(rows, mass, clients)).double().square().sum(1)
    return float(weighted_mean(away[:, None], mass, clients)[0])
