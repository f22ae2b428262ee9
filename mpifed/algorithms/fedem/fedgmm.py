"""FedGMM (Wu et al. 2023): a mixture of joint distributions of inputs and labels.

Client c has weights pi_c(m1, m2); M1 Gaussians of inputs and M2 conditional models are shared:

    p_c(x, y) = sum_{m1, m2} pi_c(m1, m2) N(x; mu_m1, Sigma_m1) p(y | x; theta_m2)

E-step of client c, for each of its n_c samples i, with the loss l = -log p(y | x):
    q_i(m1, m2) proportional to pi_c(m1, m2) N(x_i; mu_m1, Sigma_m1) exp(-l(theta_m2; s_i))
M-step, with r_i(m1) = sum_m2 q_i(m1, m2):
    pi_c(m1, m2) = mean_i q_i(m1, m2)
    theta_m2     = local steps on the loss weighed by sum_m1 q_i(m1, m2), averaged by n_c
    mu_m1        = sum_{c, i} r_i(m1) x_i / sum_{c, i} r_i(m1)
    Sigma_m1     = sum_{c, i} r_i(m1) (x_i - mu_m1) (x_i - mu_m1)ᵀ / sum_{c, i} r_i(m1)

The last two follow from means over clients of r, r x and r x xᵀ, which is what clients send. With
M1 = 1 this is FedEM; with M2 = 1 besides, FedAvg.
(Means over clients of covariances would not give the covariance of all samples.) Every call on
samples has those of one client only, so that its numbers do not depend on others of its rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.fedem.expectation import (
    check_floor,
    first_mixture,
    fitted_mixture_of_losses,
    mixture_weights,
    posterior_of_losses,
)
from mpifed.dataset import Shards, Split, check_memory, stream
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
    to_server,
)
from mpifed.model import Model, samples_of, train_losses

# Samples of a client that are worked on at once.
TOGETHER = 4096

# Weight of a Gaussian that has no samples.
LEAST_WEIGHT = 1e-12


@dataclass(frozen=True)
class Representation:
    """z of an input x: x itself, or x in random directions where it has more numbers. The
    directions are independent and normal with variance 1 / numbers (Dasgupta 1999): distances are
    kept but for a factor, and Gaussians become rounder.
    """

    dimension: int | None
    seed: int

    def size(self, inputs: int) -> int:
        """Return d for inputs of so many numbers."""
        return inputs if self.dimension is None else min(inputs, self.dimension)

    def __call__(self, x: Tensor) -> Tensor:
        """Return z of a client's inputs, (B, *input_shape) to (B, d)."""
        flat = x.flatten(1)
        inputs = flat.shape[1]
        if self.size(inputs) == inputs:
            return flat
        return flat @ _directions(self.seed, inputs, self.size(inputs)).to(flat)

    def of_all(self, split: Split) -> Tensor:
        """Return (1, z) of all samples of a split, as columns, (1 + d, samples)."""
        size = self.size(math.prod(split.x.shape[1:]))
        columns = split.x.new_ones(1 + size, len(split.x))
        for row in range(len(split.counts)):
            for part in samples_of(split, row, TOGETHER):
                columns[1:, part] = self(split.x[part]).T
        return columns


class RepresentedShards:
    """``Representation.of_all`` of training samples, kept until those of other shards are asked."""

    def __init__(self) -> None:
        self._cache: tuple[Shards, Tensor] | None = None

    def __call__(self, representation: Representation, shards: Shards) -> Tensor:
        """Return (1, z) of all training samples, as columns, (1 + d, samples)."""
        if self._cache is None or self._cache[0] is not shards:
            self._cache = shards, representation.of_all(shards.train)
        return self._cache[1]


@lru_cache(maxsize=2)
def _directions(seed: int, inputs: int, dimension: int) -> Tensor:
    drawn = stream(seed, "directions").standard_normal((inputs, dimension))
    return torch.from_numpy(drawn / math.sqrt(inputs))


def mean_statistics(
    columns: Tensor, r: Tensor, split: Split, rows: np.ndarray, full: bool
) -> Tensor:
    """Return each client's means of the statistics."""
    weights, size, count = r.double(), len(columns), len(r)
    shape = (count * size, size) if full else (count, 2 * size - 1)
    sums = weights.new_zeros(len(rows), *shape)
    for i, row in enumerate(rows):
        for part in samples_of(split, row, TOGETHER):
            block = columns[:, part].double()
            if full:
                sums[i].addmm_((weights[:, None, part] * block).flatten(0, 1), block.T)
            else:
                sums[i].addmm_(weights[:, part], torch.cat([block, block[1:].square()]).T)
    if full:  # sum r (1, z) (1, z)ᵀ has sum r and sum r z in its first row
        products = sums.view(len(rows), count, size, size)
        sums = torch.cat([products[:, :, 0], products[:, :, 1:, 1:].flatten(2)], 2)
    counts = torch.from_numpy(split.counts[rows]).clamp(min=1).to(sums)
    return sums / counts[:, None, None]


def width_of(d: int, full: bool) -> int:
    """Return how many statistics a Gaussian in d dimensions has."""
    return 1 + d + (d * d if full else d)


def statistics_at(means: Tensor, variances: Tensor, full: bool) -> Tensor:
    """Return the statistics of M Gaussians of equal weights with the same diagonal covariance."""
    second = means.square() + variances
    if full:
        second = (means[:, :, None] * means[:, None] + torch.diag(variances)).flatten(1)
    return torch.cat([torch.ones_like(means[:, :1]), means, second], 1) / len(means)


@dataclass(frozen=True)
class Gaussians:
    """M densities, with covariances C_m."""

    factors: Tensor
    offsets: Tensor
    log_scales: Tensor

    def distances(self, z: Tensor) -> Tensor:
        """Return the squared Mahalanobis distances of a client's z: (d, B) to (M, B)."""
        if self.factors.dim() == 3:
            white = torch.addmm(self.offsets.view(-1, 1), self.factors.flatten(0, 1), z)
        else:
            white = torch.addcmul(self.offsets[:, :, None], self.factors[:, :, None], z)
        return white.square_().view(*self.offsets.shape, -1).sum(1)

    def log_densities(self, distances: Tensor) -> Tensor:
        """Return log N(z; m) less the largest over m, of ``distances`` (M, B), which are lost."""
        logs = distances.mul_(-0.5).add_(self.log_scales[:, None])
        return logs.sub_(logs.amax(0))


def gaussians_of(statistics: Tensor, full: bool, floor: float, dtype: torch.dtype) -> Gaussians:
    """Return the Gaussians with given statistics: the M-step."""
    n_moments = statistics.shape[1] - 1
    d = (math.isqrt(4 * n_moments + 1) - 1) // 2 if full else n_moments // 2
    weights, first, second = statistics.split([1, d, n_moments - d], 1)
    weights = weights.clamp(min=LEAST_WEIGHT)
    means, moments = first / weights, second / weights
    if full:
        covariances = moments.unflatten(1, (d, d)) - means[:, :, None] * means[:, None]
        values, vectors = torch.linalg.eigh((covariances + covariances.mT) / 2)
        values = values.clamp(min=floor)
        factors = values.rsqrt()[:, :, None] * vectors.mT
        offsets = -(factors @ means[:, :, None])[..., 0]
    else:
        values = (moments - means.square()).clamp(min=floor)
        factors = values.rsqrt()
        offsets = -factors * means
    arrays = (factors, offsets, -0.5 * torch.log(values).sum(1))
    return Gaussians(*(part.to(dtype) for part in arrays))


@dataclass(frozen=True)
class Gate:
    """Weights of components on an input: p(m2 | x) under a client's joint mixture."""

    gaussians: Gaussians
    representation: Representation
    mixture: Tensor

    def __call__(self, client: int, x: Tensor) -> Tensor:
        """Return sum_m1 pi(m1, m2) N(x; m1), with sum 1 over m2: (B, *input_shape) to (M2, B)."""
        z = self.representation(x).T
        densities = self.gaussians.log_densities(self.gaussians.distances(z))
        joint = torch.log(self.mixture[client])[:, :, None] + densities[:, None]
        shares = torch.exp(joint - joint.amax((0, 1))).sum(0)
        return shares / shares.sum(0)


def no_statistics(
    clients: Clients, count: int, representation: Representation, full: bool
) -> Tensor:
    """Return zeros for the statistics of ``count`` Gaussians, if there is memory for those sent."""
    inputs = math.prod(clients.shards.train.x.shape[1:])
    width = width_of(representation.size(inputs), full)
    check_memory(
        8.0 * len(clients) * count * width,
        f"algorithm.gmm_dimension is {representation.dimension}, which with {count} Gaussians",
    )
    return torch.zeros(count, width, dtype=torch.float64, device=clients.device)


def first_statistics(
    columns: Tensor, clients: Clients, exchange: Exchange, draws: Draws, count: int, full: bool
) -> Tensor:
    """Return statistics of Gaussians around all training inputs. Collective; booked."""
    federation, train = clients.federation, clients.shards.train
    seen = np.flatnonzero(~federation.unseen[clients.ids])
    training = Clients(federation, clients.shards, clients.rows[seen])
    channel = to_server(exchange.at(0, ~federation.unseen))
    rows = mean_statistics(columns, columns[:1], train, training.rows, full=False)
    weighed = channel.sum(channel.send(rows, uncompressed=True), training.weights)[0]
    mean, square = weighed[1:].chunk(2)
    variances = (square - mean.square()).clamp(min=0)
    drawn = draws.stream("gaussians").standard_normal((count, len(mean)))
    means = mean + variances.sqrt() * torch.from_numpy(drawn).to(mean)
    return statistics_at(means, variances, full)


def pair_losses(
    model: Model, components: Tensor, gaussians: Gaussians, columns: Tensor, clients: Clients
) -> Tensor:
    """Return l(theta_m2; s) - log N(x; m1) of every training sample and pair (m1, m2)."""
    train = clients.shards.train
    losses = train_losses(model, components, train, clients.rows)
    distances = losses.new_zeros(len(gaussians.log_scales), losses.shape[1])
    for row in clients.rows:
        for part in samples_of(train, row, TOGETHER):
            distances[:, part] = gaussians.distances(columns[1:, part])
    return (losses - gaussians.log_densities(distances)[:, None]).flatten(0, 1)


def predictor(
    models: Tensor, pairs: Tensor, gaussians: Gaussians, representation: Representation
) -> Predictor:
    """Return p(y | x) of joint distributions, in which the input weighs the components."""
    gate = Gate(gaussians, representation, pairs) if min(pairs.shape[1:]) > 1 else None
    return Predictor(models, pairs.sum(1), {"joint_mixture": pairs}, gate)


@dataclass(frozen=True)
class FedGMMState:
    """Components, Gaussians, mixture weights and the clients' optimizers."""

    components: Tensor = state.shared()
    statistics: Tensor = state.server()
    mixture: Tensor = state.client()
    optimizer: OptimizerState = state.client()


class FedGMM(Algorithm[ServerChannel]):
    """FedGMM: Gaussians of inputs and components of labels, mixed jointly by every client.

    Parameters
    ----------
    n_components : int
        Number M2 of conditional models.
    n_gaussians : int
        Number M1 of Gaussians.
    covariance : {'full', 'diagonal'}
        Form of the covariances.
    covariance_floor : float
        Least eigenvalue of a covariance.
    gmm_dimension : int, optional
        Inputs of more numbers are represented by so many random projections, on which the Gaussians
        are. None takes all inputs as they are.
    mixture_init : {'random', 'uniform'}
        First mixture weights: drawn from the flat Dirichlet distribution, or all equal.
    mixture_floor : float
        Least mixture weight; those below it are raised before the weights are normalised.
    unseen_e_steps : int, optional
        E-steps that fit the mixture weights of an unseen client, from uniform ones. None is until
        they converge.
    """

    requires = (
        Requirement(
            {"participation.weights": "renormalised"},
            "which takes covariances from averages of moments",
        ),
    )
    aggregates = "sums"
    tasks = ("classification", "multi_label", "regression")

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        n_components: Annotated[int, Ge(1)] = 3,
        n_gaussians: Annotated[int, Ge(1)] = 3,
        covariance: Literal["full", "diagonal"] = "full",
        covariance_floor: Annotated[float, Gt(0)] = 1e-3,
        gmm_dimension: Annotated[int, Ge(1)] | None = 16,
        mixture_init: Literal["random", "uniform"] = "random",
        mixture_floor: Annotated[float, Ge(0), Lt(1)] = 0.0,
        unseen_e_steps: Annotated[int, Ge(1)] | None = 1,
    ) -> None:
        self.shape, self.n_pairs = (n_gaussians, n_components), n_gaussians * n_components
        check_floor(mixture_floor, self.n_pairs, "(n_gaussians n_components)")
        self.model, self.local = model, local
        self.columns = ("nll",) if n_components > 1 else ()
        self.full, self.covariance_floor = covariance == "full", covariance_floor
        self.gmm_dimension, self.mixture_init = gmm_dimension, mixture_init
        self.mixture_floor, self.unseen_e_steps = mixture_floor, unseen_e_steps
        self.represented = RepresentedShards()

    def representation(self, draws: Draws) -> Representation:
        """Return what the Gaussians are over."""
        return Representation(self.gmm_dimension, draws.seed)

    def gaussians(self, state: FedGMMState) -> Gaussians:
        """Return mu and Sigma."""
        dtype = state.components.dtype
        return gaussians_of(state.statistics, self.full, self.covariance_floor, dtype)

    def payload(self) -> int:
        """Return the numbers of the models; how many moments go along depends on the data."""
        return self.shape[1] * self.model.n_parameters

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedGMMState:
        m1, m2 = self.shape
        components = initial_models(self.model, m2, clients, exchange, draws, dtype, False)
        statistics = no_statistics(clients, m1, self.representation(draws), self.full)
        mixture = first_mixture(clients, draws, self.n_pairs, self.mixture_init, dtype)
        return FedGMMState(
            components, statistics, mixture, self.local.init(len(clients), m2, dtype)
        )

    def prepare(
        self, state: FedGMMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FedGMMState:
        """Place the Gaussians among all inputs. Collective."""
        columns = self.represented(self.representation(draws), clients.shards)
        first = first_statistics(columns, clients, exchange, draws, self.shape[0], self.full)
        return replace(state, statistics=first)

    def round(
        self, state: FedGMMState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedGMMState:
        start, before = channel.broadcast(state.components), channel.broadcast(state.statistics)
        models = self.local.with_statistics(state.components, state.optimizer)
        columns = self.represented(self.representation(draws), clients.shards)
        losses = pair_losses(self.model, models, self.gaussians(state), columns, clients)
        q = posterior_of_losses(losses, state.mixture, clients)
        mixture = mixture_weights(q, clients, self.mixture_floor)
        joint = q.unflatten(0, self.shape)
        of_labels, of_inputs = (reduce(torch.add, joint.unbind(axis)) for axis in (0, 1))
        trained, optimizer = self.local(start, state.optimizer, clients, draws, weights=of_labels)
        components = channel.average(trained, clients.weights, before=state.components)
        moments = mean_statistics(columns, of_inputs, clients.shards.train, clients.rows, self.full)
        # Whole: a covariance of compressed moments may be none.
        moves = channel.mean(channel.send(moments - before, uncompressed=True), clients.weights)
        return FedGMMState(components, state.statistics + moves, mixture, optimizer)

    def deploy(self, state: FedGMMState, clients: Clients, draws: Draws) -> Predictor:
        """p(y | x) of the joint distribution: the weights of components depend on the input."""
        models = self.local.with_statistics(state.components, state.optimizer)
        pairs, gaussians = state.mixture.unflatten(1, self.shape), self.gaussians(state)
        return predictor(models, pairs, gaussians, self.representation(draws))

    def adapt(
        self, state: FedGMMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients fit their mixture weights, which without samples are uniform."""
        representation, gaussians = self.representation(draws), self.gaussians(state)
        columns = self.represented(representation, clients.shards)
        losses = pair_losses(self.model, state.components, gaussians, columns, clients)
        steps, floor = self.unseen_e_steps, self.mixture_floor
        mixture = fitted_mixture_of_losses(losses, clients, steps, floor)
        pairs = mixture.unflatten(1, self.shape)
        return predictor(state.components, pairs, gaussians, representation)
