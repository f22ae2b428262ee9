"""FedRep (Collins et al. 2021): a shared representation, and heads that stay with the clients.

Algorithm 1, with the representation phi and the head h_i of client i:

    Client i   h_i <- tau steps of gradients of f_i(h_i, phi), phi fixed
               phi_i <- steps of gradients of f_i(h_i, phi), h_i fixed
    Server     phi <- mean of phi_i over the participants

The paper weighs clients alike, since they have equally many samples; here means are weighted by
n_i / n, as everywhere. The steps of heads have minibatches and moments of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge

from mpifed import state
from mpifed.algorithms.shared_body.fedper import Parts, PartsState, unseen_fitter
from mpifed.method import Channel, Clients, Draws, Exchange, LocalSolver, OptimizerState
from mpifed.model import Model


@dataclass(frozen=True)
class FedRepState(PartsState):
    """The body, the clients' heads and the optimizers of both."""

    of_head: OptimizerState = state.client()


def head_solver(local: LocalSolver, epochs: int) -> LocalSolver:
    """Return the solver of ``head_epochs``; statistics of the clients' own are of body steps."""
    return local.variant(
        "head", "algorithm.head_epochs", epochs=epochs, steps=None, buffers="average"
    )


class FedRep(Parts[Channel]):
    """FedRep: each client trains its head, then the body with this head, and sends the body.

    Parameters
    ----------
    head_epochs : int
        Epochs of the head in a round; those of the body are ``local.epochs``.
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
        head_epochs: Annotated[int, Ge(1)] = 10,
        unseen_epochs: Annotated[int, Ge(1)] = 10,
        **options: Any,
    ) -> None:
        super().__init__(model, local, **options)
        self.fitter = unseen_fitter(local, unseen_epochs)
        self.head_solver = head_solver(self.local, head_epochs)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedRepState:
        parts = super().init(clients, exchange, draws, dtype)
        of_head = self.head_solver.init(len(clients), 1, dtype)
        return FedRepState(parts.body, parts.heads, parts.optimizer, of_head)

    def round(  # type: ignore[override]
        self, state: FedRepState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedRepState:
        start = self.joined(channel.broadcast(state.body), state.heads)
        tuned, of_head = start, state.of_head
        if self.head.any():
            tuned, of_head = self.head_solver(
                start, of_head, clients, draws, channel, mask=self.head
            )
        done, optimizer = self.local(
            tuned, state.optimizer, clients, draws, channel, mask=self.body
        )
        body = channel.average(done[..., self.body], clients.weights, before=state.body)
        return FedRepState(body, done[..., self.head], optimizer, of_head)
