"""FedPer (Arivazhagan et al. 2019): base layers are averaged, personalisation layers stay.

With the base W_B and the personalisation layers W_Pj of client j, of n_j samples,

    Client j   (W_B^j, W_Pj) <- SGD on l((W_B, W_Pj); samples of j)
    Server     W_B <- sum_j (n_j / n) W_B^j

Every client begins with a draw of W_Pj of its own; W_B is drawn by the server.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge

from mpifed.algorithms.base import Predictor, StepScale
from mpifed.algorithms.shared_body.parts import Parts, PartsState
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSGD
from mpifed.models.base import Model


class FedPer(Parts):
    """FedPer: base layers averaged as in FedAvg, personalisation layers trained beside them.

    Parameters
    ----------
    head : list of str, optional
        Layers or parameters that stay with the client. None is the model's last layer; an empty
        list is FedAvg.
    head_init : {'shared', 'per_client'}
        Whether all heads begin alike, or each with a draw of its own.
    unseen_epochs : int
        Epochs in which an unseen client fits its head, with the body fixed.
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip, as for
        FedAvg: n_t / n, the same with mean one, or 1.
    """

    learns = "one body, a head of each client"
    sends = "its body"

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        head: list[str] | None = None,
        head_init: Literal["shared", "per_client"] = "per_client",
        unseen_epochs: Annotated[int, Ge(1)] = 10,
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        super().__init__(
            model, local, head=head, head_init=head_init, gossip_step_scale=gossip_step_scale
        )
        self.fitter = local.variant(
            "unseen head",
            "algorithm.unseen_epochs",
            epochs=unseen_epochs,
            steps=None,
            lr_schedule="constant",
        )

    def round(
        self, state: PartsState, clients: Clients, channel: Channel, draws: Draws
    ) -> PartsState:
        start, scale = self.start(state, clients, channel)
        trained, optimizer = self.local(start, state.optimizer, clients, draws, step_scale=scale)
        body = channel.average(trained[..., self.body], clients.weights, before=state.body)
        return PartsState(body, trained[..., self.head], optimizer)

    def adapt(
        self, state: PartsState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients fit a head to their samples, from its initial value, the body fixed."""
        start = self.unseen_start(state, clients, exchange)
        fresh = self.fitter.init(len(clients), 1, start.dtype)
        return Predictor(self.fitter(start, fresh, clients, draws, mask=self.head)[0])
