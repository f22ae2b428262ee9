"""Benchmarks of two Gaussians, whose optimal map is affine and in closed form."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpifed.random import stream
from mpifed.transport.benchmark import Benchmark, Map
from mpifed.transport.mixtures import gaussian, symmetric_root


def gaussian_benchmark(
    source_mean: np.ndarray,
    source_covariance: np.ndarray,
    target_mean: np.ndarray,
    target_covariance: np.ndarray,
) -> Benchmark:
    """Return the benchmark of two Gaussians.

    The map is x -> m_Q + A (x - m_P), A = S_P^-1/2 (S_P^1/2 S_Q S_P^1/2)^1/2 S_P^-1/2 (Dowson and
    Landau 1982).

    Parameters
    ----------
    source_mean : ndarray, shape (d,)
        m_P.
    source_covariance : ndarray, shape (d, d)
        S_P, symmetric and positive definite.
    target_mean : ndarray, shape (d,)
        m_Q.
    target_covariance : ndarray, shape (d, d)
        S_Q, symmetric and positive definite.

    Returns
    -------
    Benchmark
        The benchmark, with exact moments and cost.

    Raises
    ------
    InputError
        If a covariance is not positive definite.

    Examples
    --------
    >>> shifted = gaussian_benchmark(np.zeros(1), np.eye(1), np.array([3.0]), 4 * np.eye(1))
    >>> shifted.cost
    10.0
    """
    source = gaussian(source_mean, source_covariance)
    gaussian(target_mean, target_covariance)
    root = source.roots[0].numpy()
    inverse = np.linalg.inv(root)
    crossed = symmetric_root(root @ target_covariance @ root)
    matrix = inverse @ crossed @ inverse
    shift = target_mean - matrix @ source_mean
    affine = _affine(matrix, shift)
    distance = np.sum((source_mean - target_mean) ** 2)
    spread = np.trace(source_covariance) + np.trace(target_covariance) - 2 * np.trace(crossed)
    return Benchmark(
        "gaussian", source, affine, target_mean, target_covariance, float(distance + spread)
    )


def plane_gaussians() -> Benchmark:
    """Return the benchmark from N(0, diag(1, 4)) to N((1, -1), [[2, 1], [1, 2]])."""
    return gaussian_benchmark(
        np.zeros(2), np.diag([1.0, 4.0]), np.array([1.0, -1.0]), np.array([[2.0, 1.0], [1.0, 2.0]])
    )


def random_gaussians(dimension: int, seed: int) -> Benchmark:
    """Return two Gaussians with eigenvalues in [1/2, 2], random axes, and means from N(0, I).

    Parameters
    ----------
    dimension : int
        The number of coordinates.
    seed : int
        The seed of all draws.

    Returns
    -------
    Benchmark
        The benchmark, with exact moments and cost.
    """
    random = stream(seed, "transport/gaussians")
    means, covariances = [], []
    for _ in range(2):
        axes = np.linalg.qr(random.normal(size=(dimension, dimension)))[0]
        covariances.append(axes @ np.diag(np.exp2(random.uniform(-1, 1, dimension))) @ axes.T)
        means.append(random.normal(size=dimension))
    return gaussian_benchmark(means[0], covariances[0], means[1], covariances[1])


def _affine(matrix: np.ndarray, shift: np.ndarray) -> Map:
    def mapped(x: Tensor) -> Tensor:
        return x @ torch.from_numpy(matrix).to(x).T + torch.from_numpy(shift).to(x)

    return mapped
