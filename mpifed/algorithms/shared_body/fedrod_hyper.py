"""FedRoD with a hypernetwork (Chen and Chao 2022): it makes the personal heads of all clients.

Client m has the label shares a_m = n_m / sum_c n_mc. With a perceptron H of one hidden layer, it
takes steps as in ``fedrod``, but for the personal head:

    theta, psi   along the gradient of CE(h(f; psi) + log n_m)
    nu           along that of CE(h(f; psi) + h(f; phi_m)), phi_m = H(a_m; nu), theta and psi fixed

The server averages theta, psi and nu. No client keeps a head: who knows its labels has one, whether
it took part in training or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from mpifed import state
from mpifed.algorithms.base import Predictor, StepScale, step_scale
from mpifed.algorithms.global_model.fedavg import FedAvg, FedAvgState
from mpifed.algorithms.shared_body.fedrod import label_shares, log_counts
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSGD
from mpifed.models.base import Model
from mpifed.models.heads import HyperHeads


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

    learns = "one model, and a network that makes a head from a client's label shares"
    sends = "its generic model and the network"
    tasks = ("classification", "sequence")

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        hyper_width: Annotated[int, Ge(1)] = 16,
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        super().__init__(model, local, gossip_step_scale=gossip_step_scale)
        self.two = HyperHeads(model, hyper_width)
        self.both = local.variant(local.purpose, model=self.two)
        self.mask = torch.arange(self.two.n_parameters) < self.two.trained + self.two.personal
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
        scale = step_scale(clients, channel, self.gossip_step_scale)
        trained, optimizer = self.both(
            start, state.optimizer, clients, draws, step_scale=scale, mask=self.mask
        )
        generic, nu, _, buffers = self.two.parts_of(trained)
        sent = torch.cat([generic, buffers, nu], -1)
        mean = channel.average(sent, clients.weights, before=before)
        model, hyper = mean.split(self.sizes, -1)
        return FedRoDHyperState(model, optimizer, hyper)

    def deploy(  # type: ignore[override]
        self, state: FedRoDHyperState, clients: Clients, draws: Draws
    ) -> Predictor:
        """The personal predictor, psi + H(a_m; nu)."""
        return self._personal(self.local.own(state.model, state.optimizer), state.hyper, clients)

    def adapt(  # type: ignore[override]
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
