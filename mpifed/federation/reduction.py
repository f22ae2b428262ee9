"""Sums over clients along one binary tree, so that ranks and placements change no number.

A sum is made of additions in the rows' own type of floating-point numbers, in the order that
``Federation.tree`` says. A client that takes no part is no term; a subtree without any stands as
zero, and no total is -0.0, so that this leaves every bit. A rank adds the subtrees whose clients
all live there; what these come to is added for all ranks, each of which takes a share of the
columns.

``SparseRows`` are rows of which a few coordinates are nonzero; operations on them touch no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import raise_first_diverged
from mpifed.federation.federation import Federation
from mpifed.federation.tree import APART, GROUP, Subtrees, merges
from mpifed.mpi.communicator import Communicator
from mpifed.state import is_finite, on_host

# Numbers of its rows that a GPU works on at once.
ON_GPU = 1 << 24

# Columns from which rows are added one by one, without copies of those that are added together.
WIDE = 1 << 10

# Columns that each rank adds at a time, at most.
COLUMNS = 1 << 20


@dataclass(frozen=True)
class SparseRows:
    """Rows of ``size`` numbers, zero except for ``values`` at ``columns``."""

    columns: np.ndarray
    values: Tensor
    size: int

    @property
    def shape(self) -> torch.Size:
        """The clients and the numbers of each."""
        return torch.Size([len(self.columns), self.size])

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    @cached_property
    def positions(self) -> np.ndarray:
        """Positions of the values in the flattened rows, int64 (clients, k)."""
        return flat_positions(self.columns, self.size)

    def scaled(self, scale: float) -> SparseRows:
        """Return the rows multiplied by ``scale``."""
        return SparseRows(self.columns, self.values * scale, self.size)


def flat_positions(columns: np.ndarray, size: int) -> np.ndarray:
    """Return positions in flattened rows."""
    return columns + np.arange(0, len(columns) * size, size)[:, None]


def gathered(rows: Tensor, columns: np.ndarray) -> Tensor:
    """Return the numbers of each of ``rows``, (clients, size), at its ``columns``, (clients, k)."""
    at = flat_positions(columns, rows.shape[1])
    return rows.contiguous().view(-1)[torch.from_numpy(at).to(rows.device)]


def add_scaled(rows: Tensor, addend: Tensor | SparseRows, scale: float) -> Tensor:
    """Return rows + scale * more."""
    if not isinstance(addend, SparseRows):
        return addend.mul(scale).add_(rows)
    total = rows.clone()
    total.view(-1)[torch.from_numpy(addend.positions).to(rows.device)] += addend.values * scale
    return total


# Numbers, and columns, that are added at a time, to stay in a core's cache.
CACHED, WIDEST = 1 << 20, 1 << 15


# Bytes of all partial sums, and of a rank's share of the columns, up to which rank 0 adds them all:
# then messages cost more than additions.
FEW, SHARE = 1 << 16, 1 << 9


def weighted_sum(
    federation: Federation,
    rows: Tensor | SparseRows,
    weights: np.ndarray,
    ids: np.ndarray,
    what: str = "update",
) -> Tensor:
    """Return sum_t weights[t] rows[t] over the clients ``ids`` of all ranks, in the type of
    ``rows``. Collective.
    """
    return weighted_sums(federation, [rows], weights, ids, what)[0]


def sum_and_mass(
    federation: Federation, rows: Tensor | SparseRows, weights: np.ndarray, ids: np.ndarray
) -> tuple[Tensor, float]:
    """Return ``weighted_sum``, and the sum of the weights in float64. Collective."""
    ones = torch.ones(len(weights), 1, dtype=torch.float64)
    total, mass = weighted_sums(federation, [rows, ones], weights, ids, "update")
    return total, float(mass)


def weighted_sums(
    federation: Federation,
    several: Sequence[Tensor | SparseRows],
    weights: np.ndarray,
    ids: np.ndarray,
    what: str,
) -> list[Tensor]:
    """Return ``weighted_sum`` of each of ``several`` rows of the same clients. Collective."""
    if (ids[1:] < ids[:-1]).any():
        order = np.argsort(ids)
        several = [_chosen(rows, order) for rows in several]
        weights, ids = weights[order], ids[order]
    nbytes = sum(rows.shape[1:].numel() * rows.dtype.itemsize for rows in several)
    pieces = pieces_of(federation, nbytes)
    subtrees = federation.tree.subtrees(ids, federation.communicator.rank)
    parts = [_subtrees(federation, rows, weights, subtrees, pieces) for rows in several]
    if pieces == 1:
        parts = _totals(federation, parts, 1)
    else:
        parts = [_by_shares(federation, part) for part in parts]
    totals = [
        torch.from_numpy(part[0, : rows.shape[1:].numel()]).view(rows.shape[1:])
        for rows, part in zip(several, parts, strict=True)
    ]
    if not all(map(is_finite, totals)):
        values = [rows.values if isinstance(rows, SparseRows) else rows for rows in several]
        check_not_diverged(federation.communicator, values, ids, what)
        check_not_diverged(federation.communicator, [torch.from_numpy(weights)], ids, "weight")
    return [total.add_(0.0).to(rows.device) for total, rows in zip(totals, several, strict=True)]


def _chosen(rows: Tensor | SparseRows, order: np.ndarray) -> Tensor | SparseRows:
    if isinstance(rows, SparseRows):
        return SparseRows(rows.columns[order], rows.values[order], rows.size)
    return rows[torch.from_numpy(order)]


def pieces_of(federation: Federation, nbytes: int) -> int:
    """Return in how many pieces ranks add their sums: 1 where rank 0 adds, or there is no other."""
    ranks, few = federation.communicator.size, FEW // len(federation.tree.roots)
    return 1 if nbytes <= max(few, SHARE * min(ranks, GROUP)) else ranks


def bytes_of_sum(federation: Federation, payload: int) -> int:
    """Return the bytes that MPI moves for a sum of rows of ``payload`` bytes."""
    ranks, tree = federation.communicator.size, federation.tree
    moved, groups = payload * (len(tree.roots) + ranks) * (ranks - 1) // ranks, ranks
    while groups > tree.group:  # their sums, in pieces that only chance keeps where they are
        groups, tree = -(-groups // tree.group), tree.above
        moved += payload * (len(tree.roots) + groups)
    return moved


def check_not_diverged(
    communicator: Communicator, tensors: Sequence[Tensor], ids: np.ndarray, what: str
) -> None:
    """Raise if rows of any client of any rank have a value that is not finite. Collective."""
    diverged: list[int] = []
    if not all(map(is_finite, tensors)):
        fine = [torch.isfinite(t.flatten(1) if t.dim() > 1 else t[:, None]).all(1) for t in tensors]
        diverged = [
            int(client) for client in ids[~torch.stack([f.cpu() for f in fine]).all(0).numpy()]
        ]
    first = communicator.max(np.array([-float(diverged[0]) if diverged else -np.inf]))
    raise_first_diverged(-first[0], diverged, what)


def _subtrees(
    federation: Federation,
    rows: Tensor | SparseRows,
    weights: np.ndarray,
    subtrees: Subtrees,
    pieces: int = 1,
) -> np.ndarray:
    """The sums of the largest subtrees that live on this rank, (subtrees, columns)."""
    if isinstance(rows, SparseRows):
        return _of_few(federation, rows, weights, subtrees, pieces)
    flat, ids = rows.detach().flatten(1), subtrees.ids
    sums = np.empty((subtrees.number, _padded(flat.shape[1], pieces)), on_host(flat[:, :0]).dtype)
    if sums.shape[1] > flat.shape[1]:
        sums[:, flat.shape[1] :] = 0
    if len(subtrees.firsts) < subtrees.number:
        sums[np.setdiff1d(np.arange(subtrees.number), subtrees.subtree_of)] = -0.0
    on_cpu = rows.device.type == "cpu"
    w: Any = torch.from_numpy(weights).to(flat)[:, None]
    x: Any = flat
    if on_cpu:
        x, w = flat.numpy(), w.numpy()
        if len(ids) == len(subtrees.firsts) == subtrees.number:  # each client is a subtree
            np.multiply(x, w, sums[:, : x.shape[1]])
            return sums
    most = min(WIDEST, CACHED // max(1, len(ids))) if on_cpu else ON_GPU // max(1, len(ids))
    width = max(1, min(flat.shape[1], most))
    buffer = np.empty((len(ids), width), sums.dtype) if on_cpu else None
    for start in range(0, flat.shape[1] if len(ids) else 0, width):
        part = x[:, start : start + width]
        terms = part * w if buffer is None else np.multiply(part, w, buffer[:, : part.shape[1]])
        add_along(subtrees.levels, terms)
        firsts = terms[subtrees.firsts]
        target = sums[:, start : start + part.shape[1]]
        target[subtrees.subtree_of[subtrees.firsts]] = firsts if on_cpu else on_host(firsts)
    return sums


def add_along(levels: list[tuple[np.ndarray, np.ndarray]], terms: Any) -> None:
    """Add the rows of an array, or of a tensor, in place and in the order of ``levels``."""
    for left, right in levels:
        if isinstance(terms, np.ndarray) and terms.shape[1] >= WIDE:
            for to, of in zip(left.tolist(), right.tolist(), strict=True):
                np.add(terms[to], terms[of], out=terms[to])
        else:
            terms[left] += terms[right]


def _padded(columns: int, pieces: int) -> int:
    """Columns of equal pieces."""
    return -(-columns // pieces) * pieces


def _of_few(
    federation: Federation, rows: SparseRows, weights: np.ndarray, subtrees: Subtrees, pieces: int
) -> np.ndarray:
    """``_subtrees`` of rows with few coordinates: a tree of those that have it for each column."""
    tree, ids, subtree_of, values = (
        federation.tree,
        subtrees.ids,
        subtrees.subtree_of,
        on_host(rows.values),
    )
    terms = (values * weights[:, None].astype(values.dtype)).ravel()
    client = np.repeat(np.arange(len(ids)), rows.columns.shape[1])
    column = rows.columns.ravel()
    order = np.lexsort((client, column))
    client, column, terms = client[order], column[order], terms[order]
    together = (np.diff(column) == 0) & (np.diff(subtree_of[client]) == 0)
    heights = tree.heights(ids[client[:-1]], ids[client[1:]])
    levels = merges(np.where(together, heights, APART))
    add_along(levels, terms[:, None])
    firsts = np.flatnonzero(np.concatenate([[True], ~together])[: len(terms)])
    sums = np.full((subtrees.number, _padded(rows.size, pieces)), -0.0, values.dtype)
    sums[subtree_of[client[firsts]], column[firsts]] = terms[firsts]
    return sums


def _by_shares(federation: Federation, part: np.ndarray) -> np.ndarray:
    """The totals of all columns, of which each rank adds a share."""
    ranks = federation.communicator.size
    cut = np.split(part, range(ranks * COLUMNS, part.shape[1], ranks * COLUMNS), axis=1)
    totals = [_totals(federation, [some], ranks)[0] for some in cut]
    return totals[0] if len(totals) == 1 else np.concatenate(totals, axis=1)


def _totals(federation: Federation, parts: list[np.ndarray], pieces: int) -> list[np.ndarray]:
    """The totals of all columns, in pieces of which each rank adds some."""
    communicator = federation.communicator
    stages = federation.tree.stages(communicator.rank, communicator.size, pieces)
    if not stages:
        return parts
    packed = [part.view(np.uint8) for part in parts]
    ends = np.cumsum([some.shape[1] for some in packed])
    rows = packed[0] if len(packed) == 1 else np.concatenate(packed, axis=1)
    if pieces == 1 and federation.tree.rank_of.size * ends[-1] <= communicator.room:
        return _typed(_gathered_total(federation, rows, parts, ends), parts, ends)
    rows = rows.reshape(len(rows) * pieces, ends[-1] // pieces)
    for stage in stages:
        rows = communicator.exchange_rows(rows, stage.send, stage.receive)
        if stage.order is not None:
            rows[stage.order] = rows.copy()
        number, width = len(stage.adds.ids), rows.shape[1]
        terms = rows.reshape(number, len(rows) // max(1, number) * width)
        for some in _typed(terms, parts, ends) if len(rows) else ():
            add_along(stage.adds.levels, some)
        rows = terms[stage.adds.firsts].reshape(-1, width) if len(rows) else rows
    for stage in reversed(stages):
        rows = communicator.exchange_rows(rows, stage.back, stage.total)
    return _typed(rows.reshape(1, ends[-1]), parts, ends)


def _gathered_total(
    federation: Federation, rows: np.ndarray, parts: list[np.ndarray], ends: np.ndarray
) -> np.ndarray:
    """The total of all columns, which each rank adds for itself."""
    tree = federation.tree
    counts = np.bincount(tree.rank_of, minlength=federation.communicator.size)
    arrived = federation.communicator.gather_rows(rows, counts.tolist())
    terms = arrived if tree.order is None else arrived[tree.order]
    for some in _typed(terms, parts, ends):
        add_along(tree.levels, some)
    return terms[:1].copy()


def _typed(packed: np.ndarray, parts: list[np.ndarray], ends: np.ndarray) -> list[np.ndarray]:
    """Views of some pieces, or of all columns, in the types of ``parts``."""
    columns = zip(np.split(packed, ends[:-1], axis=1), parts, strict=True)
    return [part_bytes.view(part.dtype) for part_bytes, part in columns]
