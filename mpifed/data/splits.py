"""Splits of clients' samples that keep the order of their source; ``pooled`` has random ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifed.data.partition import counts_60_20_20


@dataclass(frozen=True)
class InTurn:
    """Each client's samples in the order of the source, the first 60 % for training, then 20/20.

    Attributes
    ----------
    indices : list of ndarray
        Sample numbers of each client, int64.
    """

    indices: list[np.ndarray]

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return counts_60_20_20(np.array([len(own) for own in self.indices], np.int64))

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_train, n_val, _ = counts_60_20_20(np.int64(len(self.indices[client])))
        train, val, test = np.split(self.indices[client], [n_train, n_train + n_val])
        return train, val, test


@dataclass(frozen=True)
class Published:
    """Each client's samples in the order of the source, tested on those published for testing.

    Attributes
    ----------
    indices : list of ndarray
        Sample numbers of each client, int64.
    is_test : ndarray
        bool (samples,).
    """

    indices: list[np.ndarray]
    is_test: np.ndarray

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_test = np.array([int(self.is_test[own].sum()) for own in self.indices], np.int64)
        sizes = np.array([len(own) for own in self.indices], np.int64)
        return sizes - n_test, np.zeros_like(sizes), n_test

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        own = self.indices[client]
        tested = self.is_test[own]
        return own[~tested], own[:0], own[tested]


@dataclass(frozen=True)
class Consecutive:
    """Each client's samples one after the other: training, then validation, then test samples.

    Attributes
    ----------
    sizes : ndarray
        Training, validation and test samples of each client, int64 (n_clients, 3).
    """

    sizes: np.ndarray

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_train, n_val, n_test = self.sizes.T.copy()
        return n_train, n_val, n_test

    def split(self, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first = int(self.sizes[:client].sum())
        ends = first + np.cumsum(self.sizes[client])
        train, val, test = np.split(np.arange(first, ends[-1]), ends[:-1] - first)
        return train, val, test
