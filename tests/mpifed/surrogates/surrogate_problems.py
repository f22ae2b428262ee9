"""One small problem of every kind of surrogate, and plain MM to run them with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.dataset import Description
from mpifed.surrogate import Surrogate
from mpifed.testing import make_surrogate


def describe(dimension: int) -> Description:
    counts = np.array([1])
    return Description("made here", (dimension,), 0, counts, counts, counts, "unlabelled")


def build(name: str, dimension: int, **options) -> Surrogate:
    """A surrogate as a configuration makes it."""
    return make_surrogate({"name": name, **options}, describe(dimension))


@dataclass(frozen=True)
class Problem:
    """``draw(generator, samples)`` gives z (samples, dimension)."""

    name: str
    dimension: int
    options: dict
    draw: Callable[[np.random.Generator, int], np.ndarray]

    def make(self) -> Surrogate:
        return build(self.name, self.dimension, **self.options)

    def samples(self, count: int, seed: int = 0) -> Tensor:
        return torch.from_numpy(self.draw(np.random.default_rng(seed), count).astype(float))


def regression(generator, count):
    x = generator.standard_normal((count, 6))
    y = x @ np.array([1.0, -2.0, 0.0, 0.5, 0.0, 0.1]) + 0.3 * generator.standard_normal(count)
    return np.column_stack([x, y])


def labels(generator, count):
    z = regression(generator, count)
    return np.column_stack([z[:, :-1], z[:, -1] > 0])


def counts(generator, count):
    return generator.poisson(1.7 * generator.gamma(2, 1 / 3, (count, 1)))


def clusters(generator, count):
    centres = np.array([[3.0, 0.0], [-2.0, 2.0], [0.0, -3.0]])
    return centres[generator.integers(0, 3, count)] + generator.standard_normal((count, 2))


def sparse_mixes(generator, count):
    atoms = np.random.default_rng(5).standard_normal((8, 6))
    h = generator.standard_normal((count, 6)) * (generator.random((count, 6)) < 0.4)
    return h @ atoms.T


COVARIANCES = [[[1.0, 0.3], [0.3, 1.0]], [[1.5, 0.0], [0.0, 0.7]], [[0.8, -0.2], [-0.2, 1.1]]]
REGULARISERS = ["none", "l1", "ridge", "box", "ball", "group"]

PROBLEMS = {
    "remark_one": Problem("remark_one", 1, {}, lambda g, n: g.gamma(2, 1, (n, 1))),
    "poisson": Problem("poisson", 1, {}, counts),
    "poisson_printed": Problem("poisson", 1, {"posterior": "as_printed"}, counts),
    "poisson_known": Problem("poisson", 1, {"mean": 1.7}, counts),
    "mixture": Problem(
        "gaussian_mixture",
        2,
        {"weights": [0.2, 0.3, 0.5], "covariances": COVARIANCES, "ridge": 0.05},
        clusters,
    ),
    "mixture_all": Problem(
        "gaussian_mixture",
        2,
        {"learn": "all", "ridge": 0.02},
        clusters,
    ),
    "lasso": Problem("dictionary", 8, {"n_atoms": 6}, sparse_mixes),
    "printed": Problem("dictionary", 8, {"n_atoms": 6, "objective": "as_printed"}, sparse_mixes),
    "overcomplete": Problem("dictionary", 8, {"n_atoms": 11, "code_penalty": 0.5}, sparse_mixes),
    "balls": Problem("dictionary", 8, {"n_atoms": 6, "atoms": "unit_ball"}, sparse_mixes),
    "factors": Problem("dictionary", 8, {"n_atoms": 6, "codes": "ridge"}, sparse_mixes),
    "nonnegative": Problem(
        "dictionary",
        8,
        {"n_atoms": 6, "codes": "nonnegative"},
        lambda g, n: np.abs(sparse_mixes(g, n)),
    ),
    "logistic": Problem(
        "quadratic", 7, {"loss": "logistic", "rho": 0.2, "regularisation": "l1"}, labels
    ),
} | {
    f"squares_{name}": Problem(
        "quadratic", 7, {"rho": 0.2, "regularisation": name, "group_size": 2}, regression
    )
    for name in REGULARISERS
}


def everyone(z: Tensor) -> np.ndarray:
    """Offsets of a single client."""
    return np.array([0, len(z)])


def mean_statistic(surrogate: Surrogate, z: Tensor, theta: Tensor) -> Tensor:
    return surrogate.statistics(z, theta, everyone(z))[0]


def objective(surrogate: Surrogate, z: Tensor, theta: Tensor) -> float:
    return float(surrogate.losses(z, theta).mean()) + surrogate.penalty(theta)


def start(surrogate: Surrogate, seed: int) -> Tensor:
    return torch.from_numpy(surrogate.init(np.random.default_rng(seed)))


def mm(surrogate: Surrogate, z: Tensor, theta: Tensor, steps: int) -> list[Tensor]:
    """theta_0, theta_1, ... of s <- E S̄(Z, T(s)), started from an s with T(s) = ``theta``."""
    s, found = surrogate.surrogate_of(theta), []
    for _ in range(steps + 1):
        found.append(surrogate.minimiser(s))
        s = mean_statistic(surrogate, z, found[-1])
    return found


def psi(surrogate: Surrogate, theta: Tensor) -> Tensor:
    """The function psi of MM-1, a scalar."""
    if hasattr(surrogate, "rho"):
        return theta @ theta / (2 * surrogate.rho)
    if getattr(surrogate, "mean", None) is not None:
        return -surrogate.mean * theta[0]
    if any(hasattr(surrogate, name) for name in ("learn_all", "mean", "n_atoms")):
        return torch.zeros_like(theta[0])
    return 1 / theta[0]


def phi(surrogate: Surrogate, theta: Tensor) -> Tensor:
    """The function phi of MM-1, (size,)."""
    if hasattr(surrogate, "rho"):
        return theta / surrogate.rho
    if hasattr(surrogate, "mean"):
        y = torch.exp(theta)
        return y if surrogate.mean is not None else torch.cat([theta, y])
    if hasattr(surrogate, "n_atoms"):
        matrix = theta.view(surrogate.dimension, surrogate.n_atoms)
        square = (matrix.T @ matrix).flatten()
        return surrogate.factor * torch.cat([-0.5 * square, theta])
    if hasattr(surrogate, "learn_all"):
        mixture = surrogate.split(theta)
        precisions = torch.linalg.inv(mixture.covariances)
        first = torch.einsum("lij,lj->li", precisions, mixture.means)
        second = -0.5 * (first * mixture.means).sum(1)
        if not surrogate.learn_all:
            return torch.cat([first.flatten(), second])
        second = second + torch.log(mixture.weights) - 0.5 * torch.logdet(mixture.covariances)
        return torch.cat([first.flatten(), second, -0.5 * precisions.flatten()])
    return -theta
