"""Benchmarks whose map is the gradient of convex networks: random ones, and the published ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import InputError
from mpifed.models.icnn import DenseICNN, dense_icnn
from mpifed.random import stream
from mpifed.transport.benchmark import Benchmark
from mpifed.transport.mixtures import Mixture, random_mixture
from mpifed.transport.potentials import potentials_path, read_potential

ESTIMATES = 1 << 14
"""Samples from which a map is standardised and the moments of Q are estimated."""


PUBLISHED = (2, 4, 8, 16, 32, 64, 128, 256)
"""Dimensions of the published potentials."""


STRONG_CONVEXITY = 1e-2

BLOCK = 1024
"""Points that are mapped at once."""


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
