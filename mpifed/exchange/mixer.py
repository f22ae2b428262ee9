"""Products W X of a mixing matrix that do not depend on how clients are grouped into ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse

from mpifed.exchange.reduction import shifted

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

# Numbers mixed at a time: few enough that all that is made of them stays in a core's cache.
BLOCK = 1 << 15


@dataclass(frozen=True)
class Mixer:
    """Some rows and columns of a mixing matrix as integers, ready to multiply."""

    limbs: list[np.ndarray | scipy.sparse.csr_array]
    bits: int

    def products(
        self, x: Float[np.ndarray, "columns width"], exponent: int
    ) -> Float64[np.ndarray, "orders rows width"]:
        """Return the integers that make up W X, float64 (2 limbs - 1, rows, width)."""
        count = len(self.limbs)
        totals = np.empty((2 * count - 1, self.limbs[0].shape[0], x.shape[1]))
        for part in _blocks(x.shape[1], max(self.limbs[0].shape)):
            x_limbs = _split(x[:, part], -exponent, self.bits, count)
            for order in range(2 * count - 1):
                first = max(0, order + 1 - count)
                made = self.limbs[order - first] @ x_limbs[first]
                for j in range(first + 1, min(order + 1, count)):
                    made += self.limbs[order - j] @ x_limbs[j]
                totals[order, :, part] = made
        return totals

    def combine(
        self, products: Float64[np.ndarray, "orders rows width"], exponent: int
    ) -> Float64[np.ndarray, "rows width"]:
        """Return W X in float64, (rows, width), from the sum of all its ``products``."""
        # Least significant first, so that the sum is rounded as late as possible.
        total = shifted(products[-1], exponent - self.bits * (len(products) + 1))
        total += 0.0  # never -0.0
        for order in reversed(range(len(products) - 1)):
            total += shifted(products[order], exponent - self.bits * (order + 2))
        return total

    def __call__(
        self, x: Float[np.ndarray, "columns width"], exponent: int
    ) -> Float[np.ndarray, "rows width"]:
        """Return W X in the type of ``x``, (rows, width), where all columns are here."""
        mixed = np.empty((self.limbs[0].shape[0], x.shape[1]), x.dtype)
        mix([(self, x)], exponent, mixed)
        return mixed

    def of(self, columns: np.ndarray) -> Mixer:
        """Return the same with these columns only, in this order."""
        return Mixer([_as_dense_as_it_is(limb[:, columns]) for limb in self.limbs], self.bits)


def mix(
    parts: Sequence[tuple[Mixer, np.ndarray]],
    exponent: int,
    mixed: np.ndarray,
) -> None:
    """Fill ``mixed``, (rows, width), by W X, from the blocks of columns that W and X are
    cut into.
    """
    mixers = [mixer for mixer, _ in parts]
    rows, width = mixed.shape
    for part in _blocks(width, max(rows, *(mixer.limbs[0].shape[1] for mixer in mixers))):
        products = parts[0][0].products(parts[0][1][:, part], exponent)
        for more, x in parts[1:]:
            products += more.products(x[:, part], exponent)
        mixed[:, part] = mixers[0].combine(products, exponent)


def _blocks(width: int, rows: int) -> Iterator[slice]:
    """Columns of ``rows`` rows that are mixed at a time."""
    step = max(1, BLOCK // max(1, rows))
    for start in range(0, width, step):
        yield slice(start, min(start + step, width))


def mixer(
    rows: scipy.sparse.csr_array,
    own: np.ndarray,
    longest: int,
    limbs: int,
) -> Mixer:
    """Return full rows of a mixing matrix in fixed point."""
    bits = _bits(longest, limbs)
    coo = rows.tocoo()
    row, column = coo.row, coo.col
    others = column != own[row]
    row, column, values = row[others], column[others], coo.data[others]
    made = []
    for k, part in enumerate(_split(values, 0, bits, limbs)):
        rest = np.bincount(row, part, minlength=len(own))
        diagonal = (float(1 << bits) if k == 0 else 0.0) - rest
        data = np.concatenate([part, diagonal])
        places = (np.append(row, np.arange(len(own))), np.append(column, own))
        made.append(scipy.sparse.csr_array((data, places), shape=rows.shape))
    return Mixer([_as_dense_as_it_is(limb) for limb in made], bits)


def _bits(longest: int, limbs: int) -> int:
    """Bits of a limb for which sums of products over a row and ``limbs`` limbs stay below 2**53."""
    return (53 - int(longest * limbs).bit_length()) // 2


def _as_dense_as_it_is(
    limb: np.ndarray | scipy.sparse.csr_array,
) -> np.ndarray | scipy.sparse.csr_array:
    """A dense array where that multiplies faster."""
    if isinstance(limb, np.ndarray):
        return limb
    return limb.toarray() if limb.nnz > 0.2 * limb.shape[0] * limb.shape[1] else limb


def _split(values: np.ndarray, by: int, bits: int, count: int) -> list[np.ndarray]:
    """Integers a_k with values 2**by = sum_k a_k 2**(-bits (k + 1)) up to 2**(-bits count)."""
    if abs(by) < 900:
        rest = np.multiply(values, 2.0 ** (by + bits), dtype=np.float64)
    else:
        rest = shifted(shifted(values.astype(np.float64), by), bits)
    limbs = []
    for left in reversed(range(count)):
        limbs.append(np.rint(rest, out=None if left else rest))
        if left:
            rest -= limbs[-1]
            rest *= 2.0**bits
    return limbs
