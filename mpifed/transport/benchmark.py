"""Pairs of distributions (P, Q) of which the optimal transport map is known.

Q is the image of P under the gradient of a convex function, which by Brenier's theorem is the
optimal map for the squared distance. Three constructions: Gaussians (the map is affine), a frozen
random convex network, and the trained potentials Mix3toMix10 of Korotin et al. 2021 ("Do neural
optimal transport solvers work?"). Samples are a function of the generator that is handed in; they
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
    """P, the map to Q (points (B, dimension) of any dtype to the same), and moments of Q.

    ``target_mean`` is (dimension,), ``target_covariance`` (dimension, dimension), ``cost``
    E ||X - m(X)||^2 (W2^2, without a factor 1/2); exact for Gaussians, else estimated. ``variance``
    says which number Var(Q) is.
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
        """``count`` samples of P, (count, dimension)."""
        return self.source.sample(generator, count).to(dtype)

    def sample_target(
        self, generator: np.random.Generator, count: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """``count`` samples of Q, (count, dimension)."""
        return self.true_map(self.source.sample(generator, count)).to(dtype)


def gaussian_benchmark(
    source_mean: np.ndarray,
    source_covariance: np.ndarray,
    target_mean: np.ndarray,
    target_covariance: np.ndarray,
) -> Benchmark:
    """P and Q Gaussian; means (d,), covariances (d, d) symmetric and positive definite.

    The map is x -> m_Q + A (x - m_P), A = S_P^-1/2 (S_P^1/2 S_Q S_P^1/2)^1/2 S_P^-1/2 (Dowson and
    Landau 1982). Raises ``InputError`` for matrices that are not positive definite.
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
    """P a random mixture of three Gaussians, Q its image under a frozen random network.

    The network has the widths of the published potentials and the strong convexity 1/2 before the
    map is standardised; its parameters are drawn so that the map bends, see ``_random_potential``.
    """
    source = random_mixture(dimension, 3, stream(seed, "transport/mixture"))
    model = dense_icnn(dimension, strong_convexity=0.5)
    potential = _random_potential(model, stream(seed, "transport/potential"))
    return _standardised("random_icnn", source, [potential], model, seed)


def mix3_to_mix10(dimension: int, seed: int, raw: str | None = None) -> Benchmark:
    """The published benchmark: P three random Gaussians, the map from two trained potentials.

    P has the published parameters, which come from numpy's legacy generator with seed 0; samples
    and the estimates behind the standardisation are mpifed's own, as the published ones depend on
    a GPU. ``raw`` is the directory or archive with the potentials, None ``$MPIFED_DATA``. Raises
    ``InputError`` for a dimension that was not published, or potentials that cannot be read.
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


def find_benchmark(
    seed: int,
    *,
    benchmark: Name = "auto",
    dimension: Annotated[int, Ge(1)] = 16,
    raw: str | None = None,
) -> Benchmark:
    """A transport problem by name: ``gaussian``, ``random_icnn``, ``mix3tomix10`` or ``auto``.

    ``auto`` is mix3tomix10 where ``raw`` or MPIFED_DATA says where its potentials are and the
    dimension was published, else random_icnn; the benchmark's ``name`` tells which.
    ``gaussian`` in two dimensions is a pair with a closed form, in others a random one.
    """
    if benchmark == "gaussian":
        return plane_gaussians() if dimension == 2 else random_gaussians(dimension, seed)
    if benchmark == "auto":
        benchmark = automatic(dimension, raw)
    if benchmark == "random_icnn":
        return random_icnn_benchmark(dimension, seed)
    return mix3_to_mix10(dimension, seed, raw)


def plane_gaussians() -> Benchmark:
    """N(0, diag(1, 4)) to N((1, -1), [[2, 1], [1, 2]])."""
    return gaussian_benchmark(
        np.zeros(2), np.diag([1.0, 4.0]), np.array([1.0, -1.0]), np.array([[2.0, 1.0], [1.0, 2.0]])
    )


def random_gaussians(dimension: int, seed: int) -> Benchmark:
    """Gaussians with eigenvalues in [1/2, 2], random axes, and means from N(0, I)."""
    random = stream(seed, "transport/gaussians")
    means, covariances = [], []
    for _ in range(2):
        axes = np.linalg.qr(random.normal(size=(dimension, dimension)))[0]
        covariances.append(axes @ np.diag(np.exp2(random.uniform(-1, 1, dimension))) @ axes.T)
        means.append(random.normal(size=dimension))
    return gaussian_benchmark(means[0], covariances[0], means[1], covariances[1])


def automatic(dimension: int, raw: str | None) -> Name:
    """The benchmark that ``auto`` means in this environment; see ``find_benchmark``."""
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
    """The map grad(D_1 + D_2 + ..), shifted to mean 0 and scaled to variance 1 per coordinate.

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
