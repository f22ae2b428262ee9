"""scikit-learn's bundled handwritten digits: real data that need not be downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpifed.data.partitioned import PIECE, DealtDataset, Pool, Source
from mpifed.mpi.communicator import Communicator

# Pixels are 0 .. 16.
LEVELS = 16


class Digits(DealtDataset):
    """scikit-learn's 1797 handwritten digits, 8 x 8 pixels in [0, 1], 10 labels."""

    def __init__(
        self, n_clients: int, run_seed: int, communicator: Communicator, **options: Any
    ) -> None:
        super().__init__(n_clients, run_seed, communicator, _read, **options)


def _read() -> Source:
    _, labels = _bundled()
    return Source(Pool("digits", labels, 10, (8, 8), "uint8", LEVELS), _pieces)


def _bundled() -> tuple[np.ndarray, np.ndarray]:
    # scikit-learn takes seconds to import, which only one rank has to spend.
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return bundle.images.astype(np.uint8), bundle.target.astype(np.int64)


def _pieces() -> Iterator[np.ndarray]:
    images, _ = _bundled()
    for start in range(0, len(images), PIECE):
        yield images[start : start + PIECE]
