"""Compressors that write every number in fewer bits, rounding it at random without bias."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from mpifed.exchange.compression.base import PURPOSE, Compressor, chunks, random_bits
from mpifed.exchange.reduction import largest_of_rows
from mpifed.federation.clients import Draws
from mpifed.state import on_host

# What a block's scale takes: a float32, whatever the rows are.
SCALE_BITS = 32

# The integer as wide as a float, and its bits of fraction.
FORMATS = {torch.float32: (torch.int32, 23), torch.float64: (torch.int64, 52)}


class Quantise(Compressor):
    """Each number as one of 2 s + 1 levels of its block's largest, rounded without bias. QSGD
    (Alistarh et al. 2017, Lemma 3.1).

    Parameters
    ----------
    bits : int
        Bits of a level, its sign included.
    levels : int, optional
        The number s. None is 2^(``bits`` - 1) - 1.
    block : int, optional
        Numbers B of a row that share one r. None is the whole row.
    norm : {'max', 'l2'}
        What r is: the largest magnitude of the block, or its Euclidean norm (QSGD).
    """

    unbiased = True

    def __init__(
        self,
        *,
        bits: Annotated[int, Ge(2), Le(16)] = 8,
        levels: Annotated[int, Ge(1), Le(32767)] | None = None,
        block: Annotated[int, Ge(1)] | None = None,
        norm: Literal["max", "l2"] = "max",
    ) -> None:
        self.s = 2 ** (bits - 1) - 1 if levels is None else levels
        self.block, self.norm = block, norm

    def block_of(self, size: int) -> int:
        """Return B, the numbers in a block of a row of ``size``."""
        return max(1, size if self.block is None else min(self.block, size))

    def omega(self, size: int) -> float:
        block = self.block_of(size)
        if self.norm == "max":
            return block / (4 * self.s**2)
        return min(block / self.s**2, math.sqrt(block) / self.s)

    def contraction(self, size: int) -> float:
        return 1 / (1 + self.omega(size))

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        blocks = -(-size // self.block_of(size))
        return np.full(len(ids), size * (2 * self.s).bit_length() + SCALE_BITS * blocks, np.int64)

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), size, np.int64)

    def encode(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the message of each client."""
        x = on_host(rows).astype(np.float64, copy=False)
        scales = self._scales(x)
        finite = np.isfinite(scales)
        r = self._of_numbers(np.where(finite & (scales > 0), scales, 1), x.shape[1])
        drawn = random_bits(draws, purpose, ids, x.shape[1])
        with np.errstate(invalid="ignore", over="ignore"):
            levels = self._round(x, r, drawn)
        if not finite.all():
            levels[~np.broadcast_to(self._of_numbers(finite, x.shape[1]), x.shape)] = 0
        return levels, scales

    def _scales(self, x: np.ndarray) -> np.ndarray:
        """r of each block of ``x`` (clients, size): float32 (clients, blocks)."""
        clients, size = x.shape
        block = self.block_of(size)
        if block == size and self.norm == "max":
            return _rounded_up(largest_of_rows(x))[:, None]
        u = np.zeros((clients, -(-size // block) * block))
        np.abs(x, out=u[:, :size])
        blocked = u.reshape(clients, -1, block)
        return _rounded_up(blocked.max(axis=2) if self.norm == "max" else _norms(blocked))

    def _of_numbers(self, of_blocks: np.ndarray, size: int) -> np.ndarray:
        """Values of blocks as those of numbers, (clients, size), or (clients, 1) for one block."""
        if of_blocks.shape[1] == 1:
            return of_blocks
        return np.repeat(of_blocks, self.block_of(size), axis=1)[:, :size]

    def _round(self, x: np.ndarray, r: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """The levels of the numbers ``x``, by their r; ``drawn`` is overwritten."""
        u = np.abs(x)
        # First the product: on the grid of levels it is exact, and so is then the quotient.
        u *= self.s
        u /= r
        if self.norm == "l2":  # by rounding, the norm may be below the largest number
            np.minimum(u, self.s, out=u)
        below = np.floor(u)
        levels = below.astype(np.int8 if self.s <= 127 else np.int16)
        u -= below
        u *= 2.0**53  # exact, as u is below 1
        drawn >>= np.uint64(11)
        np.copyto(below, drawn.view(np.int64))  # exact, and faster than to compare integers
        levels += below < u
        minus = -np.signbit(x).astype(levels.dtype)
        levels ^= minus  # with the next line: a change of sign where minus is -1
        levels -= minus
        return levels

    def decode(
        self, levels: np.ndarray, scales: np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the numbers of a message, float64 (clients, size)."""
        numbers = np.empty(levels.shape) if out is None else out
        np.copyto(numbers, levels)
        with np.errstate(invalid="ignore"):
            numbers *= self._of_numbers(scales.astype(np.float64), levels.shape[1])
        numbers /= self.s
        return numbers

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        arrived = torch.empty(rows.shape, dtype=torch.float64)
        for part in chunks(*rows.shape):
            message = self.encode(rows[part], draws, ids[part], purpose)
            self.decode(*message, out=arrived[part].numpy())
        return arrived.to(rows)


class Natural(Compressor):
    """Each number as a power of two, the one below or above, without bias: omega = 1 / 8. Natural
    compression (Horvath et al. 2019, section 2):
    """

    unbiased = True

    def omega(self, size: int) -> float:
        return 1 / 8

    def contraction(self, size: int) -> float:
        return 1 / (1 + self.omega(size))

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), size * {4: 9, 8: 12}[itemsize], np.int64)

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), size, np.int64)

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        arrived = torch.empty_like(rows)
        integer, fraction_bits = FORMATS[rows.dtype]
        for part in chunks(*rows.shape):
            drawn = random_bits(draws, purpose, ids[part], rows.shape[1])
            drawn >>= np.uint64(64 - fraction_bits)
            chance = torch.from_numpy(drawn.view(np.int64)).to(rows.device)
            x = rows[part].contiguous()
            pattern = x.view(integer)
            fraction = pattern & ((1 << fraction_bits) - 1)
            # Without its fraction a float is 2^a with its sign; one exponent up it is 2^(a + 1).
            up = (chance < fraction).to(integer) << fraction_bits
            power = (pattern - fraction + up).view(rows.dtype)
            arrived[part] = torch.where(x.isfinite(), power, x)
        return arrived


def _norms(blocked: np.ndarray) -> np.ndarray:
    """Euclidean norms over the last axis, one sum per client and block."""
    # One call for every block: how numpy groups a sum must not depend on the others.
    flat = (blocked * blocked).reshape(-1, blocked.shape[-1])
    sums = np.array([np.add.reduce(block) for block in flat])
    return np.sqrt(sums).reshape(blocked.shape[:-1])


def _rounded_up(values: np.ndarray) -> np.ndarray:
    """The least float32 not below each value; infinite above the largest."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    return np.where(nearest < values, np.nextafter(nearest, np.float32(np.inf)), nearest)
