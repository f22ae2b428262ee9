"""APFL (Deng, Kamani and Mahdavi 2020, Algorithm 1): mixtures of a global and a local model.

Client i predicts with a mixture of parameters, whose weight alpha_i is fixed or learnt:

    vbar_i = alpha_i v_i + (1 - alpha_i) w_i

In a local step on one minibatch xi

    w_i <- w_i - eta grad f_i(w_i; xi)
    v_i <- v_i - eta alpha_i grad f_i(vbar_i; xi)

The server averages the w_i. An adaptive weight takes a step on the first minibatch of a round:

    alpha_i <- alpha_i - eta <v_i - w_i, grad f_i(vbar_i; xi)>, in [0, 1]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from mpifed import state
from mpifed.algorithms.personal.shared_model import ALIKE, Weights, combined, copies
from mpifed.method import (
    Algorithm,
    Channel,
    Clients,
    Coupling,
    Draws,
    Exchange,
    LocalSolver,
    Minibatch,
    OptimizerState,
    Predictor,
    Requirement,
    initial_models,
)
from mpifed.model import Model, row_products

Variant = Literal["paper", "published"]


@dataclass(frozen=True)
class APFLState:
    """The global model w, the clients' own v_i, and their weights."""

    model: Tensor = state.shared()  # (1, P); under gossip (clients, 1, P)
    personal: Tensor = state.client()  # (clients, 1, P), with the running statistics of vbar_i
    alpha: Tensor = state.client()  # (clients,)
    optimizer: OptimizerState = state.client()  # of w_i and v_i


@dataclass
class MixtureStep(Coupling):
    """The step of w_i and v_i on one minibatch; ``alpha``, (clients,), changes in place."""

    alpha: Tensor
    adaptive: bool
    variant: Variant

    def move(self, batch: Minibatch) -> None:
        w, v = batch.rows.unbind(1)
        alpha = self.alpha[batch.clients, None]
        of_global = batch.gradient(w, 0)
        if self.variant == "published":
            batch.step(of_global, 0)
        of_mixture = batch.gradient(alpha * v + (1 - alpha) * w, 1)
        slope = _products(v, w, of_mixture)
        if self.variant == "paper":
            batch.step(of_global, 0)
        batch.step(alpha * of_mixture, 1)
        if self.variant == "published":
            # Both models have moved, and g is weighed by the derivatives of vbar in v and in w.
            factor = alpha.square() + (1 - alpha).square()
            slope = factor * _products(v, w, of_mixture) + 0.02 * alpha
        if self.adaptive and batch.number == 0:
            self.alpha[batch.clients] = (alpha - batch.rate * slope).clamp(0, 1)[:, 0]


def _products(v: Tensor, w: Tensor, gradient: Tensor) -> Tensor:
    """<v - w, gradient> of each row, (c, 1)."""
    return row_products((v - w)[:, : gradient.shape[1]], gradient)[:, None].to(v)


class APFL(Algorithm[Channel]):
    """APFL: a global model, and mixtures of it with models of the clients' own.

    Parameters
    ----------
    apfl_alpha : float
        Weight of the client's own model; the first one where weights are adaptive.
    apfl_adaptive : bool
        Whether a client's weight takes a step in each round.
    apfl_variant : {'paper', 'published'}
        The published code takes the gradient of v_i after the step of w_i, and steps alpha along
        (alpha^2 + (1 - alpha)^2) <v_i - w_i, grad f_i> + 0.02 alpha.
    client_weights : {'uniform', 'samples'}
        Weights of the server's average: equal, as in Algorithm 1, or n_t / n.
    """

    requires = (
        ALIKE,
        Requirement(
            {
                "exchange.correction:within_steps": (None, False),
                "exchange.correction:chooses": (None, False),
            },
            "whose clients also train models of their own in the same steps",
        ),
    )

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        apfl_alpha: Annotated[float, Ge(0), Le(1)] = 0.5,
        apfl_adaptive: bool = False,
        apfl_variant: Variant = "paper",
        client_weights: Weights = "uniform",
    ) -> None:
        self.model, self.local, self.weights = model, local, client_weights
        self.apfl_alpha, self.how = apfl_alpha, (apfl_adaptive, apfl_variant)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> APFLState:
        model = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        alpha = model.new_full((len(clients),), self.apfl_alpha)
        optimizer = self.local.init(len(clients), 2, dtype)
        return APFLState(model, copies(model, len(clients)).clone(), alpha, optimizer)

    def round(
        self, state: APFLState, clients: Clients, channel: Channel, draws: Draws
    ) -> APFLState:
        start = channel.broadcast(state.model)
        step = MixtureStep(state.alpha.clone(), *self.how)
        rows, optimizer = self.local(
            torch.cat([start, state.personal], 1), state.optimizer, clients, draws, coupling=step
        )
        model = combined(rows[:, :1], clients, channel, state.model, self.weights)
        return APFLState(model, rows[:, 1:].clone(), step.alpha, optimizer)

    def deploy(self, state: APFLState, clients: Clients, draws: Draws) -> Predictor:
        """Client i deploys vbar_i, with w as the server sent it last."""
        return self._mixed(state.model, state.personal, state.alpha)

    def adapt(
        self, state: APFLState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients train their own model for a round, from the global one."""
        model = exchange.mean(state.model)
        start = model.expand(len(clients), 2, self.model.n_parameters)
        fresh = self.local.init(len(clients), 2, model.dtype)
        step = MixtureStep(model.new_full((len(clients),), self.apfl_alpha), *self.how)
        rows, _ = self.local(start, fresh, clients, draws, coupling=step)
        return self._mixed(model, rows[:, 1:], step.alpha)

    def _mixed(self, model: Tensor, personal: Tensor, alpha: Tensor) -> Predictor:
        weight = alpha[:, None, None]
        mixed = weight * personal + (1 - weight) * model
        mixed[..., self.local.n_trained :] = personal[..., self.local.n_trained :]
        return Predictor(mixed, results={"alpha": alpha})
