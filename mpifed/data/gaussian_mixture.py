"""A Gaussian mixture, dealt alike or by where its points lie (Dieuleveut et al. 2025, sec. 3)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge

from mpifed.data.base import Dataset, Shards, Split, SplitName
from mpifed.data.generated import (
    alike,
    drawn_until,
    make_shards,
    no_targets,
    split_made,
    unlabelled,
)
from mpifed.errors import InputError
from mpifed.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

BATCH = 256
"""Points drawn at once while looking for those of a client."""


class GaussianMixture(Dataset):
    """A mixture of ``n_components`` Gaussians of unit covariance in ``dimension``, unlabelled.

    The seed draws means ~ N(0, ``separation`` ^2) in every coordinate; components are equally
    likely. With ``sharding: sorted`` the training points of all clients are put in the order of
    their first coordinate and cut, so that client i has the i-th slice of the space; test points
    are those of the slice.

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
        check_memory(
            8.0 * n_components * dimension,
            f"data.n_components is {n_components}, which in {dimension} dimensions",
        )
        means = stream(self.seed, "gaussian_mixture/means")
        with np.errstate(over="ignore"):
            self.means = separation * means.normal(size=(n_components, dimension))
            squares = np.square(self.means)
        if not np.isfinite(squares).all():
            raise InputError(f"data.separation is {separation:g}, which makes infinite squares")
        counts = (n_train, 0, n_test)
        self.description = alike(
            "gaussian_mixture", (dimension,), 0, n_clients, counts, "unlabelled"
        )
        self._sorted: np.ndarray | None = None
        self._ends = np.array([-np.inf, *[np.inf] * n_clients])
        if sharding == "sorted":
            # All points, and the same in order.
            check_memory(
                16.0 * n_clients * n_train * dimension,
                f"data.sharding is sorted, which for {n_clients} clients of {n_train} samples in "
                f"{dimension} dimensions",
            )
            whole = [self._draw(self._stream("train", c), n_train) for c in range(n_clients)]
            points = np.concatenate(whole)
            self._sorted = points[np.argsort(points[:, 0], kind="stable")]
            # Slices begin halfway between the last point of one client and the first of the next.
            cuts = n_train * np.arange(1, n_clients)
            first = self._sorted[:, 0]
            self._ends[1:-1] = (first[cuts - 1] + first[cuts]) / 2

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``."""
        return make_shards(self.description, client_ids, dtype, self._make)

    def make_split(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        """Return one split of ``client_ids``; see ``Dataset``."""
        return split_made(self.description, name, client_ids, dtype, self._make)

    def fresh(self, client_ids: np.ndarray, round: int, count: int) -> Split:
        """Return ``count`` new samples of each client, in its slice; see ``Dataset``."""
        rows = [
            self._slice(stream(self.seed, "fresh", round, int(client)), int(client), count)
            for client in client_ids
        ]
        return unlabelled(rows, self.means.shape[1])

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        if split == "train" and self._sorted is not None:
            x = self._sorted[client * n : (client + 1) * n]
        else:
            x = self._slice(self._stream(split, client), client, n)
        return x, no_targets(x)

    def _stream(self, split: str, client: int) -> np.random.Generator:
        return stream(self.seed, f"gaussian_mixture/{split}", client=client)

    def _slice(self, rng: np.random.Generator, client: int, n: int) -> np.ndarray:
        """``n`` points of the mixture in the client's slice, by drawing until there are enough."""
        if self._sorted is None:
            return self._draw(rng, n)
        low, high = self._ends[client], self._ends[client + 1]
        return drawn_until(
            n,
            lambda: self._draw(rng, BATCH),
            lambda x: (x[:, 0] > low) & (x[:, 0] <= high),
            f"client {client}",
        )

    def _draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        component = rng.integers(len(self.means), size=n)
        return self.means[component] + rng.normal(size=(n, self.means.shape[1]))
