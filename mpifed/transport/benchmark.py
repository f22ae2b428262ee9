"""Pairs of distributions (P, Q) with a known optimal transport map.

Q is the image of P under the gradient of a convex function, which by Brenier's theorem is the
optimal map for the squared distance. There are three constructions (``catalogue``): Gaussians (the
map is affine), a fixed random convex network, and the trained potentials Mix3toMix10 of Korotin et
al. 2021 ("Do neural optimal transport solvers work?"). Samples are a function of the generator
passed in; they are computed in float64 and rounded, so that float32 and float64 runs see the same
data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.memory import check_memory
from mpifed.transport.mixtures import Mixture

Variance = Literal["trace", "l1"]
Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Benchmark:
    """P, the optimal map to Q, and moments of Q; exact for Gaussians, otherwise estimated.

    Attributes
    ----------
    name : str
        Which benchmark it is.
    source : Mixture
        P.
    true_map : Map
        The map, from points (B, dimension) of any dtype to the same.
    target_mean : ndarray, shape (dimension,)
        The mean of Q.
    target_covariance : ndarray, shape (dimension, dimension)
        The covariance of Q.
    cost : float
        E ||X - m(X)||^2, that is W2^2 without a factor 1/2.
    variance : Variance
        Which number Var(Q) is.
    """

    name: str
    source: Mixture
    true_map: Map
    target_mean: np.ndarray
    target_covariance: np.ndarray
    cost: float
    variance: Variance = "trace"

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        return self.source.dimension

    @property
    def target_variance(self) -> float:
        """Var(Q), by which L2-UVP divides.

        The trace of the covariance as in the published code, or, ``l1``, as in the text of
        Dieuleveut et al. 2025, section 7.2, the sum of its absolute entries.
        """
        if self.variance == "l1":
            return float(np.abs(self.target_covariance).sum())
        return float(np.trace(self.target_covariance))

    def sample_source(
        self, generator: np.random.Generator, count: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return samples of P.

        Parameters
        ----------
        generator : numpy.random.Generator
            The generator.
        count : int
            The number of samples.
        dtype : torch.dtype, default torch.float32
            The type of the result.

        Returns
        -------
        Tensor, shape (count, dimension)
            The samples.
        """
        return self.source.sample(generator, count).to(dtype)

    def sample_target(
        self, generator: np.random.Generator, count: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return samples of Q.

        Parameters
        ----------
        generator : numpy.random.Generator
            The generator.
        count : int
            The number of samples.
        dtype : torch.dtype, default torch.float32
            The type of the result.

        Returns
        -------
        Tensor, shape (count, dimension)
            The samples.
        """
        return self.true_map(self.source.sample(generator, count)).to(dtype)


def check_targets(batch_size: int, dimension: int) -> None:
    """Refuse minibatches of the target that memory cannot hold.

    Parameters
    ----------
    batch_size : int
        Samples of a minibatch; the target has as many as are asked for.
    dimension : int
        The number of coordinates.

    Raises
    ------
    InputError
        If the samples do not fit.
    """
    check_memory(
        16.0 * batch_size * dimension,
        f"local.batch_size is {batch_size}, which in {dimension} dimensions",
    )
