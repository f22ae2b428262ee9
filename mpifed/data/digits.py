"""scikit-learn's bundled handwritten digits: real data that need not be downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from mpifed.data.base import Dataset, Shards
from mpifed.data.delivery import agreed
from mpifed.data.partition import FEWEST, Alpha, Classes, MinSamples, Name
from mpifed.data.pooled import PIECE, Pool, assign, load_pooled
from mpifed.mpi.communicator import Communicator

LEVELS = 16
"""Pixels are 0 .. 16."""


class Digits(Dataset):
    """scikit-learn's 1797 handwritten digits, 8 x 8 pixels in [0, 1], 10 labels.

    Each client splits its samples 60/20/20 into training, validation and test.

    Parameters
    ----------
    partition : str
        How samples are dealt to the clients: dirichlet, pathological, iid.
    dirichlet_alpha : float
        Concentration of the partition ``dirichlet``: the larger, the more alike clients are.
    classes_per_client : int
        Labels that a client has in the partition ``pathological``.
    min_samples : int
        Fewest samples that a client may get.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    divisor = LEVELS

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        partition: Name = "dirichlet",
        dirichlet_alpha: Alpha = 0.4,
        classes_per_client: Classes = 2,
        min_samples: MinSamples = FEWEST,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        # scikit-learn takes seconds to import, which only one rank has to spend.
        labels = agreed(communicator, lambda: _bundled()[1])
        self._pool = Pool("digits", labels, 10, (8, 8), "uint8", LEVELS)
        self._assignment = assign(
            self._pool,
            n_clients,
            self.seed,
            partition,
            dirichlet_alpha=dirichlet_alpha,
            classes_per_client=classes_per_client,
            min_samples=min_samples,
        )
        self.description = self._assignment.describe(self._pool)
        self._communicator = communicator

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective."""
        return load_pooled(
            self._pool, self._assignment, _pieces, client_ids, dtype, self._communicator
        )


def _bundled() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return bundle.images.astype(np.uint8), bundle.target.astype(np.int64)


def _pieces() -> Iterator[np.ndarray]:
    images, _ = _bundled()
    for start in range(0, len(images), PIECE):
        yield images[start : start + PIECE]
