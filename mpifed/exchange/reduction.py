"""Sums over clients along one binary tree, so that ranks and placements change no number.

A sum is made of additions in the rows' own type of floating-point numbers, in the order that
``Federation.tree`` says. A client that takes no part is no term; a subtree without any stands as
zero, and no total is -0.0, so that this leaves every bit. A rank adds the subtrees whose clients
all live there; what these come to is added for all ranks, each of which takes a share of the
columns.

Rows of which a few coordinates are nonzero; operations on them touch no others.
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
from mpifed.federation.clients import Federation
from mpifed.federation.tree import APART, Subtrees, merges
from mpifed.mpi.communicator import Communicator
from mpifed.state import is_finite, on_host


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
    return rows.contiguous().view(-1)[torch.from_numpy(at).to(rows.device)]


def add_scaled(rows: Tensor, more: Tensor | SparseRows, scale: float) -> Tensor:
    """Return rows + scale * more."""
    if not isinstance(more, SparseRows):
        return more.mul(scale).add_(rows)
    whole = rows.clone()
    whole.view(-1)[torch.from_numpy(more.places).to(rows.device)] += more.values * scale
    return whole


# Numbers of its rows that a GPU works on at once.
ON_GPU = 1 << 24

# Numbers, and columns, that are added at a time, to stay in a core's cache.
CACHED, WIDEST = 1 << 20, 1 << 15

# Columns from which rows are added one by one, without copies of those that are added together.
WIDE = 1 << 10

# Bytes of all partial sums, and of a rank's share of the columns, up to which rank 0 adds them all:
# then messages cost more than additions.
FEW, SHARE = 1 << 16, 1 << 9

# Columns that each rank adds at a time, at most.
COLUMNS = 1 << 20


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
    order = np.argsort(ids)
    if (np.diff(order) < 0).any():
        several = [_chosen(rows, order) for rows in several]
        weights, ids = weights[order], ids[order]
    tree, ranks = federation.tree, federation.communicator.size
    parts = [_subtrees(federation, rows, weights, ids) for rows in several]
    nbytes = sum(part.itemsize * part.shape[1] for part in parts)
    if ranks > 1 and (nbytes * len(tree.roots) <= FEW or nbytes <= SHARE * ranks):
        parts = _by_one(federation, parts)
    elif ranks > 1:
        parts = [_by_shares(federation, part) for part in parts]
    made = []
    for rows, part in zip(several, parts, strict=True):
        shape = torch.Size([rows.size]) if isinstance(rows, SparseRows) else rows.shape[1:]
        made.append(torch.from_numpy(part[0, : shape.numel()]).view(shape))
    if not all(map(is_finite, made)):
        values = [rows.values if isinstance(rows, SparseRows) else rows for rows in several]
        check_not_diverged(federation.communicator, [*values, torch.from_numpy(weights)], ids, what)
    return [total.add_(0.0).to(rows.device) for total, rows in zip(made, several, strict=True)]


def _chosen(rows: Tensor | SparseRows, order: np.ndarray) -> Tensor | SparseRows:
    if isinstance(rows, SparseRows):
        return SparseRows(rows.columns[order], rows.values[order], rows.size)
    return rows[torch.from_numpy(order)]


def bytes_of_sum(federation: Federation, payload: int) -> int:
    """Return the bytes that MPI moves for a sum of rows of ``payload`` bytes."""
    at, counts = federation.hosts, np.array(federation.tree.counts)
    within = len(federation.tree.roots) - counts[at.adders].sum() / len(at.adding)
    between = len(at.tree.roots) * (1 - 1 / at.number)
    return round(payload * (within + between + federation.communicator.size - 1))


def check_not_diverged(
    communicator: Communicator, tensors: Sequence[Tensor], ids: np.ndarray, what: str
) -> None:
    """Raise if rows of any client of any rank have a value that is not finite. Collective."""
    own: list[int] = []
    if not all(map(is_finite, tensors)):
        fine = [torch.isfinite(t.flatten(1) if t.dim() > 1 else t[:, None]).all(1) for t in tensors]
        own = [int(client) for client in ids[~torch.stack([f.cpu() for f in fine]).all(0).numpy()]]
    first = communicator.max(np.array([-float(own[0]) if own else -np.inf]))
    raise_first_diverged(-first[0], own, what)


def _subtrees(
    federation: Federation, rows: Tensor | SparseRows, weights: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """The sums of the largest subtrees that live on this rank, (subtrees, columns)."""
    own = federation.tree.subtrees(ids, federation.communicator.rank)
    if isinstance(rows, SparseRows):
        return _of_few(federation, rows, weights, own)
    flat = rows.detach().flatten(1)
    made = np.zeros((own.number, _padded(federation, flat.shape[1])), on_host(flat[:, :0]).dtype)
    on_cpu = rows.device.type == "cpu"
    w: Any = torch.from_numpy(weights).to(flat)[:, None]
    x: Any = flat
    if on_cpu:
        x, w = flat.numpy(), w.numpy()
    most = min(WIDEST, CACHED // max(1, len(ids))) if on_cpu else ON_GPU // max(1, len(ids))
    width = max(1, min(flat.shape[1], most))
    buffer = np.empty((len(ids), width), made.dtype) if on_cpu else None
    for start in range(0, flat.shape[1] if len(ids) else 0, width):
        part = x[:, start : start + width]
        terms = part * w if buffer is None else np.multiply(part, w, buffer[:, : part.shape[1]])
        add_along(own.levels, terms)
        found = terms[own.firsts]
        target = made[:, start : start + part.shape[1]]
        target[own.places[own.firsts]] = found if on_cpu else on_host(found)
    return made


def add_along(levels: list[tuple[np.ndarray, np.ndarray]], terms: Any) -> None:
    """Add the rows of an array, or of a tensor, in place and in the order of ``levels``."""
    for left, right in levels:
        if isinstance(terms, np.ndarray) and terms.shape[1] >= WIDE:
            for to, of in zip(left.tolist(), right.tolist(), strict=True):
                np.add(terms[to], terms[of], out=terms[to])
        else:
            terms[left] += terms[right]


def _padded(federation: Federation, columns: int) -> int:
    """Columns that all ranks that add have an equal share of."""
    shares = federation.hosts.number * len(federation.hosts.adding)
    return -(-columns // shares) * shares


def _of_few(
    federation: Federation, rows: SparseRows, weights: np.ndarray, own: Subtrees
) -> np.ndarray:
    """``_subtrees`` of rows with few coordinates: a tree of those that have it for each column."""
    tree, ids, places, values = federation.tree, own.ids, own.places, on_host(rows.values)
    terms = (values * weights[:, None].astype(values.dtype)).ravel()
    client = np.repeat(np.arange(len(ids)), rows.columns.shape[1])
    column = rows.columns.ravel()
    order = np.lexsort((client, column))
    client, column, terms = client[order], column[order], terms[order]
    together = (np.diff(column) == 0) & (np.diff(places[client]) == 0)
    heights = tree.heights(ids[client[:-1]], ids[client[1:]])
    levels = merges(np.where(together, heights, APART))
    add_along(levels, terms[:, None])
    firsts = np.flatnonzero(np.concatenate([[True], ~together])[: len(terms)])
    made = np.zeros((own.number, _padded(federation, rows.size)), values.dtype)
    made[places[client[firsts]], column[firsts]] = terms[firsts]
    return made


def _by_one(federation: Federation, parts: list[np.ndarray]) -> list[np.ndarray]:
    """The totals of all columns, which rank 0 adds and sends to all."""
    tree = federation.tree
    ends = np.cumsum([part.shape[1] * part.itemsize for part in parts])[:-1]

    def typed(packed: np.ndarray) -> list[np.ndarray]:
        columns = zip(np.split(packed, ends, axis=1), parts, strict=True)
        return [np.ascontiguousarray(own).view(part.dtype) for own, part in columns]

    def added(every: np.ndarray) -> np.ndarray:
        totals = typed(tree.in_order(every))
        for total in totals:
            add_along(tree.top, total)
        return np.concatenate([total[:1].view(np.uint8) for total in totals], axis=1)

    packed = np.concatenate([part.view(np.uint8) for part in parts], axis=1)
    return typed(federation.communicator.by_first(packed, tree.counts, added))


def _by_shares(federation: Federation, part: np.ndarray) -> np.ndarray:
    """The totals of all columns, of which ranks add a share; each sum of a host leaves it once."""
    communicator, at, totals = federation.communicator, federation.hosts, []
    counts, adds = np.array(federation.tree.counts), at.adders[communicator.rank]
    several, step = at.number < communicator.size, at.number * len(at.adding) * COLUMNS
    by_host = np.array(at.tree.counts)[communicator.nodes()[at.alike]]
    for rows in np.split(part, range(step, part.shape[1], step), axis=1):
        if several:
            rows = _deal(communicator, rows, at.adding, at.here, counts[at.here] * adds)
        if adds:
            rows = rows[at.order]
            add_along(at.own.levels, rows)
            rows = rows[at.own.firsts] if at.own.levels else rows
        if at.number > 1:
            rows = _deal(communicator, rows, at.alike, at.alike, by_host)
            if adds:
                rows = rows[at.order_alike]
                add_along(at.tree.top, rows)
            rows = _tell(communicator, rows[:1], at.alike, at.alike)
            rows = rows.reshape(1, -1) if adds else rows
        if several:
            rows = _tell(communicator, rows[:1], at.here, at.adding)
        totals.append(rows.reshape(1, -1))
    return totals[0] if len(totals) == 1 else np.concatenate(totals, axis=1)


def _deal(
    communicator: Communicator, rows: np.ndarray, to: np.ndarray, of: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The i-th of ``to`` gets the i-th share of the columns of all rows."""
    n = max(1, len(to))
    rows = rows.reshape(len(rows) * n, rows.shape[1] // n)
    chosen = [np.arange(place, len(rows), n) for place in range(n)]
    return _sent(communicator, rows, dict(zip(to, chosen, strict=False)), of, counts)


def _tell(
    communicator: Communicator, row: np.ndarray, to: np.ndarray, of: np.ndarray
) -> np.ndarray:
    """All of ``to`` get the row of each of ``of``; others have none."""
    chosen = dict.fromkeys(to, np.arange(len(row)))
    return _sent(communicator, row, chosen, of, np.ones(len(of), int))


def _sent(
    communicator: Communicator,
    rows: np.ndarray,
    to: dict[int, np.ndarray],
    of: np.ndarray,
    counts: np.ndarray,
) -> np.ndarray:
    """What arrives of ``counts`` rows from the ranks ``of``, where these go ``to`` some ranks."""
    receive = np.zeros(communicator.size, int)
    receive[of] = counts
    send = [to.get(peer, np.zeros(0, int)) for peer in range(communicator.size)]
    return communicator.exchange_rows(rows, send, receive.tolist())
