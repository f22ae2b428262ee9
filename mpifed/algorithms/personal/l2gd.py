"""L2GD (Hanzely and Richtarik 2020, Algorithm 1): personal models with a penalty on their spread.

    F(x_1, ..., x_n) = (1/n) sum_i f_i(x_i) + (lambda / 2n) sum_i ||x_i - xbar||^2

A step is one of gradient descent on one of the two terms, which a coin chooses; with
eta = alpha / n, local.lr,

    coin 0, probability 1 - p:  x_i <- x_i - eta / (1 - p) grad f_i(x_i)
    coin 1, probability p:      x_i <- x_i - eta lambda / p (x_i - xbar)

Steps of the second kind leave xbar where it is, so clients communicate only where a 1 follows a 0:
a round is a run of zeros and the run of ones behind it. Ones before the first zero change nothing.

L2SGD+ (Algorithm 2) is L2GD with minibatches and reduced variance.
Client i's samples are cut into fixed minibatches j, of which it draws j with the share s_ij of its
samples. It keeps the last gradient J_ij on each, their mean Jbar_i = sum_j s_ij J_ij, and the last
gradient Psi_i of the penalty:

    coin 0:  x_i <- x_i - eta ((grad f_ij(x_i) - J_ij) / (1 - p) + Jbar_i + Psi_i);
             J_ij <- grad f_ij(x_i)
    coin 1:  x_i <- x_i - eta (lambda (x_i - xbar) / p - (1 - p) Psi_i / p + Jbar_i);
             Psi_i <- lambda (x_i - xbar)

Minibatches of one sample are the paper's. Steps of the second kind move xbar by -eta mean of
Jbar_i, since the Psi_i sum to zero; where a second one follows, clients send Jbar_i as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.personal.shared_model import combined, copies
from mpifed.dataset import bits_at, check_memory
from mpifed.errors import InputError
from mpifed.method import (
    Algorithm,
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    Proximal,
    Requirement,
    initial_models,
)
from mpifed.model import Model, Objectives, Regulariser, StackedObjective, minibatches


def runs(draws: Draws, p: float) -> tuple[int, int]:
    """Return how many zeros, and how many ones behind them, the coin shows in a round."""
    stream = draws.stream("coin")
    return int(stream.geometric(p)), int(stream.geometric(1 - p))


@dataclass(frozen=True)
class L2GDState:
    """The mean at the last communication, the clients' models and their optimizers."""

    model: Tensor = state.shared()  # xbar, (1, P)
    models: Tensor = state.client()  # x_i, (clients, 1, P)
    optimizer: OptimizerState = state.client()


class L2GD(Algorithm[Channel]):
    """L2GD: personal models, with steps towards their mean where a coin decides.

    Parameters
    ----------
    l2gd_p : float
        Probability p of a step towards the mean.
    l2gd_lambda : float
        Strength lambda of the penalty.
    l2gd_gradients : {'full', 'minibatch'}
        Whether steps on f_i are along its gradient, or those of the local solver.
    """

    requires = (
        Requirement(
            {
                "participation.late": "miss",
                "server_optimizer": "sgd",
                "server_optimizer.lr": 1.0,
            },
            "whose clients all take the steps that a coin shows, and whose mean is their mean",
        ),
    )
    exchanges = ("server",)
    _takes_risks, _instead = "algorithm.l2gd_gradients is 'full'", "minibatch"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        l2gd_p: Annotated[float, Gt(0), Lt(1)] = 0.1,
        l2gd_lambda: Annotated[float, Ge(0)] = 0.1,
        l2gd_gradients: Literal["full", "minibatch"] = "full",
    ) -> None:
        if (share := local.options.lr * l2gd_lambda / l2gd_p) > 1:
            what = "the share of the way to the mean that a step goes; it must be at most 1"
            raise InputError(
                f"algorithm.l2gd_lambda * local.lr / algorithm.l2gd_p is {share:g}, {what}"
            )
        if l2gd_gradients == "full" and "stacked" not in model.steppings:
            raise InputError(
                f"{self._takes_risks}, but rows of this model cannot be stacked (dropout, batch "
                f"normalisation, branches, local.autocast); allowed: {self._instead}"
            )
        self.model, self.local = model, local
        self.p, self.strength, self.full = l2gd_p, l2gd_lambda, l2gd_gradients == "full"
        self.local_options = ("lr", "lr_schedule", "lr_warmup") if self.full else None
        self.objectives = Objectives(model, Regulariser())

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> L2GDState:
        model = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        optimizer = self.local.init(len(clients), 1, dtype)
        return L2GDState(model, copies(model, len(clients)).clone(), optimizer)

    def round(
        self, state: L2GDState, clients: Clients, channel: Channel, draws: Draws
    ) -> L2GDState:
        zeros, ones = runs(draws, self.p)
        rates = self._rates(state.optimizer, clients, draws)
        x, optimizer = self._steps(state.models, state.optimizer, clients, draws, zeros)
        mean = combined(x, clients, channel, state.model, "uniform")
        xbar = channel.broadcast(mean)
        left = (1 - rates * self.strength / self.p) ** ones
        return L2GDState(mean, xbar + left.to(x) * (x - xbar), optimizer)

    def _rates(self, optimizer: OptimizerState, clients: Clients, draws: Draws) -> Tensor:
        """eta of each client in this round, float64 (clients, 1, 1)."""
        return self.local.total_rates(optimizer, clients, draws, steps=1)[:, None, None]

    def _steps(
        self,
        x: Tensor,
        optimizer: OptimizerState,
        clients: Clients,
        draws: Draws,
        steps: int,
        pulls: tuple[Proximal, ...] = (),
    ) -> tuple[Tensor, OptimizerState]:
        if not self.full:
            scale = np.full(len(clients), 1 / (1 - self.p))
            return self.local(
                x, optimizer, clients, draws, steps=steps, step_scale=scale, adjustments=pulls
            )
        objective, every = self.objectives(clients), slice(None)
        rates = (self._rates(optimizer, clients, draws) / (1 - self.p)).to(x)
        for _ in range(steps):
            gradient = objective.gradients(x[:, 0])[:, None]
            for pull in pulls:
                pull.add_to(gradient, x, every, every)
            x = x - rates * gradient
        return x, optimizer

    def deploy(self, state: L2GDState, clients: Clients, draws: Draws) -> Predictor:
        return Predictor(self.local.with_statistics(state.models, state.optimizer))

    def adapt(
        self, state: L2GDState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients take 1 / p steps on f_i(x) + (lambda / 2) ||x - xbar||^2 from xbar."""
        xbar = copies(exchange.mean(state.model), len(clients))
        fresh, pull = self.local.init(len(clients), 1, xbar.dtype), Proximal(xbar, self.strength)
        return Predictor(self._steps(xbar, fresh, clients, draws, round(1 / self.p), (pull,))[0])


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

    aggregates = "means"
    _takes_risks = "algorithm.name is 'l2sgd'"
    _instead = "algorithm.name=l2gd with algorithm.l2gd_gradients=minibatch"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        l2gd_p: Annotated[float, Gt(0), Lt(1)] = 0.1,
        l2gd_lambda: Annotated[float, Ge(0)] = 0.1,
    ) -> None:
        super().__init__(model, local, l2gd_p=l2gd_p, l2gd_lambda=l2gd_lambda)
        self.local_options = ("lr", "lr_schedule", "lr_warmup", "batch_size")
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
        x, psi, table, jbar = state.models, state.psi, state.table.clone(), state.own
        eta = self._rates(state.optimizer, clients, draws).to(x)
        each = torch.arange(len(clients), device=x.device)
        parts, first = minibatches(clients.shards.train, self.size)
        for number in range(zeros):
            chosen, share = self._drawn(clients, draws, number)
            drawn = first[clients.rows] + chosen
            risks = StackedObjective(self.model, drawn, Regulariser(), parts)
            gradients, at = risks.gradients(x[:, 0]), torch.from_numpy(chosen).to(x.device)
            change = (gradients - table[each, at])[:, None]
            x = x - eta * (change / (1 - self.p) + jbar + psi)
            table[each, at] = gradients
            jbar = jbar + share.to(x)[:, None, None] * change
        model = combined(x, clients, channel, state.model, "uniform")
        xbar, mean = channel.broadcast(model), state.mean
        if ones > 1:
            mean = combined(jbar, clients, channel, state.mean, "uniform")
            drift = eta * channel.broadcast(mean)
        for number in range(ones):
            apart = self.strength * (x - xbar)
            x = x - eta * (apart / self.p - (1 - self.p) / self.p * psi + jbar)
            psi, xbar = apart, xbar - drift if number + 1 < ones else xbar
        return L2SGDState(model, x, state.optimizer, mean, table, jbar, psi)

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
