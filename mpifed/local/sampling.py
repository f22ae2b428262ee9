"""Batches of clients' training samples, drawn without replacement, and splits made of them."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.data.base import Split
from mpifed.federation.clients import Clients, Draws
from mpifed.random import shuffles


def batches(
    clients: Clients, draws: Draws, purpose: str, size: int | np.ndarray
) -> list[np.ndarray]:
    """Rows of ``clients.shards.train``, int64, for each client: ``size`` of its own at random, one
    number or int64 (clients,).

    Without replacement; a client with fewer gives all. A client's rows depend on ``purpose``, the
    seed, the round and itself.
    """
    counts = clients.n_train
    order = shuffles(draws.client_keys(purpose, clients.ids), counts)
    begins = np.cumsum(counts) - counts
    ends = begins + np.minimum(size, counts)
    return [
        order[begin:end] + start
        for begin, end, start in zip(begins.tolist(), ends.tolist(), clients.starts, strict=True)
    ]


def chosen(train: Split, samples: list[np.ndarray]) -> Split:
    """The split of the rows ``samples`` of ``train``, an array of them (int64) for each client."""
    rows = torch.from_numpy(np.concatenate(samples) if samples else np.zeros(0, np.int64))
    offsets = np.concatenate([[0], np.cumsum([len(drawn) for drawn in samples])]).astype(np.int64)
    return Split(train.x.index_select(0, rows), train.y.index_select(0, rows), offsets)
