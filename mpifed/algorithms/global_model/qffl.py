"""q-FFL: fair resource allocation in federated learning (Li et al. 2020, Algorithms 1 and 2).

    min over w of sum_t p_t / (q + 1) F_t(w)^(q + 1)

gives more weight to clients with a larger risk F_t. A round of q-FedAvg (Algorithm 2):

     4    t in S takes local steps from w to w_t
     5      dw_t = L (w - w_t)
            Delta_t = F_t(w)^q dw_t
            h_t = q F_t(w)^(q - 1) ||dw_t||^2 + L F_t(w)^q, and sends both: here w - w_t and
            F_t(w), whose powers may be too small for float32, of which the server makes both
     7    w <- w - sum_S p_t Delta_t / sum_S p_t h_t

h_t bounds the curvature of F_t^(q + 1) / (q + 1), so that one L serves every q. q-FedSGD (Algorithm
1) is the case of one step on all samples: dw_t is then the gradient of F_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.global_model.one_model import GlobalModel
from mpifed.message import averaged_buffers
from mpifed.method import Clients, Draws, LocalSolver, OptimizerState, ServerChannel
from mpifed.model import Model, row_norms, train_risks

# Smaller risks count as this, so that their powers are finite.
LEAST_RISK = 1e-10


@dataclass(frozen=True)
class QfflState:
    """The global model and the clients' optimizers."""

    model: Tensor = state.server()  # w, (1, P)
    optimizer: OptimizerState = state.client()


class Qffl(GlobalModel[ServerChannel]):
    """q-FFL: one model that is fairer to clients with a large risk, by q-FedAvg.

    Parameters
    ----------
    q : float
        How much a large risk counts; 0 is FedAvg; with a large q the largest risks decide.
    lipschitz : float, optional
        L, a Lipschitz constant of the gradients of F_t. None is 1 / ``local.lr``, as in the paper.
    """

    aggregates = "sums"
    state_class = QfflState
    compressors = "unbiased"
    step_option = "local.lr or 1 / algorithm.lipschitz"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        q: Annotated[float, Ge(0)] = 1.0,
        lipschitz: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        super().__init__(model, local)
        self.q = q
        self.lipschitz = lipschitz or 1 / local.options.lr

    def round(
        self, state: QfflState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> QfflState:
        w, p, q, lipschitz = channel.broadcast(state.model), clients.weights, self.q, self.lipschitz
        trained, optimizer = self.local(w, state.optimizer, clients, draws)  # Alg. 2, line 4
        risks, moves = self.risks(state, clients), channel.send(w - trained)
        # The server computes the norm of a move itself, except of one that was compressed.
        exact = channel.compressor is None
        measured = moves if exact else w - trained
        squares = row_norms(measured[:, 0, : self.local.n_trained]).square()
        two, sent = torch.stack([risks.to(squares), squares], 1).to(w), 1 if exact else 2
        two = torch.cat([channel.send(two[:, :sent], uncompressed=True), two[:, sent:]], 1)
        risks, squares = two.double().cpu().unbind(1)
        risks = risks.clamp(min=LEAST_RISK)
        fair = risks**q
        h = q * risks ** (q - 1) * lipschitz**2 * squares + lipschitz * fair  # line 5
        move = channel.sum(moves, p * fair * lipschitz)
        moved = state.model - (move / float(channel.sum(h[:, None], p))).to(w)  # line 7
        if self.model.n_buffers:
            average = state.model - channel.mean(moves, p).to(w)
            moved = averaged_buffers(moved, average, self.model.n_buffers)
        return QfflState(moved, optimizer)

    def payload(self) -> int:
        """Return the numbers of a move and of a risk; beside a compressed move its norm is sent."""
        return self.model.n_parameters + 1

    def risks(self, state: QfflState, clients: Clients) -> Tensor:
        """Return F_t at the model that clients were sent, float64 (clients,); ones where q is 0."""
        if not self.q:
            return torch.ones(len(clients), dtype=torch.float64)
        models = self.local.with_statistics(state.model, state.optimizer)
        return train_risks(self.model, models, clients.shards.train, clients.rows)[:, 0]
