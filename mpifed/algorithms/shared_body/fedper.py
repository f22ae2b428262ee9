"""FedPer (Arivazhagan et al. 2019): base layers are averaged, personalisation layers stay.

With the base W_B and the personalisation layers W_Pj of client j, of n_j samples,

    Client j   (W_B^j, W_Pj) <- SGD on l((W_B, W_Pj); samples of j)
    Server     W_B <- sum_j (n_j / n) W_B^j

Every client begins with a draw of W_Pj of its own; W_B is drawn by the server.

FedRep, FedBABU and FedBN have the same state; they differ in which part is trained when, and in
which numbers are the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from mpifed import state
from mpifed.method import (
    Algorithm,
    AnyChannel,
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    Requirement,
    StepScale,
    initial_models,
)
from mpifed.model import Model, head_of


@dataclass(frozen=True)
class PartsState:
    """The body, the clients' heads and their optimizers."""

    body: Tensor = state.shared()
    heads: Tensor = state.client()
    optimizer: OptimizerState = state.client()


def unseen_fitter(local: LocalSolver, epochs: int) -> LocalSolver:
    """Return the solver of ``unseen_epochs``."""
    return local.variant(
        "unseen head",
        "algorithm.unseen_epochs",
        epochs=epochs,
        steps=None,
        lr_schedule="constant",
    )


class Parts(Algorithm[AnyChannel]):
    """Base class of methods whose clients share a body and keep a head.

    Parameters
    ----------
    head : list of str, optional
        Layers or parameters that stay with the client. None is the model's last layer; an empty
        list is FedAvg.
    head_init : {'shared', 'per_client'}
        Whether all heads begin alike, or each with a draw of its own.
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip, as for
        FedAvg: n_t / n, the same with mean one, or 1.
    """

    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement(
            {
                "exchange.correction:within_steps": (None, False),
                "exchange.correction:chooses": (None, False),
            },
            "whose clients average a part of the models that they train",
        ),
    )
    trains: Tensor | None = None  # a mask of the numbers that local steps move; None for all
    fitter: LocalSolver  # of what unseen clients have of their own

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        head: list[str] | None = None,
        head_init: Literal["shared", "per_client"] = "shared",
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        self.model, self.local = model, local.scaled(gossip_step_scale)
        self.head = head_of(model, head)
        self.body = ~self.head
        self.head_init = head_init

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> PartsState:
        models = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        head_models = models
        if self.head_init == "per_client":
            head_models = initial_models(
                self.model, 1, clients, exchange, draws, dtype, per_client=True
            )
        heads = head_models[..., self.head].expand(len(clients), 1, -1).clone()
        optimizer = self.local.init(len(clients), 1, dtype)
        return PartsState(models[..., self.body], heads, optimizer)

    def joined(self, body: Tensor, heads: Tensor) -> Tensor:
        """Return whole models, (clients, 1, P)."""
        rows = heads.new_empty(len(heads), 1, self.model.n_parameters)
        rows[..., self.head], rows[..., self.body] = heads, body.expand(len(heads), 1, -1)
        return rows

    def round(
        self, state: PartsState, clients: Clients, channel: AnyChannel, draws: Draws
    ) -> PartsState:
        start = self.joined(channel.broadcast(state.body), state.heads)
        trained, optimizer = self.local(
            start, state.optimizer, clients, draws, channel, mask=self.trains
        )
        body = channel.average(trained[..., self.body], clients.weights, before=state.body)
        return PartsState(body, trained[..., self.head], optimizer)

    def unseen_start(self, state: PartsState, clients: Clients, exchange: Exchange) -> Tensor:
        """Return models that unseen clients begin with: the mean body, and their first heads."""
        heads = state.heads[torch.from_numpy(clients.rows)]
        return self.joined(exchange.mean(state.body), heads)

    def deploy(self, state: PartsState, clients: Clients, draws: Draws) -> Predictor:
        """The body with each client's head."""
        return Predictor(
            self.local.with_statistics(self.joined(state.body, state.heads), state.optimizer)
        )

    def adapt(
        self, state: PartsState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients fit a head to their samples, from its initial value, the body fixed."""
        start = self.unseen_start(state, clients, exchange)
        fresh = self.fitter.init(len(clients), 1, start.dtype)
        return Predictor(self.fitter(start, fresh, clients, draws, mask=self.head)[0])

    @property
    def shared_buffers(self) -> slice:
        """Those of the body."""
        size, n = self.payload(), self.model.n_buffers
        return slice(size - int(self.body[len(self.body) - n :].sum()), size)

    def payload(self) -> int:
        return int(self.body.sum())


class FedPer(Parts[Channel]):
    """FedPer: base layers averaged as in FedAvg, personalisation layers trained beside them.

    Parameters
    ----------
    head_init : {'shared', 'per_client'}
        Whether all heads begin alike, or each with a draw of its own.
    unseen_epochs : int
        Epochs in which an unseen client fits its head, with the body fixed.
    **options
        Those of ``Parts``.
    """

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        head_init: Literal["shared", "per_client"] = "per_client",
        unseen_epochs: Annotated[int, Ge(1)] = 10,
        **options: Any,
    ) -> None:
        super().__init__(model, local, head_init=head_init, **options)
        self.fitter = unseen_fitter(local, unseen_epochs)
