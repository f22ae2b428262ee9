"""The generated problems of Dieuleveut et al. 2025: sparse combinations of atoms (sec. 6), counts
with a random effect and a Gaussian mixture (sec. 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le

from mpifed.dataset import (
    Communicator,
    Description,
    GeneratedDataset,
    Split,
    agreed,
    alike,
    kmeans,
    stream,
)
from mpifed.errors import RunError

SAMPLES = {"homogeneous": 250, "heterogeneous": 5000}
# Samples drawn at once while looking for those of a cluster.
BATCH = 1024

# Points of a mixture drawn at once while looking for those of a client.
MIXTURE_BATCH = 256

# Batches after which samples of a kind are given up that has not turned up often enough.
MOST_BATCHES = 100_000


# Draws new samples of a client, float64 (count, *input_shape).
Draw = Callable[[np.random.Generator, int, int], np.ndarray]


def drawn_anew(
    draw: Draw,
    description: Description,
    seed: int,
    client_ids: np.ndarray,
    round: int,
    count: int,
) -> Split:
    """Return ``count`` new unlabelled samples of each client; see ``Dataset.fresh``."""
    rows = [
        draw(stream(seed, "fresh", round, int(client)), int(client), count) for client in client_ids
    ]
    x = np.concatenate([np.empty((0, *description.input_shape)), *rows])
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Split(torch.from_numpy(x), torch.empty((len(x), 0), dtype=torch.float64), offsets)


def drawn_until(
    count: int,
    draw: Callable[[], np.ndarray],
    accepts: Callable[[np.ndarray], np.ndarray],
    what: str,
) -> np.ndarray:
    """Return the first ``count`` samples that are wanted, from as many batches as that takes."""
    batches = [draw()[:0]]
    n_accepted = 0
    for _ in range(MOST_BATCHES):
        if n_accepted >= count:
            return np.concatenate(batches)[:count]
        batch = draw()
        batches.append(batch[accepts(batch)])
        n_accepted += len(batches[-1])
    raise RunError(f"only {n_accepted} samples of {count} for {what} turned up; more do not come")


class Dictionary(GeneratedDataset):
    """Z = theta h with sparse codes h, unlabelled (Dieuleveut et al. 2025, sec. 6).

    Parameters
    ----------
    variant : {'homogeneous', 'heterogeneous'}
        Whether every client holds a copy of the same samples, or these are cut by k-means into
        clusters whose sizes differ by at most one, one for each client.
    samples : int, optional
        Number of samples. None is 250 (homogeneous) or 5000.
    dim : int
        Length of a sample, which the paper does not give.
    atoms : int
        Number of columns of theta.
    sparsity : float
        Share of a code that is not zero.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        variant: Literal["homogeneous", "heterogeneous"] = "heterogeneous",
        samples: Annotated[int, Ge(1)] | None = None,
        dim: Annotated[int, Ge(1)] = 20,
        atoms: Annotated[int, Ge(1)] = 15,
        sparsity: Annotated[float, Gt(0), Le(1)] = 0.2,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        total = SAMPLES[variant] if samples is None else samples
        self.non_zeros = max(1, round(sparsity * atoms))
        self.theta = stream(self.seed, "dictionary/theta").normal(size=(dim, atoms))
        self.samples = self._draw(stream(self.seed, "dictionary/samples"), total)
        self.clusters: kmeans.Clusters | None = None
        counts = np.full(n_clients, total)
        if variant == "heterogeneous":
            self.clusters = agreed(
                communicator,
                lambda: kmeans.equal_clusters(
                    self.samples, n_clients, stream(self.seed, "partition")
                ),
            )
            counts = np.bincount(self.clusters.owner, minlength=n_clients)
        none = np.zeros(n_clients, np.int64)
        self.description = Description(
            f"dictionary-{variant}", (dim,), 0, counts, none, none, task="unlabelled"
        )

    def fresh(self, client_ids: np.ndarray, round: int, count: int) -> Split:
        """Return ``count`` new samples of each client; see ``Dataset``."""
        return drawn_anew(self._fresh, self.description, self.seed, client_ids, round, count)

    def _fresh(self, rng: np.random.Generator, client: int, count: int) -> np.ndarray:
        clusters = self.clusters
        if clusters is None:
            return self._draw(rng, count)
        return drawn_until(
            count,
            lambda: self._draw(rng, BATCH),
            lambda x: clusters.cell(x) == client,
            f"client {client}",
        )

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(None) if self.clusters is None else self.clusters.owner == client
        return self.samples[rows], self.samples[rows, :0]

    def _draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """``n`` samples, float64 (n, dim)."""
        atoms = self.theta.shape[1]
        positions = rng.random((n, atoms)).argsort(axis=1)[:, : self.non_zeros]
        codes = np.zeros((n, atoms))
        np.put_along_axis(codes, positions, rng.normal(size=(n, self.non_zeros)), axis=1)
        return codes @ self.theta.T


class Poisson(GeneratedDataset):
    """Poisson counts with a random effect, Z | h ~ Poisson(exp(theta + h)), unlabelled.

    Parameters
    ----------
    theta : float
        Mean of the clients' theta_i.
    spread : float
        Standard deviation of the clients' theta_i; 0 makes all clients alike.
    shape : float
        Shape of the Gamma distribution of exp(h).
    rate : float
        Rate of that distribution.
    n_train : int
        Training samples of each client.
    n_test : int
        Test samples of each client.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        theta: float = 0.0,
        spread: Annotated[float, Ge(0)] = 0.5,
        shape: Annotated[float, Gt(0)] = 2.0,
        rate: Annotated[float, Gt(0)] = 3.0,
        n_train: Annotated[int, Ge(1)] = 250,
        n_test: Annotated[int, Ge(0)] = 0,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self.shape, self.rate = shape, rate
        # One stream in client order: client i is the same for any number of clients above i.
        self.thetas = theta + spread * stream(self.seed, "poisson/thetas").normal(size=n_clients)
        counts = (n_train, 0, n_test)
        self.description = alike("poisson", (1,), 0, n_clients, counts, "unlabelled")

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        x = self._fresh(stream(self.seed, f"poisson/{split}", client=client), client, n)
        return x, x[:, :0]

    def fresh(self, client_ids: np.ndarray, round: int, count: int) -> Split:
        """Return ``count`` new samples of each client; see ``Dataset``."""
        return drawn_anew(self._fresh, self.description, self.seed, client_ids, round, count)

    def _fresh(self, rng: np.random.Generator, client: int, count: int) -> np.ndarray:
        effects = rng.gamma(self.shape, 1 / self.rate, count)
        means = np.exp(self.thetas[client]) * effects
        return rng.poisson(means)[:, None].astype(np.float64)


class GaussianMixture(GeneratedDataset):
    """A mixture of ``n_components`` Gaussians of unit covariance in ``dimension``, unlabelled.

    Parameters
    ----------
    n_components : int
        Number of Gaussians.
    dimension : int
        Length of a sample.
    separation : float
        Standard deviation of each coordinate of the means.
    sharding : {'iid', 'sorted'}
        Whether every client draws from the whole mixture, or has a slice of the space.
    n_train : int
        Training samples of each client.
    n_test : int
        Test samples of each client.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        n_components: Annotated[int, Ge(1)] = 3,
        dimension: Annotated[int, Ge(1)] = 2,
        separation: Annotated[float, Ge(0)] = 3.0,
        sharding: Literal["iid", "sorted"] = "iid",
        n_train: Annotated[int, Ge(1)] = 150,
        n_test: Annotated[int, Ge(0)] = 0,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        means = stream(self.seed, "gaussian_mixture/means")
        self.means = separation * means.normal(size=(n_components, dimension))
        counts = (n_train, 0, n_test)
        self.description = alike(
            "gaussian_mixture", (dimension,), 0, n_clients, counts, "unlabelled"
        )
        self._sorted: np.ndarray | None = None
        self._ends = np.array([-np.inf, *[np.inf] * n_clients])
        if sharding == "sorted":
            parts = [self._draw(self._stream("train", c), n_train) for c in range(n_clients)]
            points = np.concatenate(parts)
            self._sorted = points[np.argsort(points[:, 0], kind="stable")]
            # Slices begin halfway between the last point of one client and the first of the next.
            cuts = n_train * np.arange(1, n_clients)
            first = self._sorted[:, 0]
            self._ends[1:-1] = (first[cuts - 1] + first[cuts]) / 2

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        if split == "train" and self._sorted is not None:
            x = self._sorted[client * n : (client + 1) * n]
        else:
            x = self._fresh(self._stream(split, client), client, n)
        return x, x[:, :0]

    def _stream(self, split: str, client: int) -> np.random.Generator:
        return stream(self.seed, f"gaussian_mixture/{split}", client=client)

    def fresh(self, client_ids: np.ndarray, round: int, count: int) -> Split:
        """Return ``count`` new samples of each client; see ``Dataset``."""
        return drawn_anew(self._fresh, self.description, self.seed, client_ids, round, count)

    def _fresh(self, rng: np.random.Generator, client: int, count: int) -> np.ndarray:
        if self._sorted is None:
            return self._draw(rng, count)
        low, high = self._ends[client], self._ends[client + 1]
        return drawn_until(
            count,
            lambda: self._draw(rng, MIXTURE_BATCH),
            lambda x: (x[:, 0] > low) & (x[:, 0] <= high),
            f"client {client}",
        )

    def _draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        component = rng.integers(len(self.means), size=n)
        return self.means[component] + rng.normal(size=(n, self.means.shape[1]))
