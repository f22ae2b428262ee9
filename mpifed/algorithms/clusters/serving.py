"""What methods share that learn a model for each cluster of clients."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.algorithms.base import Algorithm, Predictor
from mpifed.exchange.base import Exchange, ServerChannel
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients, Draws
from mpifed.local.scoring import train_risks
from mpifed.models.base import Model


class ByCluster(Algorithm[ServerChannel]):
    """Base class of methods with a model for each cluster."""

    exchanges = ("server",)
    aggregates = "means"
    compressors = "unbiased"
    steps_locally = True
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


def means_within(
    cluster: Tensor, rows: Tensor, weights: Tensor, clients: Clients, channel: ServerChannel
) -> Tensor:
    """Return the mean of the rows of each cluster, (clusters, ...). Collective."""
    found = []
    for label in range(int(cluster.max()) + 1):
        members = (cluster == label).numpy()
        here = members[clients.ids]
        found.append(channel.among(members).mean(rows[here], weights[here]))
    return torch.stack(found).to(rows)


def model_of_each(cluster: Tensor, models: Tensor, clients: Clients) -> Tensor:
    """Return the clusters' models on every rank, (clusters, P). Collective."""
    everyone = np.arange(len(clients.federation.hosted))
    hosted = Clients(clients.federation, clients.shards, everyone)
    labels = cluster.numpy()
    first = [int(np.argmax(labels == label)) for label in range(labels.max() + 1)]
    found = [total(hosted, models, torch.from_numpy(hosted.ids == one)) for one in first]
    return torch.cat(found).to(models)
