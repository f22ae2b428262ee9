"""Pairs of distributions (P, Q) with a known optimal transport map.

Q is the image of P under the gradient of a convex function, which by Brenier's theorem is the
optimal map for the squared distance. There are three constructions (``catalogue``): Gaussians (the
map is affine), a fixed random convex network, and the trained potentials Mix3toMix10 of Korotin et
al. 2021 ("Do neural optimal transport solvers work?"). Samples are a function of the generator
passed in; those of P are computed in float64 and rounded, so that float32 and float64 runs see the
same data. Those of Q are mapped in the run's type.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from mpifed.data.archives import contents
from mpifed.errors import InputError, one_line
from mpifed.io.memory import check_memory
from mpifed.models.icnn import DenseICNN, dense_icnn
from mpifed.random import stream
from topologies.regular_files import read_bytes

# Spread of a component before the mixture is scaled.
STD = 0.4

FOLDER = "w2-benchmark"

# Bytes beyond which a file of potentials is refused.
LARGEST = 1 << 26

# Samples from which a map is standardised and the moments of Q are estimated.
ESTIMATES = 1 << 14

# Dimensions of the published potentials.
PUBLISHED = (2, 4, 8, 16, 32, 64, 128, 256)

STRONG_CONVEXITY = 1e-2

# Points that are mapped at once.
BLOCK = 1024

Variance = Literal["trace", "l1"]
Map = Callable[[Tensor], Tensor]
Name = Literal["auto", "gaussian", "random_icnn", "mix3tomix10"]


@dataclass(frozen=True)
class EqualMixture:
    """A mixture of Gaussians with equal weights."""

    centres: Tensor
    roots: Tensor

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        return self.centres.shape[1]

    def sample(self, generator: np.random.Generator, count: int) -> Tensor:
        """Return samples of the mixture."""
        component = torch.from_numpy(generator.integers(0, len(self.centres), count))
        noise = torch.from_numpy(generator.standard_normal((count, self.dimension)))
        samples = self.centres[component]
        for c, root in enumerate(self.roots):
            mine = component == c
            samples[mine] += noise[mine] @ root.T
        return samples


def gaussian(mean: np.ndarray, covariance: np.ndarray) -> EqualMixture:
    """Return N(mean, covariance) as a mixture of one component."""
    root = torch.from_numpy(symmetric_root(covariance))
    return EqualMixture(torch.from_numpy(np.asarray(mean, np.float64))[None], root[None])


def random_mixture(
    dimension: int, components: int, random: np.random.Generator | np.random.RandomState
) -> EqualMixture:
    """Return a random mixture of the Wasserstein-2 benchmark (Korotin et al. 2021)."""
    centres = (
        np.stack(
            [random.choice(components, components, replace=False) for _ in range(dimension)], 1
        )
        - (components - 1) / 2
    )
    rows = random.normal(size=(components, dimension, dimension))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    scale = math.sqrt(np.square(centres).sum(1).mean() / dimension + STD**2)
    return EqualMixture(torch.from_numpy(centres / scale), torch.from_numpy(rows * (STD / scale)))


def symmetric_root(matrix: np.ndarray) -> np.ndarray:
    """Return the positive definite square root of a positive definite matrix."""
    matrix = np.asarray(matrix, np.float64)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    tolerance = 1e-10 * float(np.abs(matrix).max())
    if not np.allclose(matrix, matrix.T, rtol=0, atol=tolerance) or values[0] <= tolerance:
        raise InputError(f"a covariance is {matrix.tolist()}; it must be positive definite")
    return (vectors * np.sqrt(values)) @ vectors.T


@dataclass(frozen=True)
class Benchmark:
    """P, the optimal map to Q, and moments of Q; exact for Gaussians, otherwise estimated."""

    name: str
    source: EqualMixture
    true_map: Map
    target_mean: np.ndarray
    target_covariance: np.ndarray
    variance: Variance = "trace"

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        return self.source.dimension

    @property
    def target_variance(self) -> float:
        """Var(Q), by which L2-UVP divides. The trace of the covariance as in the published code,
        or, ``l1``, as in the text of Dieuleveut et al. 2025, section 7.2, the sum of its absolute
        entries.
        """
        if self.variance == "l1":
            return float(np.abs(self.target_covariance).sum())
        return float(np.trace(self.target_covariance))

    def sample_source(
        self, generator: np.random.Generator, count: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return samples of P."""
        return self.source.sample(generator, count).to(dtype)

    def sample_target(
        self, generator: np.random.Generator, count: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return samples of Q."""
        return self.true_map(self.source.sample(generator, count).to(dtype))


def check_targets(batch_size: int, dimension: int) -> None:
    """Refuse minibatches of the target that memory cannot hold."""
    check_memory(
        16.0 * batch_size * dimension,
        f"local.batch_size is {batch_size}, which in {dimension} dimensions",
    )


def gaussian_benchmark(
    source_mean: np.ndarray,
    source_covariance: np.ndarray,
    target_mean: np.ndarray,
    target_covariance: np.ndarray,
) -> Benchmark:
    """Return the benchmark of two Gaussians. The map is x -> m_Q + A (x - m_P), A = S_P^-1/2
    (S_P^1/2 S_Q S_P^1/2)^1/2 S_P^-1/2 (Dowson and Landau 1982).
    """
    source = gaussian(source_mean, source_covariance)
    gaussian(target_mean, target_covariance)
    root = source.roots[0].numpy()
    inverse = np.linalg.inv(root)
    crossed = symmetric_root(root @ target_covariance @ root)
    matrix = inverse @ crossed @ inverse
    shift = target_mean - matrix @ source_mean

    def affine(x: Tensor) -> Tensor:
        return x @ torch.from_numpy(matrix).to(x).T + torch.from_numpy(shift).to(x)

    return Benchmark("gaussian", source, affine, target_mean, target_covariance)


def plane_gaussians() -> Benchmark:
    """Return the benchmark from N(0, diag(1, 4)) to N((1, -1), [[2, 1], [1, 2]])."""
    return gaussian_benchmark(
        np.zeros(2), np.diag([1.0, 4.0]), np.array([1.0, -1.0]), np.array([[2.0, 1.0], [1.0, 2.0]])
    )


def random_gaussians(dimension: int, seed: int) -> Benchmark:
    """Return two Gaussians with eigenvalues in [1/2, 2], random axes, and means from N(0, I)."""
    random = stream(seed, "transport/gaussians")
    means, covariances = [], []
    for _ in range(2):
        axes = np.linalg.qr(random.normal(size=(dimension, dimension)))[0]
        covariances.append(axes @ np.diag(np.exp2(random.uniform(-1, 1, dimension))) @ axes.T)
        means.append(random.normal(size=dimension))
    return gaussian_benchmark(means[0], covariances[0], means[1], covariances[1])


def potentials_path(raw: str | None) -> Path:
    """Return where the potentials are: ``raw``, or the directory w2-benchmark in MPIFED_DATA."""
    if raw is not None:
        path = Path(os.path.expanduser(raw))
        if not path.exists():
            raise InputError(f"data.raw is '{path}', but there is no such file or directory")
        return path
    home = os.environ.get("MPIFED_DATA")
    if not home:
        raise InputError(
            "data.raw is empty and MPIFED_DATA is not set; one of them must say where the trained "
            "potentials are"
        )
    path = Path(home) / FOLDER
    if not path.is_dir():
        raise InputError(f"MPIFED_DATA is '{home}', but there is no directory '{path}'")
    return path


def read_potential(path: Path, name: str, model: DenseICNN) -> Tensor:
    """Return the parameters in a file of potentials."""
    content = _content(path, name)
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > LARGEST:
                raise ValueError(f"it has {size} bytes, and may have {LARGEST}")
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return _flat(state, model)
    except Exception as error:
        # What torch's reader meets in a damaged file it raises as it comes.
        raise InputError(
            f"'{name}' in '{path}' is not a file of weights alone: {one_line(str(error), 200)}"
        ) from error


def _content(path: Path, name: str) -> bytes:
    if path.is_dir():
        if (path / name).is_file():
            return read_bytes(path / name, LARGEST)
        archives = sorted(p for p in path.iterdir() if ".tar" in p.suffixes)
        if len(archives) != 1:
            raise InputError(f"'{path}' has neither a file '{name}' nor one .tar archive")
        path = archives[0]
    for _, content in contents(path, lambda each: Path(each).name == name):
        return content
    raise InputError(f"'{path}' has no file '{name}'")


def _flat(state: Any, model: DenseICNN) -> Tensor:
    """Return the flat parameters of a state dict, in the order of ``DenseICNN``."""
    layers, d = list(enumerate(model.hidden)), model.dimension
    pairs = enumerate(itertools.pairwise(model.hidden))
    shapes: dict[str, tuple[int, ...]] = {
        **{f"quadratic_layers.{i}.quadratic_decomposed": (d, 1, h) for i, h in layers},
        **{f"quadratic_layers.{i}.weight": (h, d) for i, h in layers},
        **{f"quadratic_layers.{i}.bias": (h,) for i, h in layers},
        **{f"convex_layers.{i}.weight": (above, below) for i, (below, above) in pairs},
        "final_layer.weight": (1, model.hidden[-1]),
    }
    if {name: tuple(tensor.shape) for name, tensor in state.items()} != shapes:
        raise ValueError(f"its tensors are not those of a DenseICNN of {len(layers)} layers")
    parts = [state[name].double() for name in shapes]
    flat = torch.cat([(p[:, 0].T if p.dim() == 3 else p).flatten() for p in parts])
    if not flat.isfinite().all() or (flat[model.n_skip :] < 0).any():
        raise ValueError("its weights between layers are negative, or some are not finite")
    return flat


def random_icnn_benchmark(dimension: int, seed: int) -> Benchmark:
    """Return a random mixture of three Gaussians with its image under a fixed random network."""
    source = random_mixture(dimension, 3, stream(seed, "transport/mixture"))
    model = dense_icnn(dimension, strong_convexity=0.5)
    potential = _random_potential(model, stream(seed, "transport/potential"))
    return _standardised("random_icnn", source, [potential], model, seed)


def mix3_to_mix10(dimension: int, seed: int, raw: str | None = None) -> Benchmark:
    """Return the published benchmark: three random Gaussians, mapped by two trained potentials."""
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
    """Parameters of a network whose gradient is far from affine, float64."""
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
    name: str, source: EqualMixture, potentials: list[Tensor], model: DenseICNN, seed: int
) -> Benchmark:
    """Return the map grad(D_1 + D_2 + ..), scaled to mean 0 and variance 1 per coordinate."""

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

    y = mapped(source.sample(stream(seed, "transport/moments"), ESTIMATES))
    return Benchmark(name, source, mapped, y.mean(0).numpy(), y.T.cov(correction=0).numpy())


def find_benchmark(
    seed: int,
    *,
    benchmark: Name = "auto",
    dimension: Annotated[int, Ge(1)] = 16,
    raw: str | None = None,
) -> Benchmark:
    """Return a transport problem by name."""
    if benchmark == "gaussian":
        return plane_gaussians() if dimension == 2 else random_gaussians(dimension, seed)
    if benchmark == "auto":
        benchmark = automatic(dimension, raw)
    if benchmark == "random_icnn":
        return random_icnn_benchmark(dimension, seed)
    return mix3_to_mix10(dimension, seed, raw)


def automatic(dimension: int, raw: str | None) -> Name:
    """Return the benchmark that ``auto`` means in this environment; see ``find_benchmark``."""
    home = os.environ.get("MPIFED_DATA")
    there = raw is not None or (home is not None and (Path(home) / FOLDER).is_dir())
    return "mix3tomix10" if there and dimension in PUBLISHED else "random_icnn"
