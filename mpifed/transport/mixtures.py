"""Mixtures of Gaussians to draw from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import InputError

STD = 0.4
"""Spread of a component before the mixture is scaled."""


@dataclass(frozen=True)
class Mixture:
    """Components of equal weight: centres (k, d) and roots (k, d, d), float64.

    A sample of component c is centres[c] + roots[c] xi with xi ~ N(0, I).
    """

    centres: Tensor
    roots: Tensor

    @property
    def dimension(self) -> int:
        return self.centres.shape[1]

    def sample(self, generator: np.random.Generator, count: int) -> Tensor:
        """``count`` samples, float64 (count, d)."""
        component = torch.from_numpy(generator.integers(0, len(self.centres), count))
        noise = torch.from_numpy(generator.standard_normal((count, self.dimension)))
        samples = self.centres[component]
        for c, root in enumerate(self.roots):
            mine = component == c
            samples[mine] += noise[mine] @ root.T
        return samples

    def covariance(self) -> np.ndarray:
        """The covariance (d, d)."""
        centred = self.centres - self.centres.mean(0)
        spread = (self.roots @ self.roots.transpose(1, 2)).mean(0)
        return (centred.T @ centred / len(centred) + spread).numpy()


def gaussian(mean: np.ndarray, covariance: np.ndarray) -> Mixture:
    """N(mean, covariance) for (d,) and (d, d)."""
    root = torch.from_numpy(symmetric_root(covariance))
    return Mixture(torch.from_numpy(np.asarray(mean, np.float64))[None], root[None])


def random_mixture(
    dimension: int, components: int, random: np.random.Generator | np.random.RandomState
) -> Mixture:
    """The random mixtures of the Wasserstein-2 benchmark (Korotin et al. 2021).

    Along every axis the centres are a random order of 0, 1, .. minus their mean; the roots are
    0.4 times random matrices with rows of length one. Everything is scaled so that the variance of
    a coordinate is one on average. With numpy's legacy generator the draws are those of the
    published code.
    """
    centres = (
        np.stack(
            [random.choice(components, components, replace=False) for _ in range(dimension)], 1
        )
        - (components - 1) / 2
    )
    rows = random.normal(size=(components, dimension, dimension))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    scale = math.sqrt(np.square(centres).sum(1).mean() / dimension + STD**2)
    return Mixture(torch.from_numpy(centres / scale), torch.from_numpy(rows * (STD / scale)))


def symmetric_root(matrix: np.ndarray) -> np.ndarray:
    """The positive definite square root of a positive definite matrix, (d, d).

    Raises ``InputError`` if ``matrix`` is not symmetric and positive definite.
    """
    matrix = np.asarray(matrix, np.float64)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    tolerance = 1e-10 * float(np.abs(matrix).max())
    if not np.allclose(matrix, matrix.T, rtol=0, atol=tolerance) or values[0] <= tolerance:
        raise InputError(f"a covariance is {matrix.tolist()}; it must be positive definite")
    return (vectors * np.sqrt(values)) @ vectors.T
