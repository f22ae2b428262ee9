"""Mixtures of Gaussians, to draw samples from."""

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
    """A mixture of Gaussians with equal weights.

    A sample of component c is centres[c] + roots[c] xi with xi ~ N(0, I).

    Attributes
    ----------
    centres : Tensor of float64, shape (k, d)
        The means.
    roots : Tensor of float64, shape (k, d, d)
        Roots of the covariances.
    """

    centres: Tensor
    roots: Tensor

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        return self.centres.shape[1]

    def sample(self, generator: np.random.Generator, count: int) -> Tensor:
        """Return samples of the mixture.

        Parameters
        ----------
        generator : numpy.random.Generator
            The generator.
        count : int
            The number of samples.

        Returns
        -------
        Tensor of float64, shape (count, d)
            The samples.
        """
        component = torch.from_numpy(generator.integers(0, len(self.centres), count))
        noise = torch.from_numpy(generator.standard_normal((count, self.dimension)))
        samples = self.centres[component]
        for c, root in enumerate(self.roots):
            mine = component == c
            samples[mine] += noise[mine] @ root.T
        return samples

    def covariance(self) -> np.ndarray:
        """Return the covariance of the mixture, float64 (d, d)."""
        centred = self.centres - self.centres.mean(0)
        spread = (self.roots @ self.roots.transpose(1, 2)).mean(0)
        return (centred.T @ centred / len(centred) + spread).numpy()


def gaussian(mean: np.ndarray, covariance: np.ndarray) -> Mixture:
    """Return N(mean, covariance) as a mixture of one component.

    Parameters
    ----------
    mean : ndarray, shape (d,)
        The mean.
    covariance : ndarray, shape (d, d)
        The covariance.

    Returns
    -------
    Mixture
        The Gaussian.

    Raises
    ------
    InputError
        If the covariance is not symmetric and positive definite.

    Examples
    --------
    >>> gaussian(np.zeros(2), np.diag([1.0, 4.0])).covariance()
    array([[1., 0.],
           [0., 4.]])
    """
    root = torch.from_numpy(symmetric_root(covariance))
    return Mixture(torch.from_numpy(np.asarray(mean, np.float64))[None], root[None])


def random_mixture(
    dimension: int, components: int, random: np.random.Generator | np.random.RandomState
) -> Mixture:
    """Return a random mixture of the Wasserstein-2 benchmark (Korotin et al. 2021).

    Along every axis the centres are a random order of 0, 1, .. minus their mean; the roots are
    0.4 times random matrices with rows of length one. Everything is scaled so that the variance of
    a coordinate is one on average. With numpy's legacy generator the draws are those of the
    published code.

    Parameters
    ----------
    dimension : int
        The number of coordinates.
    components : int
        The number of components.
    random : numpy.random.Generator | numpy.random.RandomState
        The generator.

    Returns
    -------
    Mixture
        The mixture.
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
    """Return the positive definite square root of a positive definite matrix.

    Parameters
    ----------
    matrix : ndarray, shape (d, d)
        The matrix.

    Returns
    -------
    ndarray of float64, shape (d, d)
        The root.

    Raises
    ------
    InputError
        If ``matrix`` is not symmetric and positive definite.

    Examples
    --------
    >>> symmetric_root(np.diag([4.0, 9.0]))
    array([[2., 0.],
           [0., 3.]])
    """
    matrix = np.asarray(matrix, np.float64)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    tolerance = 1e-10 * float(np.abs(matrix).max())
    if not np.allclose(matrix, matrix.T, rtol=0, atol=tolerance) or values[0] <= tolerance:
        raise InputError(f"a covariance is {matrix.tolist()}; it must be positive definite")
    return (vectors * np.sqrt(values)) @ vectors.T
