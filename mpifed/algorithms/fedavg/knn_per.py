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
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.method import Clients, Draws, Exchange, LocalSolver, Predictor, StepScale
from mpifed.model import Model, best_weight, representation

Kernel = Literal["paper", "published"]
# Distances that are held at once.
DISTANCES = 1 << 22

# Keys beyond the k nearest whose distances are computed from differences.
CANDIDATES = 4

# Keys are all compared where they are fewer than so many times the candidates.
FEW = 6

# Numbers of candidates that are copied at once.
COPIED = 1 << 20

# Values of lambda that are tried: 0, 0.1, ..., 1.
GRID = 11

# lambda of a client without validation samples.
WITHOUT_VALIDATION = 0.5


class NearestNeighbours(nn.Module):
    """Label frequencies among the k nearest of a client's samples, weighed by their distance."""

    row: Tensor
    keys: Tensor
    values: Tensor

    def __init__(
        self, model: Model, row: Tensor, x: Tensor, y: Tensor, k: int = 10, kernel: Kernel = "paper"
    ) -> None:
        super().__init__()
        self.model, self.kernel = model, kernel
        outputs = model.shared_logits(row, x[:1]).shape[-1]
        self.binary, self.labels = outputs == 1, max(outputs, 2)
        self.register_buffer("row", row.detach().clone())
        self.register_buffer("keys", self._represented(x).flatten(0, -2))
        self.register_buffer("values", y.reshape(-1).clone())
        self.k = min(k, len(self.keys))

    def _represented(self, x: Tensor) -> Tensor:
        size = self.model.scored_together
        parts = [representation(self.model, self.row, part)[0] for part in x.split(size)]
        return torch.cat(parts).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities of the labels; for two labels the logit of label 1."""
        points = self._represented(x)
        flat = points.flatten(0, -2)
        size = max(1, DISTANCES // max(1, len(self.keys)))
        shares = torch.cat([self._shares(part) for part in flat.split(size)])
        logs = shares.clamp(min=torch.finfo(shares.dtype).tiny).log()
        if self.binary:
            return logs[:, 1:] - logs[:, :1]
        return logs.view(*points.shape[:-1], self.labels)

    def _shares(self, points: Tensor) -> Tensor:
        """The probabilities of the labels, (points, labels)."""
        nearest, which = nearest_keys(points, self.keys, self.k)
        if self.kernel == "published":
            nearest = nearest.square() / points.shape[-1]
        weights = torch.softmax(-nearest, -1)
        shares = weights.new_zeros(len(points), self.labels)
        return shares.scatter_add_(1, self.values[which], weights)


def nearest_keys(points: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the distances and columns of the k nearest keys of each point."""
    count = k + CANDIDATES
    if len(keys) < FEW * count:
        distances = _distances(points, keys)
        columns = nearest_columns(distances, k)
        return distances.gather(1, columns), columns
    columns, proven = _candidates(points, keys, k, count)
    near, which = points.new_empty(len(points), k), columns.new_empty(len(points), k)
    for part in torch.arange(len(points), device=points.device).split(
        max(1, COPIED // (count * keys.shape[1]))
    ):
        distances = _distances(points[part, None], keys[columns[part]]).squeeze(1)
        nearest = nearest_columns(distances, k)
        near[part], which[part] = distances.gather(1, nearest), columns[part].gather(1, nearest)
    if not proven.all():
        distances = _distances(points[~proven], keys)
        nearest = nearest_columns(distances, k)
        near[~proven], which[~proven] = distances.gather(1, nearest), nearest
    return near, which


def _distances(points: Tensor, keys: Tensor) -> Tensor:
    return torch.cdist(points, keys, compute_mode="donot_use_mm_for_euclid_dist")


def _candidates(points: Tensor, keys: Tensor, k: int, count: int) -> tuple[Tensor, Tensor]:
    """``count`` ascending columns of each point, and whether its k nearest keys are among them."""
    point_squares, others = points.square().sum(1), keys.square().sum(1)
    squares = torch.addmm(others, points, keys.T, alpha=-2)
    near, columns = squares.topk(count, dim=1, largest=False)
    # d terms rounded one by one, times (|x| + |y|)^2 <= 2 |x|^2 + 2 |y|^2; twice that is allowed.
    unit, terms = torch.finfo(points.dtype), points.shape[1] + 8
    error = 4 * terms * (unit.eps * (point_squares + others.max()) + unit.tiny)
    inside = (point_squares + near[:, k - 1] + error).clamp(min=0).sqrt()
    outside = (point_squares + near[:, -1] - error).clamp(min=0).sqrt()
    proven = outside * (1 - terms * unit.eps) > inside * (1 + terms * unit.eps)
    return columns.sort(dim=1).values, proven


def nearest_columns(distances: Tensor, k: int) -> Tensor:
    """Return the columns of the k smallest numbers of each row, ascending, int64 (rows, k)."""
    smallest, which = distances.topk(min(k + 1, distances.shape[1]), dim=-1, largest=False)
    which = which[:, :k]
    # Which of equal numbers topk takes is not said; a sort of these rows alone says it.
    tied = torch.zeros(len(distances), dtype=torch.bool, device=distances.device)
    if smallest.shape[1] > k:
        tied = ~(smallest[:, k - 1] < smallest[:, k])
    if tied.any():
        which[tied] = distances[tied].argsort(dim=-1, stable=True)[:, :k]
    return which.sort(dim=-1).values


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

    tasks = ("classification", "sequence")
    columns = ("nll",)

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        knn_k: Annotated[int, Ge(1)] = 10,
        knn_lambda: Annotated[float, Ge(0), Le(1)] | None = None,
        knn_kernel: Kernel = "paper",
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        super().__init__(model, local, gossip_step_scale=gossip_step_scale)
        self.k, self.weight, self.kernel = knn_k, knn_lambda, knn_kernel

    def remarks(self, state: FedAvgState, clients: Clients, exchange: Exchange) -> list[str]:
        """Say that lambda is not chosen, where there is nothing to choose it on."""
        if self.weight is not None or clients.shards.val.counts.any():
            return []
        return [
            f"knn_lambda is {WITHOUT_VALIDATION} for all clients, which have no validation samples "
            "to choose it on; evaluation.validation_fraction sets some apart"
        ]

    def _neighbours(self, models: Tensor, clients: Clients, i: int) -> NearestNeighbours:
        """kNN_m of the i-th client; ``models`` is (1, P) or (clients, 1, P)."""
        samples = clients.shards.train.of_client(clients.rows[i])
        return NearestNeighbours(
            self.model, own_of(models, i), samples.x, samples.y, self.k, self.kernel
        )

    def _chosen(self, models: Tensor, clients: Clients) -> Tensor:
        """lambda of each client, float64 (clients,)."""
        if self.weight is not None:
            return torch.full((len(clients),), self.weight, dtype=torch.float64)
        chosen = torch.full((len(clients),), WITHOUT_VALIDATION, dtype=torch.float64)
        grid = torch.linspace(0, 1, GRID, dtype=torch.float64)
        for i, row in enumerate(clients.rows):
            val = clients.shards.val.of_client(row)
            if len(val.x):
                parts = val.x.split(self.model.scored_together)
                shared = [self.model.shared_logits(own_of(models, i), part) for part in parts]
                local = self._neighbours(models, clients, i)(val.x)
                outputs = torch.stack([torch.cat(shared, 1)[0], local])
                chosen[i] = best_weight(self.model.loss, outputs, val.y, grid)
        return chosen

    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Predictor:
        return self._mixed(self.local.with_statistics(state.model, state.optimizer), clients)

    def adapt(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Predictor:
        return self._mixed(exchange.mean(state.model), clients)

    def _mixed(self, models: Tensor, clients: Clients) -> Predictor:
        """h_m of each client; on its training samples each is its own nearest neighbour."""
        weights = self._chosen(models, clients)
        weights[torch.from_numpy(clients.shards.train.counts[clients.rows] == 0)] = 0
        mixture = torch.stack([1 - weights, weights], 1).to(models)
        return Predictor(
            models, mixture, local_predictor=partial(self._neighbours, models, clients)
        )


def own_of(models: Tensor, i: int) -> Tensor:
    """Return the model of the i-th client, (1, P), of (1, P) or (clients, 1, P)."""
    return models if models.dim() == 2 else models[i]
