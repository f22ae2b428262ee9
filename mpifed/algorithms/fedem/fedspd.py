"""FedSPD (Lin, Yagan and Joe-Wong, UAI 2025, PMLR 286): a model for each cluster, by gossip.

Client i has models c_i1 ... c_iS, and each of its samples belongs to the cluster whose model has
the least loss on it: D_is, a share u_is of the client's samples. In every round a client

1. draws a cluster s with probability u_is and trains c_is on D_is,
2. sends its neighbours s, and replaces c_is by the plain mean of its own and of those of the
   neighbours that trained the same cluster,
3. finds the cluster of each sample anew.

It deploys sum_s u_is c_is, the mean of parameters, fine-tuned on all of its samples (the paper's
final phase). A round sends one model where D-FedEM sends S.

The paper's text could not be had beyond its abstract: this is from the code submitted with it,
github.com/Anonymous-Submission-for-AISTATS/FedSPD_Anonymous_Submission. There, too, samples are
split at random in round 1, when clients train and send all S models. It draws clusters so that
each has as many clients (``cluster_draw=uniform``, here one by one); that they are drawn by u_is is
assumed of the paper. Left out: the code's test, on two clients, of whether clusters have changed
places; here all clients begin with the same S models. Its minibatches are of D_is; here they are of
all samples, weighted by 1 / u_is in D_is and by 0 elsewhere, which has the same mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import one_hot

from mpifed import state
from mpifed.algorithms.fedem.expectation import mixture_weights
from mpifed.method import (
    Algorithm,
    Clients,
    Draws,
    Exchange,
    GossipChannel,
    LocalSolver,
    OptimizerState,
    Predictor,
    Requirement,
    initial_models,
)
from mpifed.model import Model, train_losses


@dataclass(frozen=True)
class FedSPDState:
    """The clients' models of each cluster, and their optimizers."""

    models: Tensor = state.shared()  # (clients, S, P)
    optimizer: OptimizerState = state.client()


class FedSPD(Algorithm[GossipChannel]):
    """FedSPD: clusters of samples; clients mix with those that train the same cluster's model.

    Parameters
    ----------
    n_clusters : int
        Number S of clusters.
    cluster_draw : {'mixture', 'uniform'}
        Whether a client trains a cluster with probability u_is, or all alike.
    tune_epochs : int
        Epochs of fine-tuning before a client's model is deployed.
    tune_lr : float, optional
        Learning rate of the fine-tuning. None is ``local.lr``, without its schedule.
    """

    requires = (
        Requirement({"local.buffers": "average"}, "whose models take their statistics along"),
        Requirement(
            {"local.reset_momentum": True},
            "whose clients train another model in every round",
            {"local.momentum": Gt(0)},
        ),
        Requirement({"local.optimizer": "sgd"}, "whose clients train another model in every round"),
    )
    aggregates = "sums"
    compressors = "none"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        n_clusters: Annotated[int, Ge(1)] = 2,
        cluster_draw: Literal["mixture", "uniform"] = "mixture",
        tune_epochs: Annotated[int, Ge(1)] = 1,
        tune_lr: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        self.model, self.local = model, local
        self.n_clusters, self.cluster_draw = n_clusters, cluster_draw
        self.tuner = local.tuner(tune_epochs, tune_lr)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedSPDState:
        count = self.n_clusters
        models = initial_models(self.model, count, clients, exchange, draws, dtype, False)
        return FedSPDState(models, self.local.init(len(clients), 1, dtype))

    def round(
        self, state: FedSPDState, clients: Clients, channel: GossipChannel, draws: Draws
    ) -> FedSPDState:
        neighbours, models = channel, state.models.clone()
        first, rows = draws.round == 1, torch.arange(len(clients))
        members = self.split_at_random(clients, draws) if first else self.members(models, clients)
        shares = mixture_weights(members.to(models), clients)
        optimizer = state.optimizer
        for step in range(self.n_clusters if first else 1):
            choice = torch.full_like(rows, step) if first else self.drawn(shares, clients, draws)
            weights = self.sample_weights(members, shares, choice, clients).to(models)
            start = models[rows, choice][:, None]
            trained, optimizer = self.local(start, state.optimizer, clients, draws, weights=weights)
            others = neighbours.may_receive()
            if not first:
                others = neighbours.alike(choice[:, None].to(models), others)
            models[rows, choice] = neighbours.mean_received(trained[:, 0], others)
        return FedSPDState(models, optimizer)

    def split_at_random(self, clients: Clients, draws: Draws) -> Tensor:
        """Return which cluster has each training sample before round 1, (S, samples)."""
        split, count = clients.shards.train, self.n_clusters
        labels = torch.zeros(len(split.y), dtype=torch.int64)
        for row, client in zip(clients.rows.tolist(), clients.ids.tolist(), strict=True):
            part, stream = split.rows_of(row), draws.stream("clusters of samples", client)
            labels[part] = torch.from_numpy(stream.integers(count, size=part.stop - part.start))
        return one_hot(labels, count).T.to(clients.device)

    def members(self, models: Tensor, clients: Clients) -> Tensor:
        """Return whether a cluster's model has the least loss on a sample, (S, samples)."""
        losses = train_losses(self.model, models, clients.shards.train, clients.rows)
        return one_hot(losses.argmin(0), self.n_clusters).T

    def drawn(self, shares: Tensor, clients: Clients, draws: Draws) -> Tensor:
        """Return the cluster that each client trains, int64 (clients,)."""
        uniform, clusters = np.full(self.n_clusters, 1 / self.n_clusters), []
        for client, mixture in zip(
            clients.ids.tolist(), shares.double().cpu().numpy(), strict=True
        ):
            p = (
                mixture / mixture.sum()
                if mixture.any() and self.cluster_draw == "mixture"
                else uniform
            )
            clusters.append(int(draws.stream("cluster", client).choice(self.n_clusters, p=p)))
        return torch.tensor(clusters, dtype=torch.int64)

    def sample_weights(
        self, members: Tensor, shares: Tensor, choice: Tensor, clients: Clients
    ) -> Tensor:
        """Return 1 / u_is for samples of the cluster that their client trains, (1, samples)."""
        split = clients.shards.train
        weights = torch.zeros(1, len(split.y), dtype=torch.float64)
        for row, cluster, client_shares in zip(
            clients.rows.tolist(), choice.tolist(), shares, strict=True
        ):
            part = split.rows_of(row)
            share = float(client_shares[cluster])
            weights[0, part] = members[cluster, part].double().cpu() / (share or 1.0)
        return weights

    def deploy(self, state: FedSPDState, clients: Clients, draws: Draws) -> Predictor:
        """Return sum_s u_is c_is of each client, fine-tuned."""
        return self.personal(state.models, clients, draws)

    def adapt(
        self, state: FedSPDState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients find the clusters of their samples by the mean models of all clients."""
        return self.personal(exchange.mean(state.models), clients, draws)

    def personal(self, models: Tensor, clients: Clients, draws: Draws) -> Predictor:
        """Return what clients make of models (S, P) or (clients, S, P)."""
        shares = mixture_weights(self.members(models, clients).to(models), clients)
        rows = models.expand(len(clients), *models.shape[-2:])
        mean = torch.zeros_like(rows[:, :1])
        for cluster in range(self.n_clusters):
            mean += shares[:, cluster, None, None] * rows[:, cluster : cluster + 1]
        tuned = self.tuner.tuned(mean, clients, draws)
        return Predictor(tuned, results={"clusters": shares})

    def payload(self) -> int:
        return self.model.n_parameters + 1
