"""Sums over clients that do not depend on how clients are grouped into ranks.

Rows of which a few coordinates are nonzero; operations on them touch no others.

How a server's sums go over ranks: over all at once, or node by node through shared memory.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import raise_first_diverged
from mpifed.mpi.communicator import Communicator
from mpifed.mpi.sums import FlatSums, Sums
from mpifed.state import on_host

if TYPE_CHECKING:
    from jaxtyping import Float, Float64, Int64
import logging

from mpifed.errors import RunError
from mpifed.watchdog.shared_memory import PLACE, room


@dataclass(frozen=True)
class SparseRows:
    """Rows of ``size`` numbers, zero except for ``values`` at ``columns``."""

    columns: np.ndarray
    values: Tensor
    size: int

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    @cached_property
    def places(self) -> np.ndarray:
        """Positions of the values in the flattened rows, int64 (clients, k)."""
        return places(self.columns, self.size)

    def scaled(self, scale: float) -> SparseRows:
        """Return the rows multiplied by ``scale``."""
        return SparseRows(self.columns, self.values * scale, self.size)


def places(columns: np.ndarray, size: int) -> np.ndarray:
    """Return positions in flattened rows."""
    return columns + np.arange(0, len(columns) * size, size)[:, None]


def gathered(rows: Tensor, columns: np.ndarray) -> Tensor:
    """Return the numbers of each of ``rows``, (clients, size), at its ``columns``, (clients, k)."""
    at = places(columns, rows.shape[1])
    flat = rows.contiguous().view(-1)
    if rows.device.type != "cpu":
        return flat[torch.from_numpy(at).to(rows.device)]
    return torch.from_numpy(flat.numpy()[at])


def add_scaled(rows: Tensor, more: Tensor | SparseRows, scale: float) -> Tensor:
    """Return rows + scale * more."""
    if not isinstance(more, SparseRows):
        return more.mul(scale).add_(rows)
    whole = rows.clone()
    if rows.device.type != "cpu":
        places_ = torch.from_numpy(more.places).to(rows.device)
        whole.view(-1)[places_] += more.values * scale
        return whole
    whole.view(-1).numpy()[more.places] += (more.values * scale).numpy()
    return whole


# Numbers of its rows that a GPU works on at once.
ON_GPU = 1 << 24

# Numbers of its rows that are worked on at once, to stay in a core's cache.
CACHED = 1 << 14


def common_exponents(
    communicator: Communicator, tensors: list[Tensor], ids: np.ndarray, what: str
) -> list[int]:
    """Return for each tensor of rows the least e with |value| < 2**e over all ranks.
    Collective.
    """
    found = [largest(t) for t in tensors]
    finite = all(np.isfinite(found))
    own = [] if finite else _bad_clients(tensors, ids)
    first = -float(own[0]) if own else -np.inf
    answer = communicator.max(np.array([*(found if finite else [0.0] * len(found)), first]))
    raise_first_diverged(-answer[-1], own, what)
    return [int(np.frexp(value)[1]) for value in answer[:-1]]


def largest(tensor: Tensor) -> float:
    """Return the largest modulus, without a copy of the tensor; NaN if it has one, 0 if empty."""
    if tensor.device.type != "cpu":
        return float(tensor.detach().abs().max()) if tensor.numel() else 0.0
    return float(largest_of_rows(tensor.detach().reshape(1, -1).numpy())[0])


def largest_of_rows(flat: Float[np.ndarray, "rows width"]) -> Float64[np.ndarray, " rows"]:
    """Return the largest modulus of each row, NaN where there is one: float64 (rows,)."""
    width = max(CACHED // 8, 4 * CACHED // max(1, len(flat)))
    if flat.shape[1] > width:
        blocks = [flat[:, start : start + width] for start in range(0, flat.shape[1], width)]
        return functools.reduce(np.maximum, map(largest_of_rows, blocks))
    # numpy's are faster than torch's, and need no copy.
    low, high = flat.min(1, initial=0), flat.max(1, initial=0)
    return np.maximum(-low, high).astype(np.float64) + 0.0  # never -0.0


def _bad_clients(tensors: list[Tensor], ids: np.ndarray) -> list[int]:
    rows = [torch.isfinite(t.flatten(1)).all(1) for t in tensors if len(t)]
    return [int(client) for client in ids[~torch.stack(rows).all(0).cpu().numpy()]]


def weighted_sum(
    communicator: Communicator,
    rows: Float[Tensor, "clients *shape"] | SparseRows,
    weights: Float64[np.ndarray, " clients"],
    ids: Int64[np.ndarray, " clients"],
    n_terms: int,
    what: str = "update",
    sums: Sums | None = None,
) -> Float64[np.ndarray, "*shape"]:
    """Return sum_t weights[t] rows[t] over the clients of all ranks, float64. Collective."""
    sums = FlatSums(communicator.begin_total) if sums is None else sums
    # A product rounded up can reach 2**exponent, hence the extra bit of headroom.
    bits = 61 - int(n_terms).bit_length()
    if isinstance(rows, SparseRows):
        terms = on_host(rows.values) * weights[:, None]
        exponent = _common_exponent(communicator, terms, ids, what)
        shape: tuple[int, ...] = (rows.size,)
    else:
        flat = rows.detach().flatten(1)
        scaled = _moduli(flat) * np.abs(weights)
        exponent = _common_exponent(communicator, scaled[:, None], ids, what)
        shape = rows.shape[1:]
    limbs = 2 if rows.dtype == torch.float64 else 1
    total = sums.array((math.prod(shape),), np.float64)
    # Integers are made, added and turned into numbers where the result will be, if that is ours.
    in_place = limbs == 1 and not sums.shared
    under_way: deque[tuple[slice, Callable[[], np.ndarray]]] = deque()

    def end() -> None:
        part, ended = under_way.popleft()
        share = sums.share(part.stop - part.start)
        _combine(ended(), bits, exponent, total[part][share])

    for start in range(0, len(total), sums.columns):
        part = slice(start, min(start + sums.columns, len(total)))
        width = part.stop - part.start
        own = total[part].view(np.int64) if in_place else np.empty(limbs * width, np.int64)
        own = own.reshape(limbs, width)
        if isinstance(rows, SparseRows):
            _sparse_limbs(rows.columns, terms, part, bits, exponent, own)
        else:
            _dense_limbs(flat[:, part], weights, bits, exponent, own)
        # While these columns travel, the next are turned into integers.
        under_way.append((part, sums.begin(own)))
        if len(under_way) > sums.under_way:
            end()
    while under_way:
        end()
    sums.filled()
    return total.reshape(shape)


def sum_and_mass(
    communicator: Communicator,
    rows: Float[Tensor, "clients *shape"],
    weights: Float64[np.ndarray, " clients"],
    ids: Int64[np.ndarray, " clients"],
    n_terms: int,
    what: str = "update",
) -> tuple[Float64[np.ndarray, "*shape"], float]:
    """Return sum_t weights[t] rows[t] and sum_t weights[t], as two ``weighted_sum`` do.
    Collective.
    """
    flat, ones = rows.detach().flatten(1), torch.ones(len(weights), 1, dtype=torch.float64)
    bits, moduli = 61 - int(n_terms).bit_length(), np.abs(weights)
    values = [torch.from_numpy(each[:, None]) for each in (_moduli(flat) * moduli, moduli)]
    exponents = common_exponents(communicator, values, ids, what)
    limbs, width = 2 if rows.dtype == torch.float64 else 1, flat.shape[1]
    own = np.empty(limbs * width + 2, np.int64)
    parts = own[:-2].reshape(limbs, width), own[-2:].reshape(2, 1)
    for each, exponent, part in zip((flat, ones), exponents, parts, strict=True):
        _dense_limbs(each, weights, bits, exponent, part)
    communicator.total(own)
    total, mass = np.empty(width), np.empty(1)
    for made, exponent, part in zip((total, mass), exponents, parts, strict=True):
        _combine(part, bits, exponent, made)
    return total.reshape(rows.shape[1:]), float(mass[0])


def _combine(limbs: np.ndarray, bits: int, exponent: int, numbers: np.ndarray) -> None:
    """Fill ``numbers`` by the sum of ``limbs``, int64 (limbs, columns), of ``bits`` bits each."""
    for start in range(0, len(numbers), CACHED):
        part = slice(start, start + CACHED)
        made = limbs[0, part].astype(np.float64)
        _shift(made, exponent - bits)
        for k in range(1, len(limbs)):
            made += shifted(limbs[k, part].astype(np.float64), exponent - bits * (k + 1))
        numbers[part] = made


def _common_exponent(
    communicator: Communicator, values: np.ndarray, ids: np.ndarray, what: str
) -> int:
    (exponent,) = common_exponents(communicator, [torch.from_numpy(values)], ids, what)
    return exponent


def _moduli(flat: Tensor) -> np.ndarray:
    """``largest_of_rows`` of a tensor on any device."""
    if flat.device.type == "cpu" or not flat.numel():
        return largest_of_rows(on_host(flat))
    return on_host(flat.abs().amax(1).double())


def _dense_limbs(
    rows: Tensor, weights: np.ndarray, bits: int, exponent: int, own: np.ndarray
) -> None:
    """``_limbs`` of rows on any device."""
    make = _limbs if rows.device.type == "cpu" else _limbs_on_gpu
    make(rows, weights, bits, exponent, own)


def _limbs_on_gpu(
    rows: Tensor, weights: np.ndarray, bits: int, exponent: int, own: np.ndarray
) -> None:
    """``_limbs`` where the rows are: the same integers, so that only their sums are moved."""
    if abs(bits - exponent) >= 1000:
        _limbs(rows.cpu(), weights, bits, exponent, own)
        return
    w = torch.from_numpy(weights).to(rows.device)[:, None]
    sums = torch.empty(own.shape, dtype=torch.int64, device=rows.device)
    width = max(1, ON_GPU // max(1, len(rows)))
    for start in range(0, rows.shape[1], width):
        part = slice(start, start + width)
        terms = rows[:, part] * w
        terms *= 2.0 ** (bits - exponent)
        for limb in range(len(own)):
            whole = terms.round()
            sums[limb, part] = whole.long().sum(0)
            terms = (terms - whole) * 2.0**bits
    own[:] = on_host(sums)


def _limbs(rows: Tensor, weights: np.ndarray, bits: int, exponent: int, own: np.ndarray) -> None:
    """Fill ``own`` by sum_t weights[t] rows[t] over the rows here, as integers of ``bits``
    bits.
    """
    flat, by = rows.numpy(), bits - exponent
    if not len(flat):
        own[:] = 0
    factors, left = (weights * 2.0**by, 0) if _scales_exactly(weights, by) else (weights, by)
    width = max(1, min(CACHED, flat.shape[1]))
    count = max(1, CACHED // width)
    for start in range(0, flat.shape[1], width):
        part = slice(start, start + width)
        for first in range(0, len(flat), count):
            some = slice(first, first + count)
            terms = np.multiply(flat[some, part], factors[some, None], dtype=np.float64)
            for limb, whole in enumerate(_integers(terms, bits, left, len(own))):
                more = whole.sum(0) if len(whole) > 1 else whole[0]
                if first:
                    more += own[limb, part]
                own[limb, part] = more


def _scales_exactly(weights: np.ndarray, by: int) -> bool:
    """Whether products with ``weights`` times 2**by are those with ``weights``, times 2**by."""
    moduli = np.abs(weights[weights != 0])
    return abs(by) < 900 and bool(((moduli > 2.0**-100) & (moduli < 2.0**100)).all())


def _sparse_limbs(
    columns: np.ndarray, terms: np.ndarray, part: slice, bits: int, exponent: int, own: np.ndarray
) -> None:
    """The same in the columns of ``part``, from the ``terms`` at ``columns``."""
    if columns.size and (part.start or columns.max() >= part.stop):
        within = (columns >= part.start) & (columns < part.stop)
        columns, terms = columns[within] - part.start, terms[within]
    else:
        terms = terms.copy()
    own[:] = 0
    for limb, whole in enumerate(_integers(terms, bits, bits - exponent, len(own))):
        np.add.at(own[limb], columns, whole)


def _integers(terms: np.ndarray, bits: int, by: int, limbs: int) -> Iterator[np.ndarray]:
    """Terms times 2**by as integers, and what is left in units of 2**-bits, int64 each."""
    if by:
        _shift(terms, by)
    for left in reversed(range(limbs)):
        whole = np.rint(terms, out=None if left else terms)
        yield whole.astype(np.int64)
        if left:
            terms -= whole
            _shift(terms, bits)


def shifted(values: np.ndarray, by: int) -> np.ndarray:
    """``values`` times 2**by; np.ldexp where that power is not a normal number."""
    return values * 2.0**by if abs(by) < 1000 else np.ldexp(values, by)


def _shift(values: np.ndarray, by: int) -> None:
    """``shifted`` in place."""
    if abs(by) < 1000:
        values *= 2.0**by
    else:
        np.ldexp(values, by, out=values)


# Numbers from which a sum goes node by node; the steps of a smaller one cost more than they save.
LARGE = 1 << 12

# The same where there is a single node, between whose ranks MPI is as fast up to there.
LARGE_ON_ONE_NODE = 1 << 18

# Arrays of a message's size that a node holds at a time: sums, and models before and after.
ARRAYS = 4


class Grouping:
    """The way of the sums of a run."""

    def __init__(self, communicator: Communicator, asked: str) -> None:
        self._communicator, self._asked = communicator, asked
        self._flat = FlatSums(communicator.begin_total)
        self._has_room: dict[int, bool] = {}

    @cached_property
    def _nodes(self) -> np.ndarray:
        return self._communicator.nodes()

    @cached_property
    def _ranks(self) -> np.ndarray:
        """Ranks of each node."""
        return np.bincount(self._nodes)

    @cached_property
    def _by_node(self) -> Sums:
        return self._communicator.node_sums(self._nodes)

    def goes_by_node(self, size: int) -> bool:
        """Whether a sum of ``size`` numbers goes node by node. Collective when first asked for."""
        if self._asked == "flat" or self._communicator.size == 1 or size < LARGE:
            return False
        if self._asked == "hierarchical":
            return True
        return int(self._ranks.max()) > 1 and (len(self._ranks) > 1 or size >= LARGE_ON_ONE_NODE)

    def is_shared(self, size: int) -> bool:
        """Whether a node holds a sum of ``size`` numbers once. Collective when first asked for."""
        return self.sums(size) is not self._flat

    def sums(self, size: int) -> Sums:
        """Return how messages of ``size`` numbers are added. Collective when first asked for."""
        if not self.goes_by_node(size):
            return self._flat
        if size not in self._has_room:
            self._has_room[size] = self._fits(size, self._by_node)
        return self._by_node if self._has_room[size] else self._flat

    def average(self, total: np.ndarray, divisor: float, kept: float, before: Tensor) -> Tensor:
        """Return total / divisor + kept before in the type of ``before``. Collective."""
        sums = self.sums(total.size)
        kind = np.float64 if before.dtype == torch.float64 else np.float32
        made = torch.from_numpy(sums.array(before.shape, kind))
        part = sums.share(total.size)
        share = torch.from_numpy(total.reshape(-1)[part]).div_(divisor)
        if kept:
            share += before.reshape(-1)[part].to("cpu", torch.float64, copy=True).mul_(kept)
        made.view(-1)[part] = share
        sums.filled()
        return made.to(before.device)

    def describe(self, size: int) -> str:
        """Return how messages of ``size`` numbers are added, in words. Collective."""
        if not self.goes_by_node(size):
            return "an Allreduce of int64"
        if len(self._ranks) == 1:
            return "ranks add in shared memory"
        return (
            f"an Allreduce of int64 between {len(self._ranks)} nodes; ranks of a node add in "
            "shared memory"
        )

    def participants(self, size: int) -> int:
        """How many ranks hand a sum of ``size`` numbers to MPI. Collective when first asked for."""
        nodes = len(self._ranks) if self.goes_by_node(size) else self._communicator.size
        return nodes if nodes > 1 else 0

    def _fits(self, size: int, sums: Sums) -> bool:
        scratch = 2 * min(size, sums.columns) * (int(self._ranks.max()) + 1)
        needed = 8 * (scratch + ARRAYS * size)
        least = int(-self._communicator.max(np.array([-float(room())]))[0])
        if least >= needed:
            return True
        what = (
            f"node by node a sum of {size} numbers needs {needed} bytes of shared memory, and a "
            f"node has {least} in {PLACE}"
        )
        if self._asked == "hierarchical":
            raise RunError(f"exchange.reduction is 'hierarchical': {what}; allowed here: flat")
        if self._communicator.rank == 0 and len(self._ranks) > 1:
            logging.getLogger("mpifed").warning("%s: ranks add all at once", what)
        return False
