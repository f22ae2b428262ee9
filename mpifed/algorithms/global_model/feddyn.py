"""FedDyn (Acar et al. 2021, Algorithm 1): local risks whose regulariser changes in every round.

    the server sends x to the participants S
    x_t <- argmin f_t(x') - <g_t, x'> + (alpha / 2) ||x' - x||^2          (eq. 1)
    g_t <- g_t - alpha (x_t - x),          of which clients send x_t alone
    h <- h - alpha sum over S of p_t (x_t - x)
    x <- mean over S of x_t - h / alpha

g_t, zero at first, is the gradient of f_t at the minimiser x_t, and h = sum_t p_t g_t. Where
nothing moves all x_t are x, h is zero, and x is a stationary point of sum_t p_t f_t. The p_t are
1 / T in the paper. The minimiser is that of the local steps, however few they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.global_model.one_model import GlobalModel
from mpifed.method import (
    Clients,
    Draws,
    LocalSolver,
    OptimizerState,
    Proximal,
    ServerChannel,
    Shift,
)
from mpifed.model import Model


@dataclass(frozen=True)
class FedDynState:
    """The global model and the gradients, which have no entries for its buffers."""

    model: Tensor = state.shared()  # x, (1, P)
    mean_gradient: Tensor = state.server()  # h, (1, trained)
    gradient: Tensor = state.client()  # g_t, (clients, 1, trained)
    optimizer: OptimizerState = state.client()


class FedDyn(GlobalModel[ServerChannel]):
    """FedDyn: local risks with a linear and a proximal term, whose minimisers agree in the limit.

    Parameters
    ----------
    feddyn_alpha : float
        Strength alpha of the regulariser.
    client_weights : {'samples', 'uniform'}
        The p_t: n_t / n, as in FedAvg, or 1 / T, as in the paper.
    """

    aggregates = "sums"
    compressors = "none"
    state_class = FedDynState
    step_option = "local.lr or 1 / algorithm.feddyn_alpha"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        feddyn_alpha: Annotated[float, Gt(0)] = 0.01,
        client_weights: Literal["samples", "uniform"] = "samples",
    ) -> None:
        super().__init__(model, local)
        self.alpha = feddyn_alpha
        self.by_samples = client_weights == "samples"

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        trained = self.local.n_trained
        return model.new_zeros(1, trained), model.new_zeros(n_clients, 1, trained)

    def round(
        self, state: FedDynState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedDynState:
        x, trained = channel.broadcast(state.model), self.local.n_trained
        terms = [Shift(-state.gradient), Proximal(x, self.alpha)]
        local_model, optimizer = self.local(x, state.optimizer, clients, draws, adjustments=terms)
        gradient = state.gradient - self.alpha * (local_model - x)[..., :trained]
        moves = channel.send(local_model - x)
        p = clients.average_weights(self.by_samples)
        # Absent clients keep their g_t, whatever the weights of the mean.
        h = state.mean_gradient - self.alpha * channel.sum(moves, p).to(x)[..., :trained]
        after = state.model + channel.mean(moves, p).to(x)
        after[..., :trained] -= h / self.alpha
        return FedDynState(after, h, gradient, optimizer)
