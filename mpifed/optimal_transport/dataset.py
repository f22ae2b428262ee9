"""Samples of a transport benchmark's source P, cut among clients; the target Q is public."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge

from mpifed.dataset import (
    Communicator,
    GeneratedDataset,
    ProblemDescription,
    Shards,
    agreed,
    kmeans,
    stream,
)
from mpifed.optimal_transport.benchmarks import Name, Variance, automatic, find_benchmark


class Transport(GeneratedDataset):
    """Optimal transport: unlabelled samples of P (Dieuleveut et al. 2025, section 7.2).

    Parameters
    ----------
    benchmark : {'auto', 'gaussian', 'random_icnn', 'mix3tomix10'}
        A pair (P, Q) whose optimal map is known. ``mix3tomix10`` has trained potentials; ``auto``
        is it where they are available, else ``random_icnn``. A configuration keeps which it was.
    dimension : int
        Length of a sample.
    raw : str, optional
        Directory of the trained potentials. None is ``$MPIFED_DATA/w2-benchmark``.
    samples : int
        Samples of P for each client.
    partition : {'kmeans', 'iid'}
        Whether samples are cut by k-means into equal clusters, so that clients differ, or are each
        client's own draws.
    target_variance : {'trace', 'l1'}
        Var(Q) of L2-UVP: the trace of the covariance, or the sum of its absolute entries.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        benchmark: Name = "auto",
        dimension: Annotated[int, Ge(1)] = 16,
        raw: str | None = None,
        samples: Annotated[int, Ge(2)] = 2048,
        partition: Literal["kmeans", "iid"] = "kmeans",
        target_variance: Variance = "trace",
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        chosen = find_benchmark(self.seed, benchmark=benchmark, dimension=dimension, raw=raw)
        self.benchmark = replace(chosen, variance=target_variance)
        self.n_clients, self.samples, self.partition = n_clients, samples, partition
        self.owner = np.repeat(np.arange(n_clients), samples)
        if partition == "kmeans":
            self.owner = agreed(
                communicator,
                lambda: kmeans.equal_parts(self._pool(), n_clients, stream(self.seed, "partition")),
            )
        counts = np.full(n_clients, samples)
        none = np.zeros(n_clients, np.int64)
        self.description = ProblemDescription(
            f"transport-{self.benchmark.name}",
            (dimension,),
            0,
            counts,
            none,
            none,
            task="unlabelled",
            problem=self.benchmark,
        )

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the options with ``auto`` replaced by the benchmark that it means here."""
        if options["benchmark"] != "auto":
            return options
        return {**options, "benchmark": automatic(options["dimension"], options["raw"])}

    # Its samples are drawn all at once.
    make_split = None  # type: ignore[assignment]

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of some clients."""
        self._points = self._pool()
        try:
            return super().load(client_ids, dtype)
        finally:
            del self._points

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        points = self._points[self.owner == client]
        return points, points[:, :0]

    def _pool(self) -> np.ndarray:
        """Return all samples, float64 (clients * samples, dimension)."""
        generator = stream(self.seed, "transport/samples")
        count = self.n_clients * self.samples
        return self.benchmark.sample_source(generator, count, torch.float64).numpy()
