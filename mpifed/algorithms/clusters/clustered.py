"""Clustered federated learning (Sattler, Mueller and Samek 2021): clusters that split in two.

All clients begin in one cluster. In each round client i trains the model of its cluster c and sends
its update D_i. Where the mean update is small while single ones are not, clients of c pull in
different directions; c is then split such that updates across are least similar:

    s_ij = <D_i, D_j> / (||D_i|| ||D_j||)
    if ||mean_{i in c} D_i|| < eps1 and max_{i in c} ||D_i|| > eps2:
        c1, c2 = argmin_{c1 u c2 = c} max_{i in c1, j in c2} s_ij
    theta_c <- theta_c + mean_{i in c} D_i

Here theta_c is the model of cluster c, and c1 u c2 the union of c1 and c2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor

from mpifed import state
from mpifed.algorithms.clusters.ifca import ByCluster
from mpifed.method import (
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
from mpifed.model import Model, row_norms

Linkage = Literal["complete", "single"]
Norm = Literal["euclidean", "maximum"]
# Added to products of norms, so that an update of zeros is similar to none.
TINY = 1e-12


@dataclass(frozen=True)
class SplitRule:
    """Options of the same names of ``Clustered``, which say when a cluster splits."""

    eps1: float
    eps2: float
    linkage: Linkage
    gamma_max: float
    update_norm: Norm

    def __call__(
        self,
        means: Tensor,
        updates: Tensor,
        cluster: Tensor,
        clients: Clients,
        channel: ServerChannel,
    ) -> Tensor:
        """Return the clusters after the splits of a round. Collective."""
        is_euclidean = self.update_norm == "euclidean"
        norms = channel.gather(row_norms(updates) if is_euclidean else updates.abs().amax(1))

        def disagreeing() -> list[Tensor]:
            small = (row_norms(means) < self.eps1).cpu()
            members = [(cluster == label).numpy() for label in range(len(means))]
            large = [norms[one].max() > self.eps2 and one.sum() > 2 for one in members]
            return [(small & torch.tensor(large)).nonzero()[:, 0]]

        after = cluster.clone()
        for label in channel.at_server(disagreeing)[0].tolist():
            members = (cluster == label).numpy()
            products = channel.among(members).products(updates[members[clients.ids]])
            (leaving,) = channel.at_server(partial(self.leaving, products.cpu()))
            after[torch.from_numpy(np.flatnonzero(members))[leaving]] = after.max() + 1
        return after

    def leaving(self, products: Tensor) -> list[Tensor]:
        """Return which clients of a cluster leave it, int64 positions; none if it stays whole."""
        second, across = bipartition(products, self.linkage)
        apart = self.gamma_max < math.sqrt(max(0.0, (1 - across) / 2))
        return [(second & apart).nonzero()[:, 0]]


def bipartition(products: Tensor, linkage: Linkage) -> tuple[Tensor, float]:
    """Split clients in two by the cosine similarities of their updates."""
    norms = products.diagonal().sqrt()
    similarity = (products / (norms[:, None] * norms + TINY)).numpy()
    distances = squareform(1.0 - similarity, checks=False).clip(min=0)
    parts = hierarchy.cut_tree(hierarchy.linkage(distances, linkage), 2)[:, 0]
    second = parts != parts[0]
    return torch.from_numpy(second), float(similarity[np.ix_(~second, second)].max())


NonNegative = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class ClusteredState:
    """Who is in which cluster, and the clusters' models."""

    models: Tensor = state.client()
    cluster: Tensor = state.server()
    optimizer: OptimizerState = state.client()


class Clustered(ByCluster):
    """Clustered FL: clusters of clients, each with a model, that split where updates disagree.

    Parameters
    ----------
    eps1 : float
        A cluster is split only if its mean update has a smaller norm; 0 never splits.
    eps2 : float
        A cluster is split only if the update of one of its clients has a larger norm.
    warm_up : int
        First rounds in which no cluster is split.
    linkage : {'complete', 'single'}
        How a cluster is split: as in the published code, or by the paper's criterion exactly.
    gamma_max : float
        Bound on the relative error of clients' gradients. A cluster is split only if this is below
        sqrt((1 - s) / 2), where s is the largest similarity across.
    client_weights : {'uniform', 'samples'}
        Whether clients of a cluster count alike in its mean update, or by their samples.
    update_norm : {'euclidean', 'maximum'}
        Norm of a client's update, compared with ``eps2``. 'maximum' is its largest entry.
    """

    requires = (
        *ByCluster.requires,
        Requirement({"participation:inclusion": 1.0}, "which needs all clients"),
    )
    columns = ("n_clusters",)

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        eps1: NonNegative = 0.4,
        eps2: NonNegative = 1.6,
        warm_up: Annotated[int, Ge(0)] = 20,
        linkage: Linkage = "complete",
        gamma_max: Annotated[float, Ge(0), Le(1)] = 0.0,
        client_weights: Literal["uniform", "samples"] = "uniform",
        update_norm: Norm = "euclidean",
    ) -> None:
        self.model, self.local = model, local
        self.split, self.warm_up = SplitRule(eps1, eps2, linkage, gamma_max, update_norm), warm_up
        self.by_samples = client_weights == "samples"

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> ClusteredState:
        model = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        cluster = -torch.from_numpy(clients.federation.unseen.astype(np.int64))
        optimizer = self.local.init(len(clients), 1, dtype)
        return ClusteredState(model.repeat(len(clients), 1, 1), cluster, optimizer)

    def round(
        self, state: ClusteredState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> ClusteredState:
        start, cluster = channel.scatter(state.models), state.cluster
        trained, optimizer = self.local(start, state.optimizer, clients, draws)
        updates = channel.send(trained - start)  # D_i
        weights = clients.average_weights(self.by_samples)
        means = means_within(cluster, updates, weights, clients, channel)
        if draws.round > self.warm_up:
            moved, cluster_means = (
                rows.flatten(1)[:, : self.local.n_trained] for rows in (updates, means)
            )
            cluster = self.split(cluster_means, moved, cluster, clients, channel)
            if len(means) <= int(cluster.max()):
                means = means_within(cluster, updates, weights, clients, channel)
        return ClusteredState(start + means[cluster[clients.ids]], cluster, optimizer)

    def deploy(self, state: ClusteredState, clients: Clients, draws: Draws) -> Predictor:
        models = self.local.with_statistics(state.models, state.optimizer)
        return Predictor(models, results={"cluster": state.cluster[clients.ids]})

    def models_of(self, state: ClusteredState, clients: Clients) -> Tensor:
        """Return the clusters' models on every rank, (clusters, P). Collective."""
        return model_of_each(state.cluster, state.models, clients)

    def measure(
        self, state: ClusteredState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """``n_clusters``, the number of clusters."""
        return {"n_clusters": int(state.cluster.max()) + 1}


def means_within(
    cluster: Tensor, rows: Tensor, weights: Tensor, clients: Clients, channel: ServerChannel
) -> Tensor:
    """Return the mean of the rows of each cluster, (clusters, ...). Collective."""
    means = []
    for label in range(int(cluster.max()) + 1):
        members = (cluster == label).numpy()
        hosted = members[clients.ids]
        means.append(channel.among(members).mean(rows[hosted], weights[hosted]))
    return torch.stack(means).to(rows)


def model_of_each(cluster: Tensor, models: Tensor, clients: Clients) -> Tensor:
    """Return the clusters' models on every rank, (clusters, P). Collective."""
    everyone = np.arange(len(clients.federation.hosted))
    hosted = Clients(clients.federation, clients.shards, everyone)
    labels = cluster.numpy()
    first = [int(np.argmax(labels == label)) for label in range(labels.max() + 1)]
    models_by_cluster = [hosted.total(models, torch.from_numpy(hosted.ids == one)) for one in first]
    return torch.cat(models_by_cluster).to(models)
