"""PFedDST (Fan, Li, Zhang, Tian and Geng 2025, arXiv 2502.07750): peers by score, body and head.

In every round client i, which has a body e_i and a head h_i,

1. scores its neighbours j by S_ij = s_p (alpha s_l - s_d + c),
2. replaces e_i by the plain mean of its own and those of the ``peers`` with the highest scores,
3. trains e_i with h_i frozen, then h_i with e_i frozen.

s_l is the loss of i's model on the samples of j: the larger, the more is to be had from j. s_d is
the distance of the heads, and s_p is small for peers that were chosen of late.

The paper's text could not be had beyond its abstract; the score and the steps are from public
summaries. Assumed are s_d = 1 - cos(h_i, h_j), s_p = 1 - exp(-lambda (t - t_ij)) for the round t_ij
in which i last chose j, 0 at first, a fixed number of peers, and the values of alpha, c and lambda.
Clients receive the models of all neighbours, compute their losses on validation samples, or on
training samples if they have none, and send each of them its loss. Where W is directed, s_l of a
neighbour that does not receive i's model is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.shared_body.fedper import Parts, unseen_fitter
from mpifed.algorithms.shared_body.fedrep import FedRepState, head_solver
from mpifed.message import Nearby
from mpifed.method import Clients, Draws, Exchange, GossipChannel, LocalSolver, Requirement
from mpifed.model import Model, held_out_risks
from mpifed.state import on_host


@dataclass(frozen=True)
class PFedDSTState(FedRepState):
    """Besides those of FedRep: in which round a client last chose each other one."""

    chosen: Tensor = state.client()  # t_ij, int64 (clients, nodes)


class PFedDST(Parts[GossipChannel]):
    """PFedDST: clients mix bodies with the neighbours that score best, and train parts in turns.

    The paper's text could not be had: this is from its abstract and public summaries.

    Parameters
    ----------
    peers : int
        How many neighbours a client mixes with.
    loss_weight : float
        alpha, the weight of the loss in the score.
    offset : float
        c, which is added to it.
    recency : float
        lambda, how soon a peer that was chosen may be chosen again.
    head_epochs : int
        Epochs of the head in a round; those of the body are ``local.epochs``.
    unseen_epochs : int
        Epochs in which an unseen client fits its head, with the body fixed.
    **options
        Those of ``Parts``.
    """

    requires = (
        Requirement({"local.buffers": "average"}, "whose models take their statistics along"),
    )
    aggregates = "sums"
    compressors = "none"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        peers: Annotated[int, Ge(1)] = 4,
        loss_weight: Annotated[float, Ge(0)] = 1.0,
        offset: Annotated[float, Ge(0)] = 1.0,
        recency: Annotated[float, Gt(0)] = 0.5,
        head_epochs: Annotated[int, Ge(1)] = 10,
        unseen_epochs: Annotated[int, Ge(1)] = 10,
        **options: Any,
    ) -> None:
        super().__init__(model, local, **options)
        self.fitter = unseen_fitter(local, unseen_epochs)
        self.head_solver = head_solver(self.local, head_epochs)
        self.peers, self.loss_weight, self.offset = peers, loss_weight, offset
        self.recency = recency

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> PFedDSTState:
        parts = super().init(clients, exchange, draws, dtype)
        nodes = len(exchange.federation.training)
        chosen = torch.zeros(len(clients), nodes, dtype=torch.int64, device=clients.device)
        of_head = self.head_solver.init(len(clients), 1, dtype)
        return PFedDSTState(parts.body, parts.heads, parts.optimizer, of_head, chosen)

    def round(  # type: ignore[override]
        self, state: PFedDSTState, clients: Clients, channel: GossipChannel, draws: Draws
    ) -> PFedDSTState:
        body, chosen = self.mixed(state, clients, channel, draws)
        start = self.joined(body, state.heads)
        of_head = state.of_head
        done, optimizer = self.local(
            start, state.optimizer, clients, draws, channel, mask=self.body
        )
        if self.head.any():
            done, of_head = self.head_solver(done, of_head, clients, draws, channel, mask=self.head)
        body, heads = done[..., self.body], done[..., self.head]
        return PFedDSTState(body, heads, optimizer, of_head, chosen)

    def mixed(
        self, state: PFedDSTState, clients: Clients, neighbours: GossipChannel, draws: Draws
    ) -> tuple[Tensor, Tensor]:
        """Return the bodies after mixing, and t_ij. Collective."""
        models, may = self.joined(state.body, state.heads)[:, 0], neighbours.may_receive()
        arcs = neighbours.receive(models, may)
        rows, chosen, body = arcs.all_rows(models), on_host(state.chosen).copy(), state.body.clone()
        # Those who have a client's model send back what it loses on their samples, one number.
        risks = self.losses(rows, arcs, clients, models)
        losses = neighbours.receive(risks, may, numbers=1).all_rows(risks)
        receivers, senders = arcs.nodes[arcs.receivers], arcs.nodes[arcs.senders]
        heads = rows[:, self.head.numpy()]
        length = np.sqrt(np.square(heads).sum(axis=1, keepdims=True))
        heads = np.divide(heads, length, out=np.zeros_like(heads), where=length > 0)
        distance = 1 - (heads[arcs.receivers] * heads[arcs.senders]).sum(axis=1)
        score = self.loss_weight * losses[arcs.senders, receivers] - distance + self.offset
        score *= 1 - np.exp(-self.recency * (draws.round - chosen[arcs.receivers, senders]))
        for i in range(len(clients)):
            peers = np.flatnonzero(arcs.receivers == i)
            best = np.sort(peers[np.argsort(-score[peers], kind="stable")[: self.peers]])
            mean = rows[[i, *arcs.senders[best]]][:, self.body.numpy()].mean(axis=0)
            body[i, 0] = torch.from_numpy(mean).to(body)
            chosen[i, senders[best]] = draws.round
        return body, torch.from_numpy(chosen).to(state.chosen)

    def losses(self, rows: np.ndarray, arcs: Nearby, clients: Clients, like: Tensor) -> Tensor:
        """Return each client's losses of the models that it received, 0 for others, by nodes."""
        losses = np.zeros((len(clients), len(clients.federation.training)))
        for i in range(len(clients)):
            senders = arcs.senders[arcs.receivers == i]
            models = torch.from_numpy(rows[senders]).to(like)
            risks = held_out_risks(self.model, models, clients, np.array([i]))
            losses[i, arcs.nodes[senders]] = risks[0].numpy()
        return torch.from_numpy(losses).to(like)

    def payload(self) -> int:
        """Return the numbers of a model, and of the loss of the neighbour's own."""
        return self.model.n_parameters + 1
