"""IFCA (Ghosh, Chung, Yin and Ramchandran 2020, Algorithm 1): clients choose among K models.

    line 7:  j_i = argmin_j F_i(theta_j), the cluster of client i in this round
    models:     theta_j <- sum_{i in S_j} w_i theta_i / sum_{i in S_j} w_i
    gradients:  theta_j <- theta_j - gamma sum_{i in S_j} w_i g_i / sum_{i in M} w_i

M are the participants of a round, S_j those of them with j_i = j. F_i is the training loss, theta_i
what local steps make of theta_{j_i}, gamma g_i its move theta_{j_i} - theta_i, and w_i = n_i / n,
alike for all in the paper, where clients have as many samples.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import one_hot

from mpifed import state
from mpifed.method import (
    Algorithm,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    Requirement,
    ServerChannel,
    initial_models,
)
from mpifed.model import Model, train_risks


class ByCluster(Algorithm[ServerChannel]):
    """Base class of methods with a model for each cluster."""

    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement(
            {"exchange.average_over": "participants", "participation.weights": "renormalised"},
            "which averages participants",
        ),
    )
    aggregates = "means"
    compressors = "unbiased"
    model: Model

    @abstractmethod
    def models_of(self, state: Any, clients: Clients) -> Tensor:
        """Return the clusters' models on every rank, (clusters, P). Collective."""

    def adapt(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Predictor:
        """Unseen clients deploy the cluster's model that has the least loss on their samples."""
        models = self.models_of(state, clients)
        chosen = best_fitting(self.model, models, clients)
        return Predictor(models[chosen][:, None], results={"cluster": chosen})


def best_fitting(model: Model, models: Tensor, clients: Clients) -> Tensor:
    """Return which of K models has the least training loss of each client."""
    risks = train_risks(model, models, clients.shards.train, clients.rows)
    return risks.argmin(1).to(models.device)


@dataclass(frozen=True)
class IfcaState:
    """The clusters' models and the clients' optimizers."""

    models: Tensor = state.shared()
    optimizer: OptimizerState = state.client()


class Ifca(ByCluster):
    """IFCA: K models, of which each client trains the one that fits it best.

    Parameters
    ----------
    n_clusters : int
        Number K of models.
    averaging : {'models', 'gradients'}
        Whether a model becomes the mean of what its clients made of it, or moves by the mean over
        all participants of what its clients would change, which is slower for small clusters. With
        ``local.steps=1`` this is the paper's step along gradients.
    """

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        n_clusters: Annotated[int, Ge(1)] = 3,
        averaging: Literal["models", "gradients"] = "models",
    ) -> None:
        self.model, self.local = model, local
        self.n_clusters, self.averaging = n_clusters, averaging

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> IfcaState:
        count = self.n_clusters
        models = initial_models(self.model, count, clients, exchange, draws, dtype, False)
        return IfcaState(models, self.local.init(len(clients), 1, dtype))

    def round(
        self, state: IfcaState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> IfcaState:
        received = channel.broadcast(state.models)  # line 3
        choice = self.choices(state, clients)  # line 7
        start = received[torch.arange(len(clients)), choice][:, None]
        trained, optimizer = self.local(start, state.optimizer, clients, draws)  # line 8
        sent = channel.send(choice[:, None].to(trained), uncompressed=True)  # s_i, line 9
        labels = channel.gather(sent[:, 0])
        models = []
        for label, before in enumerate(state.models.split(1)):  # line 10
            members, is_member = channel.among(labels == label), choice == label
            models.append(
                members.average(trained[is_member], clients.weights[is_member.cpu()], before)
            )
        means = torch.cat(models)
        if self.averaging == "models":
            return IfcaState(means, optimizer)
        masses = channel.sum(one_hot(choice, self.n_clusters).double(), clients.weights)
        shares = (masses / masses.sum())[:, None].to(means)
        return IfcaState(state.models + shares * (means - state.models), optimizer)

    def choices(self, state: IfcaState, clients: Clients) -> Tensor:
        """Return the model with the least training loss of each client, int64 (clients,)."""
        models = self.local.with_statistics(state.models, state.optimizer)
        return best_fitting(self.model, models, clients)

    def deploy(self, state: IfcaState, clients: Clients, draws: Draws) -> Predictor:
        """Every client deploys the model that it would train."""
        choice = self.choices(state, clients)
        models = self.local.with_statistics(state.models, state.optimizer)
        rows = models.expand(len(clients), *state.models.shape)[torch.arange(len(clients)), choice]
        return Predictor(rows[:, None], results={"cluster": choice})

    def models_of(self, state: IfcaState, clients: Clients) -> Tensor:
        """Return theta, (K, P)."""
        return state.models

    def payload(self) -> int:
        return self.model.n_parameters + 1
