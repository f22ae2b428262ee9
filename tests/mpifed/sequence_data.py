"""A small data set of sequences, named by ``data.name=sequence_data:Words``."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.data.base import Dataset, Description, Shards, Split

L, K = 6, 5


class Words(Dataset):
    """Each label is a client's permutation of the character before it."""

    def __init__(self, n_clients, seed, communicator) -> None:
        n = np.full(n_clients, 12)
        self.seed = seed
        self.description = Description("words", (L,), K, n, 0 * n, n, "sequence")

    def load(self, client_ids, dtype):
        none, some = np.zeros(len(client_ids), int), np.full(len(client_ids), 12)
        parts = [self._drawn(client_ids, count, dtype) for count in (some, none, some)]
        return Shards(client_ids, *parts)

    def _drawn(self, ids, counts, dtype) -> Split:
        x, y = np.zeros((0, L)), np.zeros((0, L), int)
        for client, n in zip(ids, counts, strict=True):
            rng = np.random.default_rng([self.seed, client])
            own = rng.integers(0, K, (n, L))
            x = np.concatenate([x, own])
            y = np.concatenate([y, rng.permutation(K)[own]])
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Split(torch.from_numpy(x).to(dtype), torch.from_numpy(y), offsets)
