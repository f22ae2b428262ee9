"""Agnostic federated learning, AFL (Mohri et al. 2019, algorithm Stochastic-AFL).

    min over w, max over lambda in the simplex of L(w, lambda) = sum_t lambda_t F_t(w)

is the least largest risk of a mixture of the clients' distributions, each of them a domain of the
paper. In a round, with S the participants and p the probability to take part,

    w <- w - gamma_w (1 / p) sum_S lambda_t grad F_t(w)
    lambda <- projection on the simplex of lambda + gamma_lambda (1 / p) (F_t(w) for t in S, else 0)

both of which are unbiased estimates of gradient steps. The paper's solution is the mean of all w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from mpifed import state
from mpifed.message import SparseRows
from mpifed.method import (
    Algorithm,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Predictor,
    Requirement,
    ServerChannel,
    initial_models,
)
from mpifed.model import Model, Objectives, Regulariser
from mpifed.surrogate import simplex


@dataclass(frozen=True)
class AgnosticState:
    """The model, the mean of its past, and the weights of the clients."""

    model: Tensor = state.server()  # w, (1, P)
    average: Tensor = state.server()  # mean of w over the steps so far, (1, P)
    steps: Tensor = state.server()  # int64 (1,)
    mixture: Tensor = state.server()  # lambda, float64 (training clients,)


class Agnostic(Algorithm[ServerChannel]):
    """AFL: one model for the worst mixture of the clients' distributions.

    Parameters
    ----------
    gamma_w : float
        Step size of w.
    gamma_lambda : float
        Step size of lambda, whose first value is n_t / n.
    deployed : {'average', 'last'}
        Whether clients deploy the mean of w over all steps, as in the paper, or the last w.
    """

    requires = (Requirement({"participation.late": "miss"}, "whose clients take one step"),)
    aggregates = "sums"
    compressors = "unbiased"
    local_options = ()
    step_option = "algorithm.gamma_w"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        gamma_w: Annotated[float, Gt(0)] = 0.1,
        gamma_lambda: Annotated[float, Gt(0)] = 0.01,
        deployed: Literal["average", "last"] = "average",
    ) -> None:
        self.model, self.gamma_w, self.gamma_lambda = model, gamma_w, gamma_lambda
        self.takes_average = deployed == "average"
        self.risks = Objectives(model, Regulariser())

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> AgnosticState:
        w = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        federation = clients.federation
        shares = federation.n_train[federation.training] / federation.n_train_total
        mixture = torch.from_numpy(shares).to(w.device)
        return AgnosticState(w, w, torch.zeros(1, dtype=torch.int64, device=w.device), mixture)

    def round(
        self, state: AgnosticState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> AgnosticState:
        w, risks = channel.broadcast(state.model)[:, 0], self.risks(clients)
        gradients = channel.send(risks.gradients(w))
        values = channel.send(risks.losses(w)[:, None].to(w), uncompressed=True)
        federation = clients.federation
        weights = state.mixture[clients.positions] / federation.inclusion
        slope = channel.sum(gradients, weights)
        model = (state.model.double() - self.gamma_w * slope).to(state.model)
        rows = SparseRows(clients.positions[:, None], values.double(), len(state.mixture))
        ascent = channel.sum(
            rows, torch.full_like(weights, self.gamma_lambda / federation.inclusion)
        )
        (mixture,) = channel.at_server(lambda: [simplex((state.mixture + ascent).cpu())])
        mixture = mixture.to(state.mixture.device)
        steps = state.steps + 1
        average = state.average.double() + (model.double() - state.average.double()) / int(steps)
        return AgnosticState(model, average.to(model), steps, mixture)

    def payload(self) -> int:
        """Return the numbers of a gradient and of a risk."""
        return self.model.n_parameters + 1

    def deploy(self, state: AgnosticState, clients: Clients, draws: Draws) -> Predictor:
        return Predictor(state.average if self.takes_average else state.model)

    def adapt(
        self, state: AgnosticState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients deploy the same model."""
        return self.deploy(state, clients, draws)

    def learnt(self, state: AgnosticState, exchange: Exchange) -> dict[str, Tensor]:
        """``lambda``, the weights of the training clients, (training clients,)."""
        return {"lambda": state.mixture}
