"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1): local steps corrected by control variates.

     5    the server sends x and c to the participants S
     7    y_t <- x
    10    K times y_t <- y_t - eta_l (g_t(y_t) - c_t + c)
    12    c_t+ <- (I) grad f_t(x), or (II) c_t - c + (x - y_t) / (K eta_l)
    13    clients send y_t - x and c_t+ - c_t
    17    x <- x + eta_g mean over S of y_t - x;   c <- c + sum over S of p_t (c_t+ - c_t)

With p_t = n_t / n, or 1 / T as in the paper, c = sum_t p_t c_t in every round. c_t is an estimate
of the gradient of f_t, so that a step follows the gradient of f = sum_t p_t f_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.global_model.one_model import GlobalModel
from mpifed.errors import InputError
from mpifed.message import averaged_buffers
from mpifed.method import (
    Clients,
    Draws,
    LocalSolver,
    OptimizerState,
    Requirement,
    ServerChannel,
    Shift,
    over_rates,
)
from mpifed.model import Model, Objectives, Regulariser


@dataclass(frozen=True)
class ScaffoldState:
    """The global model and the control variates, which have no entries for its buffers."""

    model: Tensor = state.shared()  # x, (1, P)
    variate: Tensor = state.server()  # c, (1, trained)
    variates: Tensor = state.client()  # c_t, (clients, 1, trained)
    optimizer: OptimizerState = state.client()


class Scaffold(GlobalModel[ServerChannel]):
    """SCAFFOLD: local SGD along gradients that are corrected by control variates.

    Parameters
    ----------
    server_lr : float
        eta_g, by which the server multiplies the mean move.
    variate_option : {'I', 'II'}
        c_t+: the gradient of the client's whole risk at x, or the mean gradient of its steps.
    client_weights : {'samples', 'uniform'}
        The p_t: n_t / n, as in FedAvg, or 1 / T, as in the paper.
    """

    requires = (
        Requirement(
            {"local.optimizer": "sgd", "local.momentum": 0.0}, "which corrects steps of plain SGD"
        ),
    )
    aggregates = "mean_and_sums"
    compressors = "none"
    state_class = ScaffoldState

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        server_lr: Annotated[float, Gt(0)] = 1.0,
        variate_option: Literal["I", "II"] = "II",
        client_weights: Literal["samples", "uniform"] = "samples",
    ) -> None:
        if variate_option == "I" and not model.deterministic:
            raise InputError(
                "algorithm.variate_option is 'I', the gradient of a client's whole risk, which a "
                "model with dropout or batch normalisation does not have; allowed: II"
            )
        super().__init__(model, local)
        self.server_lr = server_lr
        self.by_samples = client_weights == "samples"
        # What the local steps descend on, so that both options estimate the same gradient.
        decay = Regulariser("l2", local.options.weight_decay)
        self.risks = Objectives(model, decay) if variate_option == "I" else None

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        trained = self.local.n_trained
        return model.new_zeros(1, trained), model.new_zeros(n_clients, 1, trained)

    def payload(self) -> int:
        """Return the numbers of a model and of a control variate."""
        return self.model.n_parameters + self.local.n_trained

    def round(
        self, state: ScaffoldState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> ScaffoldState:
        x, c = channel.broadcast(state.model), channel.broadcast(state.variate)  # Alg. 1, line 5
        terms = [Shift(c - state.variates)]
        y, optimizer = self.local(x, state.optimizer, clients, draws, adjustments=terms)  # line 10
        variates = self.variates(state, x, y, clients, draws)  # line 12
        moves, changes = channel.send(y - x), channel.send(variates - state.variates)  # line 13
        p = clients.average_weights(self.by_samples)
        move = channel.mean(moves, p).to(x)
        after = state.model + self.server_lr * channel.along(move)  # line 17
        after = averaged_buffers(after, state.model + move, self.model.n_buffers)
        # Absent clients keep their c_t, whatever the weights of the mean.
        variate = state.variate + channel.sum(changes, p).to(x)  # line 17
        return ScaffoldState(after, variate, variates, optimizer)

    def variates(
        self, state: ScaffoldState, x: Tensor, y: Tensor, clients: Clients, draws: Draws
    ) -> Tensor:
        """Return c_t+ of clients that went from ``x`` to ``y``, (clients, 1, trained)."""
        trained = self.local.n_trained
        if self.risks is not None:  # option I
            return self.risks(clients).gradients(x[:, 0])[:, None, :trained]
        rates = self.local.total_rates(state.optimizer, clients, draws)[:, None, None].to(x)
        gradients = over_rates((x - y)[..., :trained], rates)
        variates = state.variates - state.variate + gradients  # option II
        return torch.where(rates > 0, variates, state.variates)
