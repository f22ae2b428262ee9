"""Sparse combinations of atoms: the dictionary problems of Dieuleveut et al. 2025, sec. 6."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le

from mpifed.data.base import Dataset, Description, Shards, Split, SplitName
from mpifed.data.clustering import Clusters, Solver, equal_clusters
from mpifed.data.delivery import agreed
from mpifed.data.generated import drawn_until, make_shards, no_targets, split_made, unlabelled
from mpifed.errors import InputError
from mpifed.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

SAMPLES = {"homogeneous": 250, "heterogeneous": 5000}
BATCH = 1024
"""Samples drawn at once while looking for those of a cluster."""


class Dictionary(Dataset):
    """Z = theta h with sparse codes h, unlabelled (Dieuleveut et al. 2025, sec. 6).

    The dictionary theta (``dim``, ``atoms``) has entries N(0, 1); a code has
    round(``sparsity`` ``atoms``) entries N(0, 1) at random places, at least one, and zeros
    elsewhere. All is made in float64; there are no test samples.

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
    kmeans_solver : {'own', 'package'}
        Solver of k-means: mpifed's own, or the package k-means-constrained.
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
        kmeans_solver: Solver = "own",
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        total = SAMPLES[variant] if samples is None else samples
        # A dictionary; samples, and while they are drawn, a code, a draw and a place for each atom.
        check_memory(
            8.0 * dim * atoms + total * (8.0 * dim + 24.0 * atoms),
            f"data.samples is {total}, which with {atoms} atoms in {dim} dimensions",
        )
        self.non_zeros = max(1, round(sparsity * atoms))
        self.theta = stream(self.seed, "dictionary/theta").normal(size=(dim, atoms))
        self.samples = self._draw(stream(self.seed, "dictionary/samples"), total)
        self.clusters: Clusters | None = None
        counts = np.full(n_clients, total)
        if variant == "heterogeneous":
            if total < n_clients:
                raise InputError(
                    f"clients is {n_clients}, but data.samples {total} are enough for at most "
                    f"{total} clients"
                )
            self.clusters = agreed(
                communicator,
                lambda: equal_clusters(
                    self.samples, n_clients, stream(self.seed, "partition"), kmeans_solver
                ),
            )
            counts = np.bincount(self.clusters.owner, minlength=n_clients)
        none = np.zeros(n_clients, np.int64)
        self.description = Description(
            f"dictionary-{variant}", (dim,), 0, counts, none, none, task="unlabelled"
        )

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``."""
        return make_shards(self.description, client_ids, dtype, self._make)

    def make_split(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        """Return one split of ``client_ids``; see ``Dataset``."""
        return split_made(self.description, name, client_ids, dtype, self._make)

    def fresh(self, client_ids: np.ndarray, round: int, count: int) -> Split:
        """Return ``count`` new samples of each client; see ``Dataset``.

        For ``heterogeneous`` these are samples in the client's cell of the power diagram of the
        clusters: its centre has the least squared distance minus price (``clustering.Clusters``).
        """
        rows = [self._fresh(round, int(client), count) for client in client_ids]
        return unlabelled(rows, len(self.theta))

    def _fresh(self, round: int, client: int, count: int) -> np.ndarray:
        rng = stream(self.seed, "fresh", round, client)
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
        own = slice(None) if self.clusters is None else self.clusters.owner == client
        return self.samples[own], no_targets(self.samples[own])

    def _draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """``n`` samples, float64 (n, dim)."""
        atoms = self.theta.shape[1]
        places = rng.random((n, atoms)).argsort(axis=1)[:, : self.non_zeros]
        codes = np.zeros((n, atoms))
        np.put_along_axis(codes, places, rng.normal(size=(n, self.non_zeros)), axis=1)
        return codes @ self.theta.T
