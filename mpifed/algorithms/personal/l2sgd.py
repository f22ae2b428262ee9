"""L2SGD+ (Hanzely and Richtarik 2020, Algorithm 2): L2GD with minibatches and reduced variance.

Client i's samples are cut into fixed minibatches j, of which it draws j with the share s_ij of its
samples. It keeps the last gradient J_ij on each, their mean Jbar_i = sum_j s_ij J_ij, and the last
gradient Psi_i of the penalty. With eta = alpha / n,

    coin 0:  x_i <- x_i - eta ((grad f_ij(x_i) - J_ij) / (1 - p) + Jbar_i + Psi_i);
             J_ij <- grad f_ij(x_i)
    coin 1:  x_i <- x_i - eta (lambda (x_i - xbar) / p - (1 - p) Psi_i / p + Jbar_i);
             Psi_i <- lambda (x_i - xbar)

Minibatches of one sample are the paper's. Steps of the second kind move xbar by -eta mean of
Jbar_i, since the Psi_i sum to zero; where a second one follows, clients send Jbar_i as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.personal.l2gd import L2GD, L2GDState, runs
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.io.memory import check_memory
from mpifed.local.minibatches import minibatches
from mpifed.local.objective import Regulariser, StackedObjective
from mpifed.local.solver import LocalSGD
from mpifed.models.base import Model
from mpifed.random import bits_at


@dataclass(frozen=True)
class L2SGDState(L2GDState):
    """What L2GD keeps, and the clients' last gradients; ``mean`` is that of the Jbar_i."""

    mean: Tensor = state.shared()  # (1, P)
    table: Tensor = state.client()  # J_ij, (clients, minibatches, P)
    own: Tensor = state.client()  # Jbar_i, (clients, 1, P)
    psi: Tensor = state.client()  # Psi_i, (clients, 1, P)


class L2SGD(L2GD):
    """L2SGD+: L2GD with gradients of minibatches, whose variance vanishes at the solution.

    Parameters
    ----------
    l2gd_p : float
        Probability p of a step towards the mean.
    l2gd_lambda : float
        Strength lambda of the penalty.
    """

    learns = "one model a client, near their mean"
    sends = "its model, and its mean gradient before several steps to the mean"
    aggregates = "means"
    _takes_risks = "algorithm.name is 'l2sgd'"
    _instead = "algorithm.name=l2gd with algorithm.l2gd_gradients=minibatch"

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        l2gd_p: Annotated[float, Gt(0), Lt(1)] = 0.1,
        l2gd_lambda: Annotated[float, Ge(0)] = 0.1,
    ) -> None:
        super().__init__(model, local, l2gd_p=l2gd_p, l2gd_lambda=l2gd_lambda)
        self.local_options = ("lr", "lr_schedule", "batch_size")
        self.size = local.options.batch_size
        self.minibatches = -(-local.longest // self.size)
        check_memory(
            4.0 * self.minibatches * model.n_parameters,
            f"local.batch_size is {self.size}, which gives a client {self.minibatches} minibatches "
            f"with a gradient of {model.n_parameters} numbers each, which",
        )

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> L2SGDState:
        begun = super().init(clients, exchange, draws, dtype)
        x = begun.models
        table = x.new_zeros(len(x), self.minibatches, x.shape[-1])
        zero = torch.zeros_like(begun.model)
        none = torch.zeros_like(x)
        return L2SGDState(begun.model, x, begun.optimizer, zero, table, none, none.clone())

    def round(
        self, state: L2GDState, clients: Clients, channel: Channel, draws: Draws
    ) -> L2SGDState:
        assert isinstance(state, L2SGDState)
        zeros, ones = runs(draws, self.p)
        x, psi, table, own = state.models, state.psi, state.table.clone(), state.own
        eta = self._rates(state.optimizer, clients, draws).to(x)
        here = torch.arange(len(clients), device=x.device)
        parts, first = minibatches(clients.shards.train, self.size)
        for number in range(zeros):
            chosen, share = self._drawn(clients, draws, number)
            drawn = Clients(clients.federation, clients.shards, first[clients.rows] + chosen)
            risks = StackedObjective(self.model, drawn, Regulariser(), parts)
            found, at = risks.gradients(x[:, 0]), torch.from_numpy(chosen).to(x.device)
            change = (found - table[here, at])[:, None]
            x = x - eta * (change / (1 - self.p) + own + psi)
            table[here, at] = found
            own = own + share.to(x)[:, None, None] * change
        model = self.combined(x, clients, channel, state.model)
        xbar, mean = channel.broadcast(model), state.mean
        if ones > 1:
            mean = self.combined(own, clients, channel, state.mean)
            drift = eta * channel.broadcast(mean)
        for number in range(ones):
            apart = self.strength * (x - xbar)
            x = x - eta * (apart / self.p - (1 - self.p) / self.p * psi + own)
            psi, xbar = apart, xbar - drift if number + 1 < ones else xbar
        return L2SGDState(model, x, state.optimizer, mean, table, own, psi)

    def _drawn(self, clients: Clients, draws: Draws, number: int) -> tuple[np.ndarray, Tensor]:
        """Each client's minibatch in a step, int64 (clients,), and its share of the samples."""
        counts = clients.n_train
        keys = draws.client_keys("minibatch", clients.ids)
        bits = bits_at(keys, np.full(len(keys), number)) >> np.uint64(32)
        # The minibatch of a uniform sample is drawn with its share.
        chosen = (bits * counts.astype(np.uint64) >> np.uint64(32)).astype(np.int64) // self.size
        sizes = np.minimum(self.size, counts - chosen * self.size)
        return chosen, torch.from_numpy(sizes / counts)

    def payload(self) -> int:
        """Return the most that a client sends in a round: its model and its mean gradient."""
        return 2 * self.model.n_parameters
