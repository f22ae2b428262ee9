"""Products W X of a mixing matrix that do not depend on how clients are grouped into ranks.

A row of W X is the sum of the rows that it mixes, in the order of their numbers and in their own
type of floating-point numbers, on the rank that needs it. Weights are rounded so that each row of W
sums to one exactly: those of others to multiples of the spacing of numbers near the largest weight
of the row, and the own weight is one minus their sum.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from mpifed.state import on_host

# Columns that are mixed at a time, so that what is made of them stays in a core's cache.
WIDTH = 2048

# Columns of W in a product, cut by their numbers, so that one that is not here shifts no other.
INNER = 64

# Rows to whose multiples a product is padded.
ROWS = 8

# Share of the entries of W, and clients, from which it is multiplied as a dense matrix.
DENSE, MANY = 0.3, 64

# Numbers that neighbours are added of at a time, one by one, so that they stay in a core's cache.
CACHED = 1 << 18


class MixingProduct:
    """Some rows of a mixing matrix, ready to multiply.

    Parameters
    ----------
    weights : csr_array
        The rows, (rows, columns).
    own_columns : ndarray
        The column of each row's own weight.
    columns : ndarray
        The columns of what is multiplied, in its order; those without weights may be missing.
    dense : bool
        Whether the whole matrix is dense.
    """

    def __init__(
        self,
        weights: scipy.sparse.csr_array,
        own_columns: np.ndarray,
        columns: np.ndarray,
        dense: bool,
    ) -> None:
        self.rows, self._dense = weights.shape[0], dense
        self._columns, self._count = columns, weights.shape[1]
        position = np.zeros(weights.shape[1], np.int64)
        position[columns] = np.arange(len(columns))
        coo = weights.tocoo()
        others = coo.col != own_columns[coo.row]
        row = np.concatenate([coo.row[others], np.arange(self.rows)])
        column = np.concatenate([coo.col[others], own_columns])
        order = np.lexsort((column, row))
        self._row, self._column, self._position = row[order], column[order], position[column[order]]
        self._of_others, self._order = coo.data[others], order
        self._starts = np.searchsorted(self._row, np.arange(self.rows + 1))
        self._matrices: dict[Any, Any] = {}

    def weights(self, dtype: Any) -> np.ndarray:
        """Return the weights of each row in the order of the columns, rounded to ``dtype``."""
        row = self._row[np.argsort(self._order)][: len(self._of_others)]
        largest = np.zeros(self.rows)
        np.maximum.at(largest, row, np.abs(self._of_others))
        np.maximum(largest, np.abs(1 - np.bincount(row, self._of_others, self.rows)), out=largest)
        rounded = on_grid(self._of_others, largest[row], dtype)
        self_weights = 1 - np.bincount(row, rounded, self.rows)
        return np.concatenate([rounded, self_weights])[self._order].astype(dtype)

    def __call__(self, mine: Tensor, arrived: np.ndarray, out: Tensor) -> None:
        """Fill ``out``, (rows, width), by W X, where X is ``mine`` and below it ``arrived``."""
        if mine.device.type != "cpu":
            there = torch.cat([mine, torch.from_numpy(arrived).to(mine)])
            self._on_device(there, out)
            return
        x, target = on_host(mine), out.numpy()
        mix, cached = self._sparse_part, CACHED // (1 + len(self._columns) + self.rows)
        width = max(WIDTH // 4, cached)
        if self._dense and products_agree(mine.dtype):
            mix, width = self._dense_part, WIDTH
        for start in range(0, x.shape[1], width):
            part = slice(start, start + width)
            mix(x[:, part], arrived[:, part], target[:, part])

    def _sparse_part(self, mine: np.ndarray, arrived: np.ndarray, out: np.ndarray) -> None:
        """Neighbours are added one by one, whatever else is computed."""
        key = out.dtype
        if key not in self._matrices:
            shape = self.rows, len(self._columns)
            entries = (self.weights(key), self._position, self._starts)
            self._matrices[key] = scipy.sparse.csr_array(entries, shape=shape)
        x = np.concatenate([mine, arrived]) if len(arrived) else np.ascontiguousarray(mine)
        out[:] = self._matrices[key] @ x

    def _dense_part(self, mine: np.ndarray, arrived: np.ndarray, out: np.ndarray) -> None:
        """Products of blocks of columns of W, each at its place and with zeros for the missing."""
        dtype = mine.dtype
        if dtype not in self._matrices:
            rows = -(-max(self.rows, 1) // ROWS) * ROWS
            w = np.zeros((rows, self._count), dtype)
            w[self._row, self._column] = self.weights(dtype)
            x = np.zeros((w.shape[1], WIDTH), dtype)
            self._matrices[dtype] = [
                torch.from_numpy(each) for each in (w, x, np.empty((rows, WIDTH), dtype))
            ]
        w, x, product = self._matrices[dtype]
        width = mine.shape[1]
        x.numpy()[self._columns[: len(mine)], :width] = mine
        x.numpy()[self._columns[len(mine) :], :width] = arrived
        blocked_product(w, x, product)
        np.add(product[: self.rows, :width].numpy(), 0.0, out=out)  # never -0.0

    def _on_device(self, x: Tensor, out: Tensor) -> None:
        """The first neighbours of all rows at once, then the second ones, and so on."""
        numbers = torch.from_numpy(self.weights(on_host(x[:0]).dtype)).to(x.device)
        counts = np.diff(self._starts)
        out.zero_()
        for number in range(int(counts.max(initial=0))):
            some = np.flatnonzero(counts > number)
            entries = self._starts[some] + number
            rows = torch.from_numpy(some).to(x.device)
            of = torch.from_numpy(self._position[entries]).to(x.device)
            w = numbers[torch.from_numpy(entries).to(x.device)][:, None]
            out[rows] += x[of] * w


def on_grid(weights: np.ndarray, largest: Any, dtype: Any) -> np.ndarray:
    """Return weights rounded to the spacing of numbers near the ``largest`` of their row."""
    # Not finer than what float64 adds up to one without rounding.
    unit = np.maximum(np.ldexp(np.finfo(dtype).epsneg, np.frexp(largest)[1]), 2.0**-53)
    return np.asarray(np.rint(weights / unit) * unit)


def shared_weights(weights: np.ndarray, dtype: Any) -> tuple[np.ndarray, float]:
    """Return weights that several rows share, rounded, and what each has more for itself."""
    largest = max(np.abs(weights).max(), abs(1 - weights.sum()))
    rounded = on_grid(weights, largest, dtype)
    return rounded, 1 - float(rounded.sum())


def is_dense(weights: scipy.sparse.csr_array) -> bool:
    """Return whether a whole mixing matrix is multiplied as a dense one."""
    n, columns = weights.shape
    return n >= MANY and weights.count_nonzero() > DENSE * n * columns


def blocked_product(w: Tensor, x: Tensor, product: Tensor) -> None:
    """Fill ``product`` by w x, added up in blocks of ``INNER`` columns of ``w``."""
    for start in range(0, w.shape[1], INNER):
        part = slice(start, start + INNER)
        torch.addmm(product, w[:, part], x[part], beta=1 if start else 0, out=product)


@functools.cache
def products_agree(dtype: torch.dtype) -> bool:
    """Return whether a row of ``blocked_product`` has the same bits beside any other rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * INNER + 13, WIDTH, generator=generator, dtype=dtype)
    w = torch.randn(5 * ROWS, len(x), generator=generator, dtype=dtype)
    w = torch.cat([w, w.flip(0), w[:1].expand(3 * ROWS, -1)])
    full = torch.empty(len(w), WIDTH, dtype=dtype)
    blocked_product(w, x, full)
    agreements = [full[: 5 * ROWS].equal(full[5 * ROWS : 10 * ROWS].flip(0))]
    agreements.append(bool((full[10 * ROWS :] == full[:1]).all()))
    for rows in (1, 2, 3, 5, 8):
        some = full.new_empty(rows * ROWS, WIDTH)
        blocked_product(w[ROWS : ROWS + rows * ROWS], x, some)
        agreements.append(some.equal(full[ROWS : ROWS + rows * ROWS]))
    return all(agreements)
