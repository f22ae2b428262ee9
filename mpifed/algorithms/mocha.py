"""MOCHA: federated multi-task learning of related linear models (Smith et al. 2017, Algorithm 1).

    min over W, Omega of sum_t (1 / m_t) sum_j l(<w_t, x_tj>, y_tj) + (lambda / 2) tr(W Omega W')

with Omega = Sigma^-1, Sigma positive semidefinite, tr Sigma = 1. With dual variables alpha_tj and
b_t = (1 / m_t) sum_j alpha_tj x_tj, W = B Sigma / lambda (eq. 3). For fixed Sigma a round is

     7    client t improves alpha_t on its part of the dual (eq. 4), for which it needs w_t and
          rho Sigma_tt, with rho = max_t sum_t' |Sigma_tt'| / Sigma_tt
     9    it sends the change of b_t
    10    w_t <- (1 / lambda) sum_t' Sigma_tt' b_t'
    11    between phases of such rounds Sigma <- (W'W)^(1/2) / tr (W'W)^(1/2)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from mpifed import state
from mpifed.algorithms.base import Algorithm, Predictor
from mpifed.algorithms.task_relations import penalties, relations, separability
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.exchange.measuring import computed_once, total
from mpifed.federation.clients import Clients, Draws
from mpifed.local.dual_ascent import ascend, dual_loss_of, risks_and_gains
from mpifed.local.solver import LocalSGD
from mpifed.memory import check_memory
from mpifed.models.linear import Linear
from mpifed.sparse_rows import SparseRows


@dataclass(frozen=True)
class MochaState:
    """Dual variables and the models that they give, all float64; T training clients."""

    duals: Tensor = state.client()  # alpha, (clients, outputs, longest shard)
    b: Tensor = state.server()  # b_t, (T, P)
    sigma: Tensor = state.server()  # Sigma, (T, T)
    models: Tensor = state.server()  # w_t, (T, P)


class Mocha(Algorithm[ServerChannel]):
    """MOCHA: a linear model for each client, and how the clients are related.

    It learns support vector machines for classes and tags, each output against all others, and
    least squares for regressions. A model's bias is regularised with the rest.

    Parameters
    ----------
    mocha_lambda : float
        lambda, which multiplies tr(W Omega W') / 2.
    sdca_fraction : float
        Share of its samples whose dual variables a client improves in a round.
    sigma_every : int, optional
        Rounds between two updates of Sigma; None keeps I / T.
    mocha_variant : {'paper', 'published'}
        Whether a new Sigma moves the models, so that W = B Sigma / lambda, or leaves them where
        they are, as in the published code.
    """

    learns = "a linear model a client, and how clients are related"
    sends = "the change of its b_t"
    aggregates = "sums"
    exchanges = ("server",)
    compressors = "none"
    devices = ("cpu",)
    averages_by = None
    steps_locally = True
    local_options = ()
    tasks = ("classification", "multi_label", "regression")
    columns = ("primal", "dual", "gap")
    step_option = "scale of the data"
    model_type = Linear

    def __init__(
        self,
        model: Linear,
        local: LocalSGD,
        *,
        mocha_lambda: Annotated[float, Gt(0)] = 0.01,
        sdca_fraction: Annotated[float, Gt(0), Le(1)] = 0.5,
        sigma_every: Annotated[int, Ge(1)] | None = 100,
        mocha_variant: Literal["paper", "published"] = "paper",
    ) -> None:
        self.model, self.strength = model, mocha_lambda
        self.fraction, self.sigma_every = sdca_fraction, sigma_every
        self.keeps_models = mocha_variant == "published"
        self.loss = dual_loss_of(model)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> MochaState:
        federation, p = clients.federation, self.model.n_parameters
        t = len(federation.training)
        check_memory(8.0 * t * (2 * t + 3 * p), f"mocha relates {t} clients, which")
        size = self.model.n_outputs, int(federation.n_train.max())
        duals = torch.zeros(len(clients), *size, dtype=torch.float64)
        b, sigma = duals.new_zeros(t, p), torch.eye(t, dtype=torch.float64) / t
        return MochaState(duals, b, sigma, b)

    def round(
        self, state: MochaState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> MochaState:
        if self.sigma_every and draws.round > 1 and (draws.round - 1) % self.sigma_every == 0:
            (sigma,) = channel.at_server(lambda: [relations(state.models)])  # line 11
            state = self.mixed(replace(state, sigma=sigma), torch.zeros_like(state.b), channel)
        place, p = clients.places, self.model.n_parameters
        channel.broadcast(state.b.new_empty(p + 1))  # each client gets its own w_t, rho Sigma_tt
        coupling = separability(state.sigma) * state.sigma.diagonal()[place] / self.strength
        tasks = state.duals, state.models[place], coupling, self.fraction
        duals, change = ascend(self.model, self.loss, *tasks, clients, draws)  # Alg. 1, line 7
        columns = place[:, None] * p + np.arange(p)
        sent = SparseRows(columns, channel.send(change), state.b.numel())  # line 9
        moved = channel.sum(sent, torch.ones(len(clients), dtype=torch.float64)).view_as(state.b)
        return self.mixed(replace(state, duals=duals, b=state.b + moved), moved, channel)

    def mixed(self, state: MochaState, moved: Tensor, channel: ServerChannel) -> MochaState:
        """Return the state with the models of its b, of which ``moved`` is new: line 10."""
        before, b = (state.models, moved) if self.keeps_models else (0.0, state.b)
        made = channel.at_server(lambda: [before + state.sigma @ b / self.strength])
        return replace(state, models=made[0])

    def deploy(self, state: MochaState, clients: Clients, draws: Draws) -> Predictor:
        """Client t predicts with w_t."""
        return Predictor(state.models[clients.places][:, None].to(clients.shards.train.x))

    def learnt(self, state: MochaState, exchange: Exchange) -> dict[str, Tensor]:
        """``sigma``, how clients are related, (T, T)."""
        return {"sigma": state.sigma}

    def measure(
        self, state: MochaState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """The primal and the dual objective, and their difference."""
        own = state.models[clients.places]
        means = risks_and_gains(self.model, self.loss, state.duals, own, clients)
        risk, gain = total(clients, means).tolist()
        terms = state.models, state.b, state.sigma, self.strength
        of_models, of_duals = computed_once(clients, lambda: penalties(*terms))
        primal, dual = risk + of_models, gain - of_duals
        return {"primal": primal, "dual": dual, "gap": primal - dual}

    def payload(self) -> int:
        return self.model.n_parameters
