"""The FLIX objective (Gasanov et al. 2021, eq. 3): f~(x) = (1/n) sum_i f_i(T_i(x)).

T_i(x) = alpha_i x + (1 - alpha_i) x_i is what client i deploys; x_i is its own optimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients, Draws
from mpifed.local.linear_objective import Objectives
from mpifed.local.objective import Regulariser, sampled_gradients
from mpifed.local.partial_gradients import partial_gradients
from mpifed.local.sampling import batches
from mpifed.models.base import Model


@dataclass(frozen=True)
class FlixObjective:
    """f~ as clients compute it.

    ``coefficients`` is alpha, one number or one for each client of the federation. ``batch_size``
    samples are drawn for a gradient; None takes all of them.
    """

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
        """Whether all alpha_i are 0: x enters no T_i(x), so nobody need know it."""
        return not np.any(self.coefficients)

    def squares(self, clients: Clients) -> Tensor:
        """alpha_i^2, float64 (clients,)."""
        return torch.from_numpy(self.alpha(clients.ids) ** 2)

    def mixed(self, optima: Tensor, x: Tensor, clients: Clients) -> Tensor:
        """T_i(x), (clients, P); x is (P,) or (clients, P)."""
        alpha = self._column(optima, clients)
        return ((1 - alpha) * optima).add_(alpha * x)

    def losses(self, optima: Tensor, x: Tensor, clients: Clients) -> Tensor:
        """f_i(T_i(x)), float64 (clients,)."""
        return self.risks(clients).losses(self.mixed(optima, x, clients))

    def local_gradients(self, optima: Tensor, x: Tensor, clients: Clients, draws: Draws) -> Tensor:
        """grad f_i at T_i(x), (clients, P)."""
        points = self.mixed(optima, x, clients)
        if self.batch_size is None:
            return self.risks(clients).gradients(points)
        drawn = batches(clients, draws, "samples", self.batch_size)
        return sampled_gradients(self.model, clients, self.regulariser, points, drawn)

    def gradients(self, optima: Tensor, x: Tensor, clients: Clients, draws: Draws) -> Tensor:
        """alpha_i grad f_i(T_i(x)), (clients, P); the factor alpha_i is the chain rule's."""
        found = self.local_gradients(optima, x, clients, draws)
        return found.mul_(self._column(optima, clients))

    def partial_gradients(
        self, optima: Tensor, x: Tensor, clients: Clients, columns: np.ndarray
    ) -> Tensor | None:
        """Exact ``gradients`` in ``columns``, int64 (clients, k): (clients, k); None where one in
        another column may not be finite.
        """
        points = self.mixed(optima, x, clients)
        found = partial_gradients(self.risks(clients), points, columns)
        return None if found is None else found.mul_(self._column(optima, clients))

    def _column(self, like: Tensor, clients: Clients) -> Tensor | float:
        """alpha_i as a factor of rows; one number is quicker than a column of it."""
        if isinstance(self.coefficients, (int, float)):
            return float(self.coefficients)
        return torch.from_numpy(self.alpha(clients.ids)).to(like)[:, None]


def weighted_mean(rows: Tensor, mass: Tensor, clients: Clients) -> Tensor:
    """sum_i w_i rows_i with w_i proportional to ``mass``, zeros without any; collective."""
    whole = total(clients, torch.cat([rows.double() * mass[:, None], mass[:, None]], 1))
    found = whole[:-1] / whole[-1] if float(whole[-1]) > 0 else torch.zeros_like(whole[:-1])
    return found.to(rows)


def spread(optima: Tensor, mass: Tensor, clients: Clients) -> float:
    """V = sum_i w_i ||x_i - x_avg||^2 with w_i proportional to ``mass``; collective."""
    away = (optima - weighted_mean(optima, mass, clients)).double().square().sum(1)
    return float(weighted_mean(away[:, None], mass, clients)[0])
