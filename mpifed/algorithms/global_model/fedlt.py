"""Fed-LT, Fed-PLT (Bastianello, Liu and Johansson 2024, arXiv 2403.17572): splitting, local steps.

Peaceman-Rachford splitting of sum_i p_i f_i(x_i) subject to x_i = x:

    y <- sum_i p_i z_i
    clients i in S    x_i <- steps from x_i on f_i(x) + ||x - (2 y - z_i)||^2 / (2 rho)
                      z_i <- z_i + 2 (x_i - y)

with z_i = x_i at first; others keep both. A client sends the change of z_i, so that the server
keeps y. Where nothing moves all x_i are y and grad f_i(y) = (y - z_i) / rho, whose mean is zero: y
is a stationary point of sum_i p_i f_i, however few the steps are and whoever takes part.

The paper's text could not be had: the recursion was read in two public programs of it, which have
p_i = 1 / n, all clients and steps of gradient descent. That absent clients keep x_i and z_i is
assumed. Its term h of the server is 0 here.

Fed-LTSat (Tudose et al. 2025, arXiv 2511.20220) compresses Fed-LT both ways with error feedback, by
a recursion that could not be had. Here z_i moves by what arrives of its change, times 1 / (1 +
omega) where the compressor is unbiased, so that what was lost is part of the next change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.global_model.one_model import GlobalModel
from mpifed.method import Clients, Draws, LocalSolver, OptimizerState, Proximal, ServerChannel
from mpifed.model import Model


@dataclass(frozen=True)
class FedLTState:
    """The server's model, and those of clients, which have no entries for its buffers."""

    model: Tensor = state.shared()  # y, (1, P)
    own: Tensor = state.client()  # x_i, (clients, 1, trained)
    auxiliary: Tensor = state.client()  # z_i, (clients, 1, trained)
    optimizer: OptimizerState = state.client()


class FedLT(GlobalModel[ServerChannel]):
    """Fed-LT: local steps with a pull to a reflected mean, exact however few they are.

    The paper's text could not be had: this is from two public programs of it.

    Parameters
    ----------
    fedlt_rho : float
        rho, the inverse of the strength of the pull.
    client_weights : {'samples', 'uniform'}
        The p_i: n_i / n, as in FedAvg, or 1 / n for n clients, as in the paper.
    """

    aggregates = "sums"
    state_class = FedLTState
    step_option = "local.lr or algorithm.fedlt_rho"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        fedlt_rho: Annotated[float, Gt(0)] = 1.0,
        client_weights: Literal["samples", "uniform"] = "samples",
    ) -> None:
        super().__init__(model, local)
        self.rho = fedlt_rho
        self.by_samples = client_weights == "samples"

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        rows = model[..., : self.local.n_trained].expand(n_clients, 1, -1)
        return rows.clone(), rows.clone()

    def round(
        self, state: FedLTState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedLTState:
        y, z, trained = channel.broadcast(state.model), state.auxiliary, self.local.n_trained
        start = torch.cat([state.own, y[..., trained:]], -1)
        terms = [Proximal(2 * y[..., :trained] - z, 1 / self.rho)]
        local_model, optimizer = self.local(
            start, state.optimizer, clients, draws, adjustments=terms
        )
        moves = local_model - y
        moves[..., :trained] *= 2
        arrived, compressor = channel.send(moves), channel.compressor
        share = 1.0
        if compressor is not None and compressor.unbiased:
            share = 1 / (1 + compressor.omega(moves.shape[-1]))
        p = clients.average_weights(self.by_samples)
        # Absent clients keep their z_i, whatever the weights of the mean.
        model = state.model + share * channel.sum(arrived, p).to(y)
        if trained < model.shape[-1]:
            statistics = channel.mean(arrived[..., trained:], p).to(y)
            model[..., trained:] = state.model[..., trained:] + statistics
        z = z + share * arrived[..., :trained]
        return FedLTState(model, local_model[..., :trained].clone(), z, optimizer)
