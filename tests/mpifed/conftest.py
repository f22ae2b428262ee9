from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed.data.base import Description, Shards, Split
from mpifed.federation.clients import Clients
from mpifed.federation.federation import Federation
from mpifed.mpi.communicator import Alone


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def split_of(generator, counts, shape, n_classes, dtype) -> Split:
    total = int(np.sum(counts))
    x = torch.from_numpy(generator.uniform(-1, 1, (total, *shape))).to(dtype)
    y = torch.from_numpy(generator.integers(0, n_classes, total))
    return Split(x, y, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


@pytest.fixture
def make_clients():
    """Clients with random shards, all on one rank, and the description of their data."""

    def make(counts, shape=(5,), n_classes=2, dtype=torch.float64, seed=0):
        counts = np.asarray(counts, np.int64)
        generator = np.random.default_rng(seed)
        train, val, test = (
            split_of(generator, c, shape, n_classes, dtype)
            for c in (counts, 0 * counts, counts + 3)
        )
        ids = np.arange(len(counts))
        federation = Federation(Alone(), 0 * ids, ids < 0, counts)
        description = Description("random", shape, n_classes, counts, 0 * counts, counts + 3)
        return Clients(federation, Shards(ids, train, val, test), ids), description

    return make
