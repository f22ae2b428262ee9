"""Compressors: what a message loses on its way, one row per client."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from mpifed.components.registry import make, named, plain
from mpifed.errors import InputError
from mpifed.federation.clients import Draws
from mpifed.federation.federation import Federation
from mpifed.random import rows_of_bits
from mpifed.state import check_result, on_host
from topologies.parameters import ComponentOf

PURPOSE = "compression"
"""The stream that compressors draw from, unless the caller names another."""

NUMBERS = 1 << 15
"""Numbers compressed at a time, so that what is drawn for them stays in a core's cache."""

# What an explicit index takes: an int32.
INDEX_BITS = 32

# Share of the coordinates up to which they are handled one by one, not as rows with zeros.
FEW = 0.25

# What a block's scale takes: a float32, whatever the rows are.
SCALE_BITS = 32

# The integer as wide as a float, and its bits of fraction.
FORMATS = {torch.float32: (torch.int32, 23), torch.float64: (torch.int64, 52)}


class Compressor(ABC):
    """Base class of compressors; its keyword-only parameters are its options.

    A subclass has ``__call__`` and ``bits``; an unbiased one has ``omega`` too. Numbers that are
    not finite arrive so: by them a run learns which client's update diverged.

    Attributes
    ----------
    unbiased : bool
        Whether E C(v) = v; false by default.
    """

    unbiased: bool = False

    def omega(self, size: int) -> float:
        """Return the least known omega for rows of ``size`` numbers; ``ValueError`` if biased."""
        name = type(self).__name__
        if self.unbiased:
            raise InputError(f"compressor {name} is unbiased, but has no omega of its own")
        raise ValueError(f"{name} is biased: it has no omega")

    def contraction(self, size: int) -> float:
        """Return the largest known delta for rows of ``size`` numbers: 1 / (1 + omega), and 0,
        that none is known, if biased.
        """
        return 1 / (1 + self.omega(size)) if self.unbiased else 0.0

    @abstractmethod
    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        """Return what arrives of ``rows``."""

    @abstractmethod
    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        """Return the bits of each client's message, int64 (clients,).

        Parameters
        ----------
        size : int
            Numbers in a row.
        itemsize : int
            Bytes of a number.
        draws, ids, purpose
            As of the call that compresses the message.
        """

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        """Return the numbers in each client's message, in any encoding, int64 (clients,): all.

        The parameters are as in ``bits``.
        """
        return np.full(len(ids), size, np.int64)

    def coordinates(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str
    ) -> np.ndarray | None:
        """Return which few coordinates are sent, where that does not depend on the rows: int64
        (clients, k), in any order. They arrive multiplied by ``scale``. None by default.
        """
        return None

    def scale(self, size: int) -> float:
        """Return what sent coordinates are multiplied by."""
        return 1.0


class Identity(Compressor):
    """No compression: every number is sent as it is."""

    unbiased = True

    def omega(self, size: int) -> float:
        return 0.0

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        return rows

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), 8 * itemsize * size, np.int64)


def build(section: Any, path: str = "compression") -> Compressor:
    """Return the compressor that a section of the configuration asks for.

    Parameters
    ----------
    section : str or mapping
        A name, or a mapping with a name and options.
    path : str
        The section's place in the configuration, for messages.

    Raises
    ------
    InputError
        For what is unknown, out of range, a combination that cannot be, or not a compressor.

    Examples
    --------
    >>> build({"name": "rand_k", "k": 2}).omega(size=10)
    4.0
    """
    return cast(Compressor, make("compression", section, path))


def proven_contraction(compressor: Compressor, size: int) -> float:
    """Return delta, from which a step is to be computed; ``InputError`` where none is known."""
    delta = compressor.contraction(size)
    if delta == 0:
        raise InputError(
            f"compressor {type(compressor).__name__} is biased and has no contraction of its own, "
            "from which a step could be proven; give it one, or set exchange.consensus_step "
            "(gossip) or algorithm.step (FLIX)"
        )
    return delta


def compressed(
    compressor: Compressor, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str
) -> Tensor:
    """Return what arrives of ``rows``; ``TypeError`` if the compressor changes their form."""
    arrived = compressor(rows, draws, ids, purpose)
    check_result(arrived, rows, compressor, "__call__")
    return arrived


def message_sizes(
    compressor: Compressor, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bits and the numbers of each client's message, int64 (clients,)."""
    bits = compressor.bits(size, itemsize, draws, ids, purpose)
    floats = compressor.floats(size, draws, ids, purpose)
    for name, sizes in (("bits", bits), ("floats", floats)):
        check_result(sizes, np.zeros(len(ids), np.int64), compressor, name)
    return bits, floats


def random_bits(draws: Draws, purpose: str, ids: np.ndarray, size: int) -> np.ndarray:
    """Return 64 random bits for each coordinate of each client's row, uint64 (clients, size).

    Parameters
    ----------
    draws : Draws
        The random numbers of the round.
    purpose : str
        Name of the random stream.
    ids : ndarray
        Numbers of the clients, int64 (clients,).
    size : int
        Numbers in a row.
    """
    return rows_of_bits(draws.client_keys(purpose, ids), size)


def chunks(clients: int, size: int) -> Iterator[slice]:
    """Return slices of the clients whose rows of ``size`` numbers are compressed together.

    There are about ``NUMBERS`` numbers in a chunk.
    """
    step = max(1, NUMBERS // max(size, 1))
    return (slice(lo, lo + step) for lo in range(0, clients, step))


__all__ = ["Compressor", "build"]


class Sparsifier(Compressor):
    """A compressor C(v) = scale (mask v) whose mask has ``n_kept(size)`` ones in every row.

    They are ``k``, or a ``fraction`` of the numbers where k is null.
    """

    def __init__(self, k: float | None, fraction: float | None, indices: str = "int32") -> None:
        if k is None and fraction is None:
            raise InputError(
                "compression.k and compression.fraction are both empty; one must say how many "
                "coordinates are sent"
            )
        is_share = k is not None and k < 1
        self.fraction, self.indices = k if is_share else fraction, indices
        self.k = None if k is None or is_share else int(k)

    def index_bits(self, size: int) -> int:
        """Return what an index into a row of ``size`` numbers takes."""
        return {"seed": 0, "log2": (size - 1).bit_length()}.get(self.indices, INDEX_BITS)

    @abstractmethod
    def scale(self, size: int) -> float:
        """Return what the kept coordinates are multiplied by."""

    @abstractmethod
    def select(self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str) -> np.ndarray:
        """Return which coordinates are kept: bool (clients, size), ``n_kept(size)`` of each row."""

    def n_kept(self, size: int) -> int:
        """Return k, how many coordinates are sent; ``InputError`` if it is above ``size``."""
        if self.k is None:
            return min(size, max(1, int(np.floor((self.fraction or 0) * size + 0.5))))
        if self.k > size:
            raise InputError(
                f"compression.k is {self.k}; it must be at most the numbers in a message, {size}"
            )
        return self.k

    def contraction(self, size: int) -> float:
        return self.n_kept(size) / size

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        sent = torch.empty_like(rows)
        scale = self.scale(rows.shape[1])
        for part in chunks(*rows.shape):
            mask = torch.from_numpy(self.select(rows[part], draws, ids[part], purpose))
            mask = mask.to(rows.device)
            # A product, not a choice: 0 times what is not finite is not finite, and so is seen.
            torch.mul(rows[part], mask, out=sent[part]).mul_(scale)
        return sent

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        each = 8 * itemsize + self.index_bits(size)
        # A row with zeros, where that is shorter.
        return np.full(len(ids), min(self.n_kept(size) * each, 8 * itemsize * size), np.int64)

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), self.n_kept(size), np.int64)


class RandK(Sparsifier):
    """k coordinates, drawn uniformly, times d / k (Gasanov et al. 2022, section 4).

    They are drawn without replacement, and omega = d / k - 1.

    Parameters
    ----------
    k : int or float, optional
        Number of coordinates that are sent, or below 1 their share, as ``fraction``, to which
        None leaves it.
    fraction : float
        Share of the coordinates that is sent, at least one of them.
    indices : {'seed', 'explicit', 'log2'}
        Whether the receiver draws the indices too, at no cost, or they are sent, as int32 or in
        ceil(log2 d) bits each.
    """

    unbiased = True

    def __init__(
        self,
        *,
        k: Annotated[int, Ge(1)] | Annotated[float, Gt(0), Lt(1)] | None = None,
        fraction: Annotated[float, Gt(0), Le(1)] | None = 0.1,
        indices: Literal["seed", "explicit", "log2"] = "seed",
    ) -> None:
        super().__init__(k, fraction, indices)

    def omega(self, size: int) -> float:
        return size / self.n_kept(size) - 1

    def scale(self, size: int) -> float:
        return size / self.n_kept(size)

    def select(self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str) -> np.ndarray:
        size = rows.shape[1]
        k = self.n_kept(size)
        if k == size:
            return np.ones((len(ids), size), bool)
        values = _distinct(draws, purpose, ids, size)
        return values <= np.partition(values, k - 1, axis=1)[:, k - 1 : k]

    def coordinates(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str
    ) -> np.ndarray | None:
        """Return the coordinates that ``select`` will keep, in any order: int64 (clients, k)."""
        k = self.n_kept(size)
        if k > FEW * size or not len(ids):
            return None
        parts = []
        for part in chunks(len(ids), size):
            values = _distinct(draws, purpose, ids[part], size)
            values.partition(k - 1, axis=1)
            parts.append(values[:, :k] & _positions(size)[0])
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).view(np.int64)


class TopK(Sparsifier):
    """The k coordinates of largest magnitude, with their indices: biased, delta = k / d.

    Parameters
    ----------
    k : int or float, optional
        Number of coordinates that are sent, or below 1 their share, as ``fraction``, to which
        None leaves it.
    fraction : float
        Share of the coordinates that is sent, at least one of them.
    indices : {'int32', 'log2'}
        Whether an index is sent as int32 or in ceil(log2 d) bits.
    """

    def __init__(
        self,
        *,
        k: Annotated[int, Ge(1)] | Annotated[float, Gt(0), Lt(1)] | None = None,
        fraction: Annotated[float, Gt(0), Le(1)] | None = 0.1,
        indices: Literal["int32", "log2"] = "int32",
    ) -> None:
        super().__init__(k, fraction, indices)

    def scale(self, size: int) -> float:
        return 1.0

    def select(self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str) -> np.ndarray:
        size = rows.shape[1]
        k = self.n_kept(size)
        magnitudes = on_host(rows.detach().abs())
        # NaN is sent first, so that it is seen.
        magnitudes[np.isnan(magnitudes)] = np.inf
        least = np.partition(magnitudes, size - k, axis=1)[:, size - k : size - k + 1]
        larger, equal = magnitudes > least, magnitudes == least
        room = k - larger.sum(axis=1, keepdims=True)
        return larger | (equal & (equal.cumsum(axis=1) <= room))


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


class Quantise(Compressor):
    """Each number as one of 2 s + 1 levels, rounded without bias (QSGD, Alistarh et al. 2017).

    Levels are shares of the largest number of its block, as in Lemma 3.1.

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

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        blocks = -(-size // self.block_of(size))
        return np.full(len(ids), size * (2 * self.s).bit_length() + SCALE_BITS * blocks, np.int64)

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
            return _rounded_up(np.abs(x).max(axis=1, initial=0))[:, None]
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
    """Each number as a power of two, the one below or above, without bias: omega = 1 / 8.

    This is natural compression (Horvath et al. 2019, section 2).
    """

    unbiased = True

    def omega(self, size: int) -> float:
        return 1 / 8

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), size * {4: 9, 8: 12}[itemsize], np.int64)

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


class Sign(Compressor):
    """The sign of each number, and their mean magnitude: biased, delta = 1 / d at least.

    These are the scaled signs of EF-SignSGD (Karimireddy et al. 2019, Lemma 8).
    """

    def contraction(self, size: int) -> float:
        return 1 / size

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), size + SCALE_BITS, np.int64)

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        # One call for every row: how numpy groups a sum must not depend on the others.
        sums = np.array([np.add.reduce(row) for row in np.abs(on_host(rows)).astype(np.float64)])
        scale = (sums / rows.shape[1]).astype(np.float32)
        sent = torch.from_numpy(scale).to(rows)[:, None].expand_as(rows)
        return torch.where(rows < 0, -sent, sent)


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


class BernoulliGate(Compressor):
    """A gate: with probability p what inner makes, over p, else nothing is sent.

    Parameters
    ----------
    p : float
        Probability that the gate is open.
    inner : str or mapping
        The compressor behind the gate.
    """

    def __init__(
        self,
        *,
        p: Annotated[float, Gt(0), Le(1)] = 0.5,
        inner: Annotated[Any, ComponentOf("compression")] = "none",
    ) -> None:
        self.p, self.inner = p, build(inner, "compression.inner")
        self.unbiased = self.inner.unbiased

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the same options; raise ``InputError`` if ``inner`` is not a compressor."""
        BernoulliGate(**options)
        return options

    def omega(self, size: int) -> float:
        return (1 + self.inner.omega(size)) / self.p - 1

    def contraction(self, size: int) -> float:
        return self.p * self.inner.contraction(size)

    def open(self, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE) -> np.ndarray:
        """Return whose gate is open: bool (clients,)."""
        bits = random_bits(draws, f"{purpose}/gate", ids, 1)[:, 0]
        return (bits >> np.uint64(11)) * 2.0**-53 < self.p

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        gate = torch.from_numpy(self.open(draws, ids, purpose)).to(rows)[:, None]
        return self.inner(rows, draws, ids, purpose) * (gate / self.p if self.unbiased else gate)

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        sent = self.inner.bits(size, itemsize, draws, ids, purpose)
        return np.where(self.open(draws, ids, purpose), sent, 0)

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        sent = self.inner.floats(size, draws, ids, purpose)
        return np.where(self.open(draws, ids, purpose), sent, 0)


class Composition(Compressor):
    """Outer after inner: the coordinates that inner keeps, as outer writes them.

    After a biased inner the result is divided by 1 + omega_outer(k), which makes it a contraction
    with delta = delta_inner / (1 + omega_outer) (Basu et al. 2019, section 2).

    Parameters
    ----------
    outer : str or mapping
        The compressor that writes the kept coordinates; it must be unbiased.
    inner : str or mapping
        The compressor that keeps some of the coordinates: ``rand_k`` or ``top_k``.
    """

    def __init__(
        self,
        *,
        outer: Annotated[Any, ComponentOf("compression")] = "quantise",
        inner: Annotated[Any, ComponentOf("compression")] = "rand_k",
    ) -> None:
        inner_name, _ = named(inner, "compression.inner")
        outer_name, _ = named(outer, "compression.outer")
        first = build(inner, "compression.inner")
        self.outer = build(outer, "compression.outer")
        if not isinstance(first, Sparsifier):
            raise InputError(
                f"compression.inner is '{inner_name}', which sends every coordinate, so that "
                "nothing is saved by writing them twice; allowed: rand_k, top_k"
            )
        if isinstance(self.outer, (Sparsifier, BernoulliGate, Composition)):
            raise InputError(
                f"compression.outer is '{outer_name}', which does not write numbers but leaves "
                "some out; allowed: none, quantise, natural (a gate goes around a composition: "
                "bernoulli with the composition as its inner)"
            )
        if not self.outer.unbiased:
            raise InputError(
                f"compression.outer is '{outer_name}', which is biased; what writes the kept "
                "coordinates must be unbiased, as quantise and natural are"
            )
        self.inner: Sparsifier = first
        self.unbiased = first.unbiased

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the same options; raise ``InputError`` for parts that cannot be combined."""
        Composition(**options)
        return options

    def omega(self, size: int) -> float:
        outer = self.outer.omega(self.inner.n_kept(size))
        return (1 + self.inner.omega(size)) * (1 + outer) - 1

    def contraction(self, size: int) -> float:
        outer = self.outer.omega(self.inner.n_kept(size))
        return self.inner.contraction(size) / (1 + outer)

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        size = rows.shape[1]
        k, scale = self.inner.n_kept(size), self.inner.scale(size)
        if not self.unbiased:
            scale /= 1 + self.outer.omega(k)
        # 0 times what is not finite is not finite, so that it is seen if it is left out.
        arrived = rows * 0
        for part in chunks(*rows.shape):
            chosen = self.inner.select(rows[part], draws, ids[part], purpose)
            mask = torch.from_numpy(chosen).to(rows.device)
            values = rows[part][mask].view(-1, k) * scale
            written = self.outer(values, draws, ids[part], f"{purpose}/outer")
            arrived[part][mask] += written.view(-1)
        return arrived

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        k = self.inner.n_kept(size)
        written = self.outer.bits(k, itemsize, draws, ids, f"{purpose}/outer")
        return k * self.inner.index_bits(size) + written

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return self.inner.floats(size, draws, ids, purpose)


class InOrder(Compressor):
    """Several compressors, one applied after the other: a list in a configuration.

    What follows ``rand_k`` or ``top_k`` writes the coordinates that these keep (``composition``);
    ``bernoulli`` is a gate before all that stands in front of it.

    Parameters
    ----------
    parts : list of str or mapping
        The compressors; ``compression: [{name: top_k, k: 0.1}, {name: quantise}]`` is one list.
    """

    def __init__(self, *, parts: list[Annotated[Any, ComponentOf("compression")]]) -> None:
        self.composed = composed(parts)
        self.unbiased = self.composed.unbiased

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the same options; raise ``InputError`` for parts that cannot be combined."""
        InOrder(**options)
        return options

    def omega(self, size: int) -> float:
        return self.composed.omega(size)

    def contraction(self, size: int) -> float:
        return self.composed.contraction(size)

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        return self.composed(rows, draws, ids, purpose)

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return self.composed.bits(size, itemsize, draws, ids, purpose)

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return self.composed.floats(size, draws, ids, purpose)


def composed(parts: Sequence[Any]) -> Compressor:
    """Return the compressor that applies ``parts`` in order."""
    if not parts:
        raise InputError("compression is an empty list; it must have a compressor at least")
    chain, *others = map(plain, parts)
    for k, part in enumerate(others, start=1):
        name, options = named(part, f"compression[{k}]")
        if name != "bernoulli":
            chain = {"name": "composition", "inner": chain, "outer": part}
        elif options.get("inner", "none") in ("none", {"name": "none"}):
            chain = {**options, "name": name, "inner": chain}
        else:
            raise InputError(
                f"compression[{k}].inner is given, but in a list bernoulli is the gate before what "
                "stands in front of it; allowed: none"
            )
    return build(chain)


def message_variance(compressor: Compressor | None, federation: Federation, size: int) -> float:
    """Return omega of a client's message, participation included: (1 + omega) / p - 1."""
    omega = compressor.omega(size) if compressor is not None else 0.0
    return (1 + omega) / federation.inclusion - 1
