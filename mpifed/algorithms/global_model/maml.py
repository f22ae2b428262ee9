"""MAML and Reptile (Finn et al. 2017, Nichol et al. 2018): a model that a few local steps adapt.

With y_i(x) the point that client i reaches from x by k gradient steps,

    MAML      x <- x - eta (1/n) sum_i (d y_i / d x)' grad f_i(y_i(x))      (Finn et al. 2017)
    FOMAML    x <- x - eta (1/n) sum_i grad f_i(y_i(x))                     (its first-order part)
    Reptile   x <- x + eta (1/n) sum_i (y_i(x) - x)                         (Nichol et al. 2018)

These are the baselines of Gasanov et al. 2021, section 6.3. (Fo)MAML steps on the first part of a
client's training samples, the support, and takes the outer gradient on the rest, the query; Reptile
steps on all of them. A client deploys y_i(x), with steps on all its training samples.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from mpifed import state
from mpifed.dataset import Split, check_memory
from mpifed.method import (
    Algorithm,
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Predictor,
    Requirement,
)
from mpifed.model import Linear, Model, Objective, Objectives, Regulariser, starting_point


def support(split: Split, fraction: float) -> Split:
    """Return the first ``fraction`` of every client's samples, rounded down, at least one."""
    return _part(split, np.zeros_like(split.counts), _sizes(split.counts, fraction))


def query(split: Split, fraction: float) -> Split:
    """Return the samples that ``support`` leaves; all samples of a client where it leaves none."""
    sizes = _sizes(split.counts, fraction)
    return _part(split, np.where(sizes < split.counts, sizes, 0), split.counts)


def _sizes(counts: np.ndarray, fraction: float) -> np.ndarray:
    """Samples in the support of each client, int64."""
    if fraction == 1:
        return counts
    # fraction * count may round to just below an integer that is meant.
    sizes = np.floor(fraction * counts + 1e-9).astype(np.int64)
    return np.minimum(np.maximum(np.clip(sizes, None, counts - 1), 1), counts)


def _part(split: Split, first: np.ndarray, end: np.ndarray) -> Split:
    """The samples ``first`` to ``end`` of every client, counted from its first one."""
    if not first.any() and (end == split.counts).all():
        return split
    starts, sizes = split.offsets[:-1] + first, end - first
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    chosen = torch.from_numpy(rows)
    return Split(split.x[chosen], split.y[chosen], offsets)


Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True)
class MetaState:
    """The shared model."""

    model: Tensor = state.shared()


class MetaLearner(Algorithm[Channel]):
    """What the three have in common; ``direction`` is what tells them apart.

    Parameters
    ----------
    inner_steps : int
        Number k of full gradient steps with which a client adapts the shared model.
    inner_step : float
        Size gamma of these steps.
    outer_step : float
        Size eta of the shared model's step.
    l2 : float
        The lambda of (lambda / 2) ||x||^2 in every f_i.
    start : {'zeros', 'random'}, optional
        First shared model. None is zeros for linear models and a random draw for networks.
    """

    requires = (
        Requirement(
            {
                "participation.late": "miss",
                "exchange.correction:within_steps": (None, False),
                "exchange.correction:chooses": (None, False),
            },
            "whose clients take full gradient steps away from the model that they average",
        ),
    )
    columns = ("up_floats",)
    local_options = ()
    step_option = "algorithm.inner_step or outer_step"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        inner_steps: Annotated[int, Ge(1)] = 5,
        inner_step: Positive = 0.1,
        outer_step: Positive = 0.1,
        l2: Annotated[float, Ge(0)] = 0.0,
        start: Literal["zeros", "random"] | None = None,
    ) -> None:
        check_memory(
            4.0 * inner_steps * model.n_parameters,
            f"algorithm.inner_steps is {inner_steps}, whose points for one client",
        )
        self.model = model
        self.inner_steps, self.inner_step, self.outer_step = inner_steps, inner_step, outer_step
        self.regulariser = Regulariser("l2", l2)
        self.start = start or ("zeros" if isinstance(model, Linear) else "random")
        self.objectives = Objectives(model, self.regulariser)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> MetaState:
        first = starting_point(self.model, self.start, draws, dtype).to(clients.device)
        return MetaState(exchange.spread(first))

    def round(
        self, state: MetaState, clients: Clients, channel: Channel, draws: Draws
    ) -> MetaState:
        x = channel.broadcast(state.model)
        moved = x - self.outer_step * self.direction(x[:, 0], clients)[:, None]
        uniform = torch.ones(len(clients), dtype=torch.float64)
        n = len(clients.federation.training)
        return MetaState(channel.average(moved, uniform, before=state.model, total_weight=n))

    @abstractmethod
    def direction(self, x: Tensor, clients: Clients) -> Tensor:
        """Return the update direction of each client, which is subtracted from x."""

    def path(self, x: Tensor, objective: Objective) -> list[Tensor]:
        """Return the points of the k inner steps, x first."""
        points = [x]
        for _ in range(self.inner_steps):
            points.append(points[-1] - self.inner_step * objective.gradients(points[-1]))
        return points

    def deploy(self, state: MetaState, clients: Clients, draws: Draws) -> Predictor:
        """Client i predicts with y_i(x), adapted on all its training samples."""
        x = state.model if state.model.dim() == 2 else state.model[:, 0]
        return self._adapted(x, clients)

    def adapt(
        self, state: MetaState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """A client that took no part in training adapts like any other."""
        return self._adapted(exchange.mean(state.model), clients)

    def _adapted(self, x: Tensor, clients: Clients) -> Predictor:
        """y_i of ``x``, (1, P) or (clients, P)."""
        rows = x.expand(len(clients), self.model.n_parameters)
        return Predictor(self.path(rows, self.objectives(clients))[-1][:, None])

    def measure(
        self, state: MetaState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """``up_floats``, the numbers sent so far, counted as for FLIX."""
        return {"up_floats": exchange.ledger.up_floats}


def parted(
    model: Model, regulariser: Regulariser, fraction: float
) -> tuple[Objectives, Objectives]:
    """Return the risks on the supports and on the queries of clients."""
    first, second = (
        Objectives(model, regulariser, partial(part, fraction=fraction))
        for part in (support, query)
    )
    return first, second


class Fomaml(MetaLearner):
    """First-order MAML (Finn et al. 2017): the gradient at the adapted model.

    Parameters
    ----------
    support_fraction : float
        Share of a client's training samples, the first ones, on which it adapts. The rest is the
        query; 1 makes both the same, all of them.
    **options
        Those of ``MetaLearner``.
    """

    def __init__(
        self, model: Model, local: LocalSolver, *, support_fraction: Share = 0.8, **options: Any
    ) -> None:
        super().__init__(model, local, **options)
        self.support, self.query = parted(model, self.regulariser, support_fraction)

    def direction(self, x: Tensor, clients: Clients) -> Tensor:
        """Return grad f_i(y_i) on the query, with y_i adapted on the support."""
        return self.query(clients).gradients(self.path(x, self.support(clients))[-1])


class Maml(MetaLearner):
    """Exact MAML (Finn et al. 2017), with the Hessians of all inner steps: for small models.

    Parameters
    ----------
    support_fraction : float
        As of ``Fomaml``.
    **options
        Those of ``MetaLearner``.
    """

    def __init__(
        self, model: Model, local: LocalSolver, *, support_fraction: Share = 0.8, **options: Any
    ) -> None:
        super().__init__(model, local, **options)
        self.support, self.query = parted(model, self.regulariser, support_fraction)

    def direction(self, x: Tensor, clients: Clients) -> Tensor:
        """Return prod_j (I - gamma Hessian f_i(y_i^j)) grad f_i(y_i^k), the last step first."""
        objective = self.support(clients)
        points = self.path(x, objective)
        product = self.query(clients).gradients(points[-1])
        for point in reversed(points[:-1]):
            product = product - self.inner_step * objective.hessian_products(point, product)
        return product


class Reptile(MetaLearner):
    """Reptile (Nichol et al. 2018): the shared model moves towards the mean of the adapted ones.

    Parameters
    ----------
    reptile_normalised : bool
        Whether the move is divided by k times the inner step, as in the published code of FLIX.
        ``outer_step`` then is a step along a mean gradient.
    **options
        Those of ``MetaLearner``.
    """

    def __init__(
        self, model: Model, local: LocalSolver, *, reptile_normalised: bool = False, **options: Any
    ) -> None:
        super().__init__(model, local, **options)
        self.scale = 1 / (self.inner_steps * self.inner_step) if reptile_normalised else 1.0

    def direction(self, x: Tensor, clients: Clients) -> Tensor:
        """Return x - y_i(x), scaled by ``reptile_normalised``."""
        return (x - self.path(x, self.objectives(clients))[-1]) * self.scale
