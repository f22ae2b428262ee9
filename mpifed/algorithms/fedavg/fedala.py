"""FedALA (Zhang et al. 2023): each client mixes the global model into its own, number by number.

With the global model Theta, the model Theta_i that client i trained last, and weights W_i in [0, 1]
for the numbers of the higher layers, a client begins its local steps at

    hat Theta_i = Theta_i + (Theta - Theta_i) W_i      in the higher layers, Theta below
    W_i <- W_i - eta grad_W L(hat Theta_i; D_i^s)      clipped to [0, 1], by minibatches

W_i begins with ones, and is first trained in a client's second round, for more epochs than later.
D_i^s is a share of the client's samples, drawn anew in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from mpifed import state
from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.method import (
    Adjustment,
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Predictor,
    Requirement,
    StepScale,
)
from mpifed.model import Between, Derived, Model, last_layer, share_weights


@dataclass(frozen=True)
class FedALAState(FedAvgState):
    """The global model, the clients' own, and their weights between the two."""

    own: Tensor = state.client()
    weights: Tensor = state.client()
    rounds: Tensor = state.client()


@dataclass(frozen=True)
class Within(Adjustment):
    """Shortens a step of SGD without momentum, so that the first numbers end between bounds.

    Attributes
    ----------
    low, high : float
        The bounds; after the step, numbers are within them up to rounding.
    count : int
        How many numbers of a row are bounded.
    lr : float
        The learning rate of all steps.

    Examples
    --------
    >>> import torch
    >>> gradient = torch.full((1, 1, 2), 4.0)
    >>> half = torch.full((1, 1, 2), 0.5)
    >>> Within(0, 1, 1, lr=0.5).add_to(gradient, half, slice(0, 1), slice(0, 1))
    >>> half - 0.5 * gradient
    tensor([[[ 0.0000, -1.5000]]])
    """

    low: float
    high: float
    count: int
    lr: float

    def reordered(self, order: Tensor) -> Within:
        return self

    def add_to(self, gradient: Tensor, parameters: Tensor, clients: slice, models: slice) -> None:
        w, slope = parameters[..., : self.count], gradient[..., : self.count]
        slope.copy_((w - (w - self.lr * slope).clamp(self.low, self.high)) / self.lr)


class FedALA(FedAvg):
    """FedALA: FedAvg whose clients begin between the global model and their own.

    Parameters
    ----------
    head : list of str, optional
        The higher layers, in which a client mixes; below, it takes the global model. None is the
        model's last layer; an empty list is FedAvg.
    ala_lr : float
        eta, the learning rate of W.
    ala_share : float
        Share of a client's samples on which W is trained in a round.
    first_epochs : int
        Epochs of W in a client's second round; it is one epoch later.
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip, as for
        FedAvg: n_t / n, the same with mean one, or 1.
    """

    requires = (
        Requirement(
            {"exchange.correction:within_steps": (None, False)},
            "whose steps begin elsewhere than the correction does",
        ),
    )

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        head: list[str] | None = None,
        ala_lr: Annotated[float, Gt(0)] = 1.0,
        ala_share: Annotated[float, Gt(0), Le(1)] = 0.8,
        first_epochs: Annotated[int, Ge(1)] = 11,
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        super().__init__(model, local, gossip_step_scale=gossip_step_scale)
        names = [last_layer(model)] if head is None else head
        self.between = Between(model, model.mask(names, "algorithm.head"))
        self.count, self.share, self.first_epochs = self.between.count, ala_share, first_epochs
        self.clip = Within(0, 1, self.count, ala_lr)
        self.weighing = local.variant(
            "local aggregation",
            "algorithm.first_epochs",
            Derived(self.between),
            optimizer="sgd",
            lr=ala_lr,
            lr_schedule="constant",
            momentum=0.0,
            weight_decay=0.0,
            epochs=first_epochs,
            steps=None,
        )

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedALAState:
        first = super().init(clients, exchange, draws, dtype)
        models = first.model.expand(len(clients), 1, -1).clone()
        weights, rounds = (
            models.new_ones(len(models), 1, self.count),
            torch.zeros(len(models)).long(),
        )
        return FedALAState(first.model, first.optimizer, models, weights, rounds)

    def _initialised(
        self, model: Tensor, state: FedALAState, clients: Clients, draws: Draws
    ) -> tuple[Tensor, Tensor]:
        """hat Theta_i, (clients, 1, P), and the new W_i; ``model`` is Theta, (clients, 1, P)."""
        # Without a model of its own a client takes the global one, and W_i stays.
        begun = (state.rounds > 0)[:, None, None].to(model.device)
        rows = self.between.rows_of(state.weights, torch.where(begun, state.own, model), model)
        # One epoch is a share of first_epochs; the factor keeps rounding from adding a step.
        share = np.where(state.rounds.numpy() == 1, 1, (1 - 1e-9) / self.first_epochs)
        if begun.any() and self.count:
            rows, _ = self.weighing(
                rows,
                self.weighing.init(len(clients), 1, model.dtype),
                replace(clients, effort=share),
                draws,
                weights=share_weights(clients, draws, "aggregation", self.share, model),
                adjustments=[self.clip],
                mask=torch.arange(rows.shape[-1]) < self.count,
            )
        weights = rows[..., : self.count].clamp_(0, 1).clone()
        mixed, trained = self.between.models_of(rows), self.local.n_trained
        return torch.cat([mixed[..., :trained], model[..., trained:]], -1), weights

    def round(  # type: ignore[override]
        self, state: FedALAState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedALAState:
        start, weights = self._initialised(channel.broadcast(state.model), state, clients, draws)
        trained, optimizer = self.local(start, state.optimizer, clients, draws, channel)
        model = channel.average(trained, clients.weights, before=state.model)
        return FedALAState(model, optimizer, trained, weights, state.rounds + 1)

    def deploy(self, state: FedALAState, clients: Clients, draws: Draws) -> Predictor:
        """hat Theta_i of the present global model, with W_i trained once more."""
        model = state.model.expand(len(clients), 1, self.model.n_parameters)
        mixed, _ = self._initialised(model, state, clients, draws)
        return Predictor(self.local.with_statistics(mixed, state.optimizer))
