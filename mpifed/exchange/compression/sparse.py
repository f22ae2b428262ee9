"""Compressors that send some of the coordinates: rand-k and top-k."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from mpifed.errors import InputError
from mpifed.exchange.compression.base import PURPOSE, Compressor, chunks, random_bits
from mpifed.federation.clients import Draws
from mpifed.state import on_host

# What an explicit index takes: an int32.
INDEX_BITS = 32

# Share of the coordinates up to which they are handled one by one, not as rows with zeros.
FEW = 0.25


class Sparsifier(Compressor):
    """A compressor C(v) = scale (mask v) whose mask has ``kept(size)`` ones in every row."""

    index_bits: int

    @abstractmethod
    def kept(self, size: int) -> int:
        """Return k, how many coordinates are sent; ``InputError`` if it is above ``size``."""

    @abstractmethod
    def scale(self, size: int) -> float:
        """Return what the kept coordinates are multiplied by."""

    @abstractmethod
    def select(self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str) -> np.ndarray:
        """Return which coordinates are kept: bool (clients, size), ``kept(size)`` of each row."""


class _Counted(Sparsifier):
    """How many coordinates are kept: ``k`` of them, or a ``fraction`` where k is null."""

    index_bits = INDEX_BITS

    def __init__(self, k: int | None, fraction: float | None) -> None:
        if k is None and fraction is None:
            raise InputError(
                "compression.k and compression.fraction are both empty; one must say how many "
                "coordinates are sent"
            )
        self.k, self.fraction = k, fraction

    def kept(self, size: int) -> int:
        if self.k is None:
            return min(size, max(1, int(np.floor((self.fraction or 0) * size + 0.5))))
        if self.k > size:
            raise InputError(
                f"compression.k is {self.k}; it must be at most the numbers in a message, {size}"
            )
        return self.k

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        each = 8 * itemsize + self.index_bits
        return np.full(len(ids), self.kept(size) * each, np.int64)

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), self.kept(size), np.int64)


class RandK(_Counted):
    """k coordinates, uniformly without replacement, times d / k: omega = d / k - 1. Gasanov et al.
    2022, section 4.

    Parameters
    ----------
    k : int, optional
        Number of coordinates that are sent. None leaves it to ``fraction``.
    fraction : float
        Share of the coordinates that is sent, at least one of them.
    indices : {'seed', 'explicit'}
        Whether the receiver draws the indices too, at no cost, or they are sent as int32.
    """

    unbiased = True

    def __init__(
        self,
        *,
        k: Annotated[int, Ge(1)] | None = None,
        fraction: Annotated[float, Gt(0), Le(1)] | None = 0.1,
        indices: Literal["seed", "explicit"] = "seed",
    ) -> None:
        super().__init__(k, fraction)
        self.index_bits = INDEX_BITS if indices == "explicit" else 0

    def omega(self, size: int) -> float:
        return size / self.kept(size) - 1

    def contraction(self, size: int) -> float:
        return self.kept(size) / size

    def scale(self, size: int) -> float:
        return size / self.kept(size)

    def select(self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str) -> np.ndarray:
        size = rows.shape[1]
        k = self.kept(size)
        if k == size:
            return np.ones((len(ids), size), bool)
        values = _distinct(draws, purpose, ids, size)
        return values <= np.partition(values, k - 1, axis=1)[:, k - 1 : k]

    def coordinates(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str
    ) -> np.ndarray | None:
        """Return the coordinates that ``select`` will keep, in any order: int64 (clients, k)."""
        k = self.kept(size)
        if k > FEW * size or not len(ids):
            return None
        parts = []
        for part in chunks(len(ids), size):
            values = _distinct(draws, purpose, ids[part], size)
            values.partition(k - 1, axis=1)
            parts.append(values[:, :k] & _positions(size)[0])
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).view(np.int64)

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        return _masked(self, rows, draws, ids, purpose)


class TopK(_Counted):
    """The k coordinates of largest magnitude, with their indices: biased, delta = k / d.

    Parameters
    ----------
    k : int, optional
        Number of coordinates that are sent. None leaves it to ``fraction``.
    fraction : float
        Share of the coordinates that is sent, at least one of them.
    """

    unbiased = False

    def __init__(
        self,
        *,
        k: Annotated[int, Ge(1)] | None = None,
        fraction: Annotated[float, Gt(0), Le(1)] | None = 0.1,
    ) -> None:
        super().__init__(k, fraction)

    def omega(self, size: int) -> float:
        raise ValueError("top_k is biased: it has no omega")

    def contraction(self, size: int) -> float:
        return self.kept(size) / size

    def scale(self, size: int) -> float:
        return 1.0

    def select(self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str) -> np.ndarray:
        size = rows.shape[1]
        k = self.kept(size)
        magnitudes = on_host(rows.detach().abs())
        # NaN is sent first, so that it is seen.
        magnitudes[np.isnan(magnitudes)] = np.inf
        least = np.partition(magnitudes, size - k, axis=1)[:, size - k : size - k + 1]
        larger, equal = magnitudes > least, magnitudes == least
        room = k - larger.sum(axis=1, keepdims=True)
        return larger | (equal & (equal.cumsum(axis=1) <= room))

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        return _masked(self, rows, draws, ids, purpose)


@lru_cache(maxsize=4)
def _positions(size: int) -> tuple[np.uint64, np.ndarray]:
    """The bits that a position in a row of ``size`` numbers takes; and all positions, uint64."""
    return np.uint64((1 << (size - 1).bit_length()) - 1), np.arange(size, dtype=np.uint64)


def _distinct(draws: Draws, purpose: str, ids: np.ndarray, size: int) -> np.ndarray:
    """Random bits for each coordinate, its position in the lowest ones, uint64 (clients, size)."""
    taken, positions = _positions(size)
    values = random_bits(draws, purpose, ids, size)
    values &= ~taken
    values |= positions
    return values


def _masked(
    sparsifier: Sparsifier, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str
) -> Tensor:
    sent = torch.empty_like(rows)
    scale = sparsifier.scale(rows.shape[1])
    for part in chunks(*rows.shape):
        mask = torch.from_numpy(sparsifier.select(rows[part], draws, ids[part], purpose))
        mask = mask.to(rows.device)
        # A product, not a choice: 0 times what is not finite is not finite, so that it is seen.
        torch.mul(rows[part], mask, out=sent[part]).mul_(scale)
    return sent
