"""FedRoD (Chen and Chao 2022): a generic head with a balanced loss, a personal one beside it.

With the representation f(x; theta), client m, whose samples of label c are n_mc, takes steps on two
losses at once, with the cross-entropy CE:

    theta, psi   along the gradient of CE(h(f; psi) + log n_m), the balanced softmax loss of the
                 generic predictor
    phi_m        along that of CE(h(f; psi) + h(f; phi_m)), theta and psi fixed: the empirical risk
                 of the personal predictor, in its own head alone

The server averages theta and psi; phi_m stays, and begins with zeros. Heads are linear, so that the
personal predictor is one model with the head psi + phi_m.

With a hypernetwork, client m has the label shares a_m = n_m / sum_c n_mc. A perceptron H of one
hidden layer makes the personal heads of all clients:

    nu           along the gradient of CE(h(f; psi) + h(f; phi_m)), phi_m = H(a_m; nu)

with theta and psi fixed. The server averages theta, psi and nu; no client keeps a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from mpifed import state
from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.method import (
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Predictor,
    Requirement,
    StepScale,
)
from mpifed.model import Derived, HyperHeads, Model, TwoHeads

# Share of a label that a client lacks: its logit falls by 46, and its gradient vanishes.
ABSENT = 1e-20


def log_counts(clients: Clients, outputs: int, like: Tensor) -> Tensor:
    """Return log n_mc of each client's training labels, up to a constant, (clients, 1,
    outputs).
    """
    counts = _counts(clients, max(outputs, 2))
    logs = np.log(np.maximum(counts / np.maximum(counts.sum(1, keepdims=True), 1), ABSENT))
    differences = logs[:, 1:] - logs[:, :1] if outputs == 1 else logs
    return torch.from_numpy(differences[:, None]).to(like)


def label_shares(clients: Clients, labels: int, like: Tensor) -> Tensor:
    """Return each client's shares of labels among its training samples, (clients, 1, labels)."""
    counts = _counts(clients, labels)
    all_of_them = counts.sum(1, keepdims=True)
    shares = np.where(all_of_them > 0, counts / np.maximum(all_of_them, 1), 1 / labels)
    return torch.from_numpy(shares[:, None]).to(like)


def _counts(clients: Clients, labels: int) -> np.ndarray:
    """How often each client has each label, int64 (clients, labels)."""
    train = clients.shards.train
    owner = np.repeat(np.arange(len(train.counts)), train.counts)
    y = train.y.cpu().numpy()
    y = y.reshape(len(owner), math.prod(y.shape[1:]))
    pairs = (owner[:, None] * labels + y).ravel()
    counts = np.bincount(pairs, minlength=len(train.counts) * labels).reshape(-1, labels)
    return counts[clients.rows]


@dataclass(frozen=True)
class FedRoDState(FedAvgState):
    """The generic model, with the optimizers of all numbers, and the personal heads."""

    heads: Tensor = state.client()


class FedRoD(FedAvg):
    """FedRoD: a generic model trained on a balanced loss, and a personal head of each client.

    Parameters
    ----------
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip, as for
        FedAvg: n_t / n, the same with mean one, or 1.
    """

    requires = (
        Requirement(
            {"exchange.correction:within_steps": (None, False)},
            "whose steps move more numbers than are averaged",
        ),
    )
    tasks = ("classification", "sequence")

    def __init__(
        self, model: Model, local: LocalSolver, *, gossip_step_scale: StepScale = "normalised"
    ) -> None:
        super().__init__(model, local, gossip_step_scale=gossip_step_scale)
        self.two = TwoHeads(model)
        self.both = self.local.variant(local.purpose, model=Derived(self.two))
        numbers = torch.arange(self.both.model.n_parameters)
        self.mask = numbers < self.two.trained + self.two.personal

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedRoDState:
        model = super().init(clients, exchange, draws, dtype).model
        heads = model.new_zeros(len(clients), 1, self.two.count)
        return FedRoDState(model, self.both.init(len(clients), 1, dtype), heads)

    def round(  # type: ignore[override]
        self, state: FedRoDState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedRoDState:
        received = channel.broadcast(state.model)
        priors = log_counts(clients, self.two.outputs, received)
        start = self.two.rows_of(received, state.heads, priors)
        trained, optimizer = self.both(
            start, state.optimizer, clients, draws, channel, mask=self.mask
        )
        generic, heads, _, buffers = self.two.parts_of(trained)
        generic = torch.cat([generic, buffers], -1)
        model = channel.average(generic, clients.weights, before=state.model)
        return FedRoDState(model, optimizer, heads)

    def deploy(self, state: FedRoDState, clients: Clients, draws: Draws) -> Predictor:
        """The personal predictor, psi + phi_m; unseen clients deploy the generic one."""
        generic = self.local.with_statistics(state.model, state.optimizer)
        rows = generic.expand(len(clients), 1, self.model.n_parameters).clone()
        rows[..., : self.two.trained][..., self.two.head] += state.heads
        return Predictor(rows)


@dataclass(frozen=True)
class FedRoDHyperState(FedAvgState):
    """The generic model, with the optimizers of all numbers, and the hypernetwork."""

    hyper: Tensor = state.shared()


class FedRoDHyper(FedAvg):
    """FedRoD (hyper): a generic model, and a network that makes heads from label frequencies.

    Parameters
    ----------
    hyper_width : int
        Numbers in the hidden layer of the hypernetwork.
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip, as for
        FedAvg: n_t / n, the same with mean one, or 1.
    """

    requires = (
        Requirement(
            {
                "exchange.correction:within_steps": (None, False),
                "exchange.correction:chooses": (None, False),
            },
            "which averages a hypernetwork beside the model",
        ),
    )
    tasks = ("classification", "sequence")

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        hyper_width: Annotated[int, Ge(1)] = 16,
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        super().__init__(model, local, gossip_step_scale=gossip_step_scale)
        self.two = HyperHeads(model, hyper_width)
        self.both = self.local.variant(local.purpose, model=Derived(self.two))
        numbers = torch.arange(self.both.model.n_parameters)
        self.mask = numbers < self.two.trained + self.two.personal
        self.sizes = [model.n_parameters, self.two.personal]

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedRoDHyperState:
        model = super().init(clients, exchange, draws, dtype).model
        drawn = torch.from_numpy(self.two.first(draws.stream("hypernetwork", -1)))
        hyper = exchange.spread(drawn.to(dtype)[None].to(clients.device))
        return FedRoDHyperState(model, self.both.init(len(clients), 1, dtype), hyper)

    def round(  # type: ignore[override]
        self, state: FedRoDHyperState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedRoDHyperState:
        before = torch.cat([state.model, state.hyper], -1)
        received, nu = channel.broadcast(before).split(self.sizes, -1)
        logs = log_counts(clients, self.two.outputs, received)
        shares = label_shares(clients, self.two.labels, received)
        start = self.two.rows_of(received, nu, torch.cat([logs, shares], -1))
        trained, optimizer = self.both(
            start, state.optimizer, clients, draws, channel, mask=self.mask
        )
        generic, nu, _, buffers = self.two.parts_of(trained)
        sent = torch.cat([generic, buffers, nu], -1)
        mean = channel.average(sent, clients.weights, before=before)
        model, hyper = mean.split(self.sizes, -1)
        return FedRoDHyperState(model, optimizer, hyper)

    def deploy(self, state: FedRoDHyperState, clients: Clients, draws: Draws) -> Predictor:
        """The personal predictor, psi + H(a_m; nu)."""
        return self._personal(
            self.local.with_statistics(state.model, state.optimizer), state.hyper, clients
        )

    def adapt(
        self, state: FedRoDHyperState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients have a head of their own by their labels, without a step."""
        return self._personal(exchange.mean(state.model), exchange.mean(state.hyper), clients)

    def payload(self) -> int:
        return sum(self.sizes)

    def _personal(self, model: Tensor, nu: Tensor, clients: Clients) -> Predictor:
        rows = model.expand(len(clients), 1, self.model.n_parameters).clone()
        heads = self.two.heads_of(nu, label_shares(clients, self.two.labels, nu))
        rows[..., : self.two.trained][..., self.two.head] += heads
        return Predictor(rows)
