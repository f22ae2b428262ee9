"""Counts with a random effect: the Poisson example of Dieuleveut et al. 2025, sec. 3."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt

from mpifed.data.base import Dataset, Shards, Split, SplitName
from mpifed.data.generated import alike, make_shards, no_targets, split_made, unlabelled
from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream


class Poisson(Dataset):
    """Poisson counts with a random effect, Z | h ~ Poisson(exp(theta + h)), unlabelled.

    exp(h) ~ Gamma(``shape``, rate ``rate``), so that Z is negative binomial with mean
    exp(theta) ``shape`` / ``rate``. Client i has theta_i ~ N(``theta``, ``spread`` ^2), drawn by
    the seed. x has shape (1,).

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

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``."""
        return make_shards(self.description, client_ids, dtype, self._make)

    def make_split(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        """Return one split of ``client_ids``; see ``Dataset``."""
        return split_made(self.description, name, client_ids, dtype, self._make)

    def fresh(self, client_ids: np.ndarray, round: int, count: int) -> Split:
        """Return ``count`` new samples of each client; see ``Dataset``."""
        rows = [
            self._draw(stream(self.seed, "fresh", round, int(client)), int(client), count)
            for client in client_ids
        ]
        return unlabelled(rows, 1)

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        x = self._draw(stream(self.seed, f"poisson/{split}", client=client), client, n)
        return x, no_targets(x)

    def _draw(self, rng: np.random.Generator, client: int, n: int) -> np.ndarray:
        effects = rng.gamma(self.shape, 1 / self.rate, n)
        with np.errstate(over="ignore", invalid="ignore"):
            means = np.exp(self.thetas[client]) * effects
        try:
            return rng.poisson(means)[:, None].astype(np.float64)
        except ValueError as error:
            raise InputError(
                "data.theta, data.spread, data.shape and data.rate give client "
                f"{client} a Poisson mean of {means.max():g}, from which nothing can be drawn "
                f"({error})"
            ) from error
