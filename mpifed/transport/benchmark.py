"""Pairs of distributions (P, Q) with a known optimal transport map.

Q is the image of P under the gradient of a convex function, which by Brenier's theorem is the
optimal map for the squared distance. There are three constructions: Gaussians (the map is affine),
a fixed random convex network, and the trained potentials Mix3toMix10 of Korotin et al. 2021 ("Do
neural optimal transport solvers work?"). Samples are a function of the generator passed in; they
are computed in float64 and rounded, so that float32 and float64 runs see the same data.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from mpifed.errors import InputError
from mpifed.memory import check_memory
from mpifed.models.icnn import DenseICNN, dense_icnn
from mpifed.random import stream
from mpifed.transport.mixtures import Mixture, gaussian, random_mixture, symmetric_root
from mpifed.transport.potentials import FOLDER, potentials_path, read_potential

ESTIMATES = 1 << 14
"""Samples from which a map is standardised and the moments of Q are estimated."""

PUBLISHED = (2, 4, 8, 16, 32, 64, 128, 256)
"""Dimensions of the published potentials."""

STRONG_CONVEXITY = 1e-2
BLOCK = 1024
"""Points that are mapped at once."""

Name = Literal["auto", "gaussian", "random_icnn", "mix3tomix10"]
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


def random_icnn_benchmark(dimension: int, seed: int) -> Benchmark:
    """Return a random mixture of three Gaussians with its image under a fixed random network.

    The network has the widths of the published potentials and the strong convexity 1/2 before the
    map is standardised; see ``_random_potential`` for its parameters.

    Parameters
    ----------
    dimension : int
        The number of coordinates.
    seed : int
        The seed of all draws.

    Returns
    -------
    Benchmark
        The benchmark, with estimated moments and cost.
    """
    source = random_mixture(dimension, 3, stream(seed, "transport/mixture"))
    model = dense_icnn(dimension, strong_convexity=0.5)
    potential = _random_potential(model, stream(seed, "transport/potential"))
    return _standardised("random_icnn", source, [potential], model, seed)


def mix3_to_mix10(dimension: int, seed: int, raw: str | None = None) -> Benchmark:
    """Return the published benchmark: three random Gaussians, mapped by two trained potentials.

    P has the published parameters, which come from numpy's legacy generator with seed 0. Samples
    and the estimates for the standardisation are mpifed's, as the published ones depend on a GPU.

    Parameters
    ----------
    dimension : int
        One of ``PUBLISHED``.
    seed : int
        The seed of the estimates.
    raw : str, optional
        The directory or archive with the potentials; None takes ``$MPIFED_DATA``.

    Returns
    -------
    Benchmark
        The benchmark, with estimated moments and cost.

    Raises
    ------
    InputError
        For a dimension that was not published, or potentials that cannot be read.
    """
    if dimension not in PUBLISHED:
        listing = ", ".join(map(str, PUBLISHED))
        raise InputError(f"data.dimension is {dimension}; mix3tomix10 has {listing}")
    path = potentials_path(raw)
    source = random_mixture(dimension, 3, np.random.RandomState(0))
    model = dense_icnn(dimension, strong_convexity=STRONG_CONVEXITY)
    names = (f"{dimension}_v1.pt", f"{dimension}_v2.pt")
    potentials = [read_potential(path, name, model) for name in names]
    return _standardised("mix3tomix10", source, potentials, model, seed)


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


def find_benchmark(
    seed: int,
    *,
    benchmark: Name = "auto",
    dimension: Annotated[int, Ge(1)] = 16,
    raw: str | None = None,
) -> Benchmark:
    """Return a transport problem by name.

    ``auto`` is mix3tomix10 where ``raw`` or MPIFED_DATA names its potentials and the dimension was
    published, otherwise random_icnn. ``gaussian`` in two dimensions is a fixed pair with a closed
    form, in other dimensions a random one.

    Parameters
    ----------
    seed : int
        The seed of all draws.
    benchmark : Name, default 'auto'
        The name.
    dimension : int, default 16
        The number of coordinates.
    raw : str, optional
        The directory or archive with the potentials of mix3tomix10.

    Returns
    -------
    Benchmark
        The benchmark; its ``name`` says which ``auto`` took.

    Raises
    ------
    InputError
        If mix3tomix10 cannot be read or has no such dimension.
    """
    if benchmark == "gaussian":
        return plane_gaussians() if dimension == 2 else random_gaussians(dimension, seed)
    if benchmark == "auto":
        benchmark = automatic(dimension, raw)
    if benchmark == "random_icnn":
        return random_icnn_benchmark(dimension, seed)
    return mix3_to_mix10(dimension, seed, raw)


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


def automatic(dimension: int, raw: str | None) -> Name:
    """Return the benchmark that ``auto`` means in this environment; see ``find_benchmark``.

    Parameters
    ----------
    dimension : int
        The number of coordinates.
    raw : str | None
        The directory or archive with the potentials, if it is given.

    Returns
    -------
    str
        "mix3tomix10" or "random_icnn".
    """
    home = os.environ.get("MPIFED_DATA")
    there = raw is not None or (home is not None and (Path(home) / FOLDER).is_dir())
    return "mix3tomix10" if there and dimension in PUBLISHED else "random_icnn"


def _affine(matrix: np.ndarray, shift: np.ndarray) -> Map:
    def mapped(x: Tensor) -> Tensor:
        return x @ torch.from_numpy(matrix).to(x).T + torch.from_numpy(shift).to(x)

    return mapped


def _random_potential(model: DenseICNN, generator: np.random.Generator) -> Tensor:
    """Parameters of a network whose gradient is far from affine, float64.

    Units have slopes b ~ N(0, 16 / d), offsets c ~ N(0, 16) and weak quadratics a ~ N(0, 0.01 / d):
    they bend where P has its mass. Each takes two units below on average, with weights |N(0, 1)|,
    and w is |N(0, 0.09 d / 16)|. A dense W would give all units the same sum, and an affine map.
    """
    d, width = model.dimension, model.width
    quadratic = generator.normal(0, 0.1 / math.sqrt(d), width * d)
    linear = generator.normal(0, 4 / math.sqrt(d), width * d)
    offsets = generator.normal(0, 4, width)
    convex = []
    for below, above in itertools.pairwise(model.hidden):
        weights = np.abs(generator.normal(0, 1, (above, below)))
        convex.append((weights * (generator.random((above, below)) < 2 / below)).ravel())
    final = np.abs(generator.normal(0, 0.3 * math.sqrt(d / 16), model.hidden[-1]))
    return torch.from_numpy(np.concatenate([quadratic, linear, offsets, *convex, final]))


def _standardised(
    name: str, source: Mixture, potentials: list[Tensor], model: DenseICNN, seed: int
) -> Benchmark:
    """Return the map grad(D_1 + D_2 + ..), scaled to mean 0 and variance 1 per coordinate.

    Both are estimated from one sample of P, the moments of Q from another.
    """

    def raw(x: Tensor) -> Tensor:
        pushed = torch.zeros_like(x)
        for points, out in zip(x.split(BLOCK), pushed.split(BLOCK), strict=True):
            for potential in potentials:
                out += model.push(potential.to(x), points)
        return pushed

    sample = raw(source.sample(stream(seed, "transport/standardise"), ESTIMATES))
    shift = sample.mean(0)
    scale = float(sample.var(0, correction=0).mean().sqrt())

    def mapped(x: Tensor) -> Tensor:
        return (raw(x) - shift.to(x)) / scale

    x = source.sample(stream(seed, "transport/moments"), ESTIMATES)
    y = mapped(x)
    return Benchmark(
        name,
        source,
        mapped,
        y.mean(0).numpy(),
        y.T.cov(correction=0).numpy(),
        float((x - y).square().sum(1).mean()),
    )
