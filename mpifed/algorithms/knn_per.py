"""kNN-Per (Marfoq et al. 2022): FedAvg, then a mix with each client's nearest neighbours.

With the global model h, whose representation phi(x) is what its last layer is given, client m
predicts with

    h_m = lambda_m kNN_m + (1 - lambda_m) h
    kNN_m(x) has p(y) proportional to the sum of exp(-d(phi(x), phi(x_i))) over those of the k
    nearest training samples of client m whose label is y

lambda_m maximises the accuracy on the client's validation samples, or is given. Training is
FedAvg's.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from mpifed.algorithms.base import Predictor, StepScale
from mpifed.algorithms.fedavg import FedAvg, FedAvgState
from mpifed.exchange.base import Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.local.scoring import best_weight
from mpifed.local.solver import LocalSGD
from mpifed.models.base import Model
from mpifed.models.heads import check_representation
from mpifed.models.neighbours import Kernel, Neighbours

GRID = 11
"""Values of lambda that are tried: 0, 0.1, ..., 1."""

WITHOUT_VALIDATION = 0.5
"""lambda of a client without validation samples."""


class KnnPer(FedAvg):
    """kNN-Per: FedAvg, mixed with the nearest neighbours among a client's training samples.

    Parameters
    ----------
    knn_k : int
        Number of neighbours.
    knn_lambda : float, optional
        Weight of the neighbours. None chooses it for each client, by its accuracy on validation
        samples (``evaluation.validation_fraction``); it is 0.5 for a client without any.
    knn_kernel : {'paper', 'published'}
        Weight of a neighbour at distance d: exp(-d), or exp(-d^2 / dimension) as in published code.
    gossip_step_scale : {'paper', 'normalised', 'none'}
        As for FedAvg.
    """

    learns = "one model, mixed with each client's neighbours"
    sends = "its model"
    tasks = ("classification", "sequence")

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        knn_k: Annotated[int, Ge(1)] = 10,
        knn_lambda: Annotated[float, Ge(0), Le(1)] | None = None,
        knn_kernel: Kernel = "paper",
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        check_representation(model)
        super().__init__(model, local, gossip_step_scale=gossip_step_scale)
        self.k, self.weight, self.kernel = knn_k, knn_lambda, knn_kernel
        self.deploys_mixtures = True

    def remarks(self, state: FedAvgState, clients: Clients, exchange: Exchange) -> list[str]:
        """Say that lambda is not chosen, where there is nothing to choose it on."""
        if self.weight is not None or clients.shards.val.counts.any():
            return []
        return [
            f"knn_lambda is {WITHOUT_VALIDATION} for all clients, which have no validation samples "
            "to choose it on; evaluation.validation_fraction sets some apart"
        ]

    def _neighbours(self, models: Tensor, clients: Clients, i: int) -> Neighbours:
        """kNN_m of the i-th client; ``models`` is (1, P) or (clients, 1, P)."""
        own = clients.shards.train.of_client(clients.rows[i])
        return Neighbours(self.model, own_of(models, i), own.x, own.y, self.k, self.kernel)

    def _chosen(self, models: Tensor, clients: Clients) -> Tensor:
        """lambda of each client, float64 (clients,)."""
        if self.weight is not None:
            return torch.full((len(clients),), self.weight, dtype=torch.float64)
        found = torch.full((len(clients),), WITHOUT_VALIDATION, dtype=torch.float64)
        grid = torch.linspace(0, 1, GRID, dtype=torch.float64)
        for i, row in enumerate(clients.rows):
            val = clients.shards.val.of_client(row)
            if len(val.x):
                parts = val.x.split(self.model.scored_together)
                shared = [self.model.shared_logits(own_of(models, i), part) for part in parts]
                local = self._neighbours(models, clients, i)(val.x)
                outputs = torch.stack([torch.cat(shared, 1)[0], local])
                found[i] = best_weight(self.model.loss, outputs, val.y, grid)
        return found

    def _mixed(self, models: Tensor, clients: Clients) -> Predictor:
        weights = self._chosen(models, clients)
        weights[torch.from_numpy(clients.shards.train.counts[clients.rows] == 0)] = 0
        mixture = torch.stack([1 - weights, weights], 1).to(models)
        return Predictor(models, mixture, beside=partial(self._neighbours, models, clients))

    def deploy(self, state: FedAvgState, clients: Clients, draws: Draws) -> Predictor:
        """h_m of each client; on its training samples each is its own nearest neighbour."""
        return self._mixed(self.local.own(state.model, state.optimizer), clients)

    def adapt(
        self, state: FedAvgState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients mix the global model with neighbours among their training samples."""
        return self._mixed(exchange.mean(state.model), clients)


def own_of(models: Tensor, i: int) -> Tensor:
    """Return the model of the i-th client, (1, P), of (1, P) or (clients, 1, P)."""
    return models if models.dim() == 2 else models[i]
