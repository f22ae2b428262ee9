"""Gaussians over inputs, by their sufficient statistics.

With the posterior probability r_m(x) of Gaussian m, its statistics are means over samples of

    r_m(x),   r_m(x) z,   r_m(x) z zᵀ   (of its diagonal where covariances are diagonal)

for the representation z of the input x. Means over clients of these give the mean and covariance of
all their samples, which means over clients of covariances would not. Every call on samples has
those of one client only, so that a client's numbers do not depend on the others of its rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Shards, Split
from mpifed.local.scoring import samples_of
from mpifed.random import stream

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
        found = split.x.new_ones(1 + size, len(split.x))
        for row in range(len(split.counts)):
            for part in samples_of(split, row, TOGETHER):
                found[1:, part] = self(split.x[part]).T
        return found


class Represented:
    """``Representation.of_all`` of training samples, kept until those of other shards are asked."""

    def __init__(self) -> None:
        self._kept: tuple[Shards, Tensor] | None = None

    def __call__(self, representation: Representation, shards: Shards) -> Tensor:
        """Return (1, z) of all training samples, as columns, (1 + d, samples)."""
        if self._kept is None or self._kept[0] is not shards:
            self._kept = shards, representation.of_all(shards.train)
        return self._kept[1]


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
    found = weights.new_zeros(len(rows), *shape)
    for i, row in enumerate(rows):
        for part in samples_of(split, row, TOGETHER):
            own = columns[:, part].double()
            if full:
                found[i].addmm_((weights[:, None, part] * own).flatten(0, 1), own.T)
            else:
                found[i].addmm_(weights[:, part], torch.cat([own, own[1:].square()]).T)
    if full:  # sum r (1, z) (1, z)ᵀ has sum r and sum r z in its first row
        products = found.view(len(rows), count, size, size)
        found = torch.cat([products[:, :, 0], products[:, :, 1:, 1:].flatten(2)], 2)
    counts = torch.from_numpy(split.counts[rows]).clamp(min=1).to(found)
    return found / counts[:, None, None]


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
        found = distances.mul_(-0.5).add_(self.log_scales[:, None])
        return found.sub_(found.amax(0))


def gaussians_of(statistics: Tensor, full: bool, floor: float, dtype: torch.dtype) -> Gaussians:
    """Return the Gaussians with given statistics: the M-step."""
    rest = statistics.shape[1] - 1
    d = (math.isqrt(4 * rest + 1) - 1) // 2 if full else rest // 2
    weights, first, second = statistics.split([1, d, rest - d], 1)
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
    found = (factors, offsets, -0.5 * torch.log(values).sum(1))
    return Gaussians(*(part.to(dtype) for part in found))


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
