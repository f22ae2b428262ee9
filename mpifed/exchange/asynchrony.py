"""Gossip without rounds that anybody waits for: a discrete-event schedule, the same everywhere.

A ``Timetable`` says whose computations end in a round and what they mix: a ``Combination`` of
values of this round and of earlier ones, of which a ``Crossing`` has the part of one rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from mpifed.errors import RunError
from mpifed.exchange.base import Channel, Exchange, LastingMemory, Round, bits_of, timed
from mpifed.exchange.mixing_product import MixingProduct, is_dense
from mpifed.exchange.routes import arrivals, transfer
from mpifed.federation.federation import Federation
from mpifed.federation.reduction import check_not_diverged
from mpifed.mpi.communicator import Communicator
from mpifed.random import client_keys
from mpifed.state import client
from topologies.errors import TopologyError
from topologies.links.events import Computations, Finished, Seconds, Versions, averaged_in_turn
from topologies.links.network import Links

# The slot of a value that has been computed in the round itself.
FRESH = -1


@dataclass(frozen=True)
class Combination:
    """The rows of a round as combinations of values."""

    weights: scipy.sparse.csr_array
    own_columns: np.ndarray
    receiver: np.ndarray
    sender: np.ndarray
    slot: np.ndarray
    stored: np.ndarray
    into: np.ndarray
    keeps_mixed: bool
    messages: int
    staleness: np.ndarray

    @property
    def participants(self) -> int:
        """Their number, m."""
        return int((self.slot == FRESH).sum())


@dataclass(frozen=True)
class Arcs:
    """Who hears whom in a round."""

    receiver: np.ndarray
    sender: np.ndarray
    share: np.ndarray
    travel: np.ndarray
    reach: np.ndarray
    out_degrees: np.ndarray


def arcs_of(weights: scipy.sparse.csr_array, links: Links, bits: float) -> Arcs:
    """Return the arcs of a mixing matrix."""
    every, n = weights.tocoo(), weights.shape[0]
    used = (every.row != every.col) & (every.data != 0)
    to, of = every.row[used].astype(np.int64), every.col[used].astype(np.int64)
    travel, reach = links.travel(to, of, bits), np.zeros(n)
    np.maximum.at(reach, of, travel)
    return Arcs(to, of, every.data[used], travel, reach, np.bincount(of, minlength=n))


def mixed_wait_free(
    arcs: Arcs,
    nodes: np.ndarray,
    times: np.ndarray,
    ended: np.ndarray,
    last: np.ndarray,
    versions: Versions,
) -> Combination:
    """Return what nodes mix of the latest versions that have arrived, and send theirs."""
    n, m = len(arcs.reach), len(nodes)
    position = np.full(n, -1)
    position[nodes] = np.arange(m)
    numbers = ended[nodes]
    into = versions.room(nodes, arcs.reach[nodes], times)
    sends = into >= 0
    mine = position[arcs.receiver] >= 0
    to, of = arcs.receiver[mine], arcs.sender[mine]
    share, travel = arcs.share[mine], arcs.travel[mine]
    at, fresh = times[position[to]], position[of] >= 0
    fresh[fresh] = sends[position[of[fresh]]] & (
        times[position[of[fresh]]] + travel[fresh] <= at[fresh]
    )
    slot = np.where(fresh, FRESH, versions.latest(of, travel, at))
    has_arrived = fresh | (slot >= 0)
    to, of, share, slot, fresh = (
        to[has_arrived],
        of[has_arrived],
        share[has_arrived],
        slot[has_arrived],
        fresh[has_arrived],
    )
    newest = ended[of] - (last[of] > at[has_arrived])
    staleness = newest - np.where(fresh, ended[of], versions.number[of, slot])
    slots = versions.sent.shape[1]
    used_slots, place_of_slot = np.unique(of[~fresh] * slots + slot[~fresh], return_inverse=True)
    column = position[of]
    column[~fresh] = m + place_of_slot
    rows = np.concatenate([position[to], np.arange(m)])
    columns = np.concatenate([column, np.arange(m)])
    self_weights = 1 - np.bincount(position[to], share, minlength=m)
    shape = (m, m + len(used_slots))
    versions.send(nodes[sends], into[sends], times[sends], numbers[sends])
    return Combination(
        scipy.sparse.csr_array(
            (np.concatenate([share, self_weights]), (rows, columns)), shape=shape
        ),
        np.arange(m),
        nodes,
        np.concatenate([nodes, used_slots // slots]),
        np.concatenate([np.full(m, FRESH), used_slots % slots]),
        np.flatnonzero(sends),
        into[sends],
        keeps_mixed=False,
        messages=int(arcs.out_degrees[nodes[sends]].sum()),
        staleness=staleness,
    )


def mixed_in_pairs(nodes: np.ndarray, partners: np.ndarray, changed: np.ndarray) -> Combination:
    """Return what nodes and partners have after averages that are made one after the other."""
    staleness = np.zeros(len(nodes), np.int64)
    for k, (i, j) in enumerate(zip(nodes, partners, strict=True)):
        staleness[k], changed[i] = changed[i], 0
        if j != i:
            changed[j] += 1
    m, touched = len(nodes), np.unique(np.concatenate([nodes, partners]))
    t, order = len(touched), np.argsort(nodes)
    values, fresh_values = averaged_in_turn(nodes, partners, touched)
    # Participants come first, by number; then the values that are kept.
    columns = np.concatenate([t + order, np.arange(t)])
    weights = np.concatenate([fresh_values[order], values])[:, columns]
    # What a participant has computed is in both of its rows; it may be all that is.
    mixed_rows = m + np.arange(t)
    mixed_rows[np.searchsorted(touched, nodes[order])] = np.arange(m)
    return Combination(
        scipy.sparse.csr_array(weights),
        np.concatenate([np.arange(m), mixed_rows]),
        np.concatenate([nodes[order], touched]),
        np.concatenate([nodes[order], touched]),
        np.concatenate([np.full(m, FRESH), np.zeros(t, np.int64)]),
        m + np.arange(t),
        np.zeros(t, np.int64),
        keeps_mixed=True,
        messages=2 * int((partners != nodes).sum()),
        staleness=staleness,
    )


@dataclass(frozen=True)
class Values(LastingMemory):
    """What is kept of the clients' values under asynchronous gossip."""

    kept: Tensor = client()


def first_values(shared: list[Tensor], slots: int | None) -> Values:
    """Return what is kept before the first round."""
    if slots is None:
        return Values(torch.cat([tensor.flatten(1) for tensor in shared], 1)[:, None].clone())
    size = sum(math.prod(tensor.shape[1:]) for tensor in shared)
    return Values(shared[0].new_zeros(len(shared[0]), slots, size))


class AsynchronousChannel(Channel):
    """The channel of a round, among the clients whose computations end in it."""

    def __init__(
        self, exchange: Exchange, round: Round, memory: Values, combine: Callable[[], Combination]
    ) -> None:
        super().__init__(exchange, round, memory)
        self.federation, self._combine = exchange.federation, combine

    @cached_property
    def combination(self) -> Combination:
        """What is mixed in this round."""
        return self._combine()

    def broadcast(self, shared: Tensor) -> Tensor:
        return shared

    @timed
    def average(
        self, rows: Tensor, weights: Tensor, before: Tensor, total_weight: float = 1.0
    ) -> Tensor:
        self.check_update(rows, weights, before)
        combination, size, ledger = (
            self.combination,
            math.prod(rows.shape[1:]),
            self.exchange.ledger,
        )
        part = self.next_part(size)
        bits = combination.messages * bits_of(torch.Size([size]), rows.dtype)
        ledger.up_bits += bits
        ledger.down_bits += bits
        ledger.up_floats += combination.messages * size
        crossing = self.crossing
        fresh = self.transformed(rows, before).flatten(1)
        if combination.keeps_mixed and len(fresh):
            # Others may have changed the value since the computation began.
            now = self.memory.kept[crossing.hosted(combination.sender[crossing.fresh]), 0, part]
            fresh = fresh - before.flatten(1) + now
        mixed = self._mixed(fresh, part, crossing)
        source = mixed if combination.keeps_mixed else fresh
        nodes, slots, rows_kept = crossing.keeps
        self.memory.kept[nodes, slots, part] = source[rows_kept]
        return mixed[: len(fresh)].view(rows.shape)

    @cached_property
    def crossing(self) -> Crossing:
        """What this rank does of the combination."""
        return Crossing(self.federation, self.combination)

    def _mixed(self, fresh: Tensor, part: slice, crossing: Crossing) -> Tensor:
        """The rows of the combination that belong to clients hosted here."""
        combination, communicator = self.combination, self.federation.communicator
        check_not_diverged(
            communicator,
            [fresh],
            self.federation.training[combination.sender[crossing.fresh]],
            "update",
        )
        values = fresh
        if len(combination.slot) > combination.participants:
            older = crossing.columns[len(fresh) :]
            slots = torch.from_numpy(combination.slot[older])
            older_values = self.memory.kept[crossing.hosted(combination.sender[older]), slots, part]
            values = torch.cat([fresh, older_values])
        mixed = values.new_empty(len(crossing.rows), values.shape[1])
        for columns, arrived in arrivals(communicator, crossing.transfer, values):
            crossing.product(values[:, columns], arrived, mixed[:, columns])
        return mixed


class Crossing:
    """What this rank sends, receives and mixes of a combination."""

    def __init__(self, federation: Federation, combination: Combination) -> None:
        self.federation, self.combination = federation, combination
        owner = federation.owner[federation.training]
        communicator = federation.communicator
        rank, size = communicator.rank, communicator.size
        of_row, of_column = owner[combination.receiver], owner[combination.sender]
        self.rows = np.flatnonzero(of_row == rank)
        self.columns = np.flatnonzero(of_column == rank)
        used = combination.weights.tocoo()
        to, column = of_row[used.row], used.col.astype(np.int64)
        across = to != of_column[column]
        node = communicator.nodes()
        self.transfer = transfer(to[across], column[across], of_column, rank, size, node)
        sources = np.concatenate([self.columns, self.transfer.arriving])
        part, own_columns = combination.weights[self.rows], combination.own_columns[self.rows]
        self.product = MixingProduct(part, own_columns, sources, is_dense(combination.weights))

    @property
    def fresh(self) -> np.ndarray:
        """The columns hosted here that have been computed in this round."""
        return self.columns[self.combination.slot[self.columns] == FRESH]

    @property
    def keeps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Clients hosted here, their slots, and the rows or columns that are kept in them."""
        combination = self.combination
        of, hosted_rows = (
            (combination.receiver, self.rows)
            if combination.keeps_mixed
            else (combination.sender, self.columns)
        )
        owner = self.federation.owner[self.federation.training[of[combination.stored]]]
        is_hosted = owner == self.federation.communicator.rank
        stored = combination.stored[is_hosted]
        local_rows = np.searchsorted(hosted_rows, stored)
        return (
            self.hosted(of[stored]),
            torch.from_numpy(combination.into[is_hosted]),
            torch.from_numpy(local_rows),
        )

    def hosted(self, nodes: np.ndarray) -> Tensor:
        """Return the positions of some nodes among the clients hosted here."""
        clients = self.federation.training[nodes]
        return torch.from_numpy(np.searchsorted(self.federation.hosted, clients))


Mixes = Literal["wait_free", "pairwise"]


@dataclass
class Timetable:
    """The events of a run, from round to round; the same on every rank."""

    mixes: Mixes
    links: Links
    bits: float
    seed: int
    computations: Computations
    versions: Versions
    round: int = 0
    finished: Finished = field(default_factory=lambda: Finished(np.zeros(0, np.int64), np.zeros(0)))
    present: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    seconds: float = 0.0
    staleness: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))
    changed: np.ndarray = field(init=False)
    # The matrix of the last round, and its arcs.
    _arcs: tuple[scipy.sparse.csr_array, Arcs] | None = None

    def __post_init__(self) -> None:
        pairs = self.mixes == "pairwise"
        self.changed = np.zeros(len(self.computations.ends) if pairs else 0, np.int64)

    def begin(self, round: int, present: np.ndarray) -> Finished:
        """Return whose computations end in a round, the last one or the one after it.
        Collective.
        """
        if round == self.round + 1:
            try:
                self.finished = self.computations.round()
            except TopologyError as error:
                raise RunError(f"compute: {error}") from None
            self.round = round
            self.seconds = float(self.finished.times.max(initial=self.seconds))
        assert round == self.round
        self.present = present
        return self.finished

    def next_combination(
        self, weights_of_round: Callable[[], scipy.sparse.csr_array]
    ) -> Combination:
        """Return what the participants of the round mix, and book what they keep. Collective."""
        combination = self._combination(weights_of_round())
        stale = combination.staleness
        total, number, largest = self.staleness
        most = int(stale.max(initial=largest))
        self.staleness = np.array([total + stale.sum(), number + len(stale), most], np.int64)
        return combination

    def _combination(self, weights: scipy.sparse.csr_array) -> Combination:
        present, counts = self.present, self.computations.counts
        taking_part = present[self.finished.nodes]
        nodes, times = self.finished.nodes[taking_part], self.finished.times[taking_part]
        if self.mixes == "pairwise":
            partners = partners_of(weights, nodes, counts[nodes], self.seed)
            partners = np.where(present[partners], partners, nodes)
            return mixed_in_pairs(nodes, partners, self.changed)
        order = np.argsort(nodes)
        nodes, times = nodes[order], times[order]
        last = np.full(len(counts), -np.inf)
        last[self.finished.nodes] = self.finished.times
        if self._arcs is None or self._arcs[0] is not weights:
            self._arcs = weights, arcs_of(weights, self.links, self.bits)
        return mixed_wait_free(self._arcs[1], nodes, times, counts, last, self.versions)

    def stored(self) -> np.ndarray:
        """Return all that changes from round to round, as numbers of at least 0."""
        finished = np.zeros((2, len(self.computations.ends)))
        finished[0, self.finished.nodes], finished[1, self.finished.nodes] = 1, self.finished.times
        going, versions = self.computations, self.versions
        parts = (
            going.ends,
            going.after,
            going.counts,
            finished,
            versions.sent,
            versions.number,
            self.changed,
        )
        first = [self.round, self.seconds, *self.staleness]
        return np.concatenate([first, *(part.ravel() for part in parts)])

    def restore(self, stored: np.ndarray) -> None:
        """Continue from what ``stored`` returned."""
        needed = len(self.stored())
        if len(stored) != needed:
            raise RunError(f"the checkpoint has {len(stored)} of {needed} numbers of its events")
        n, slots = self.versions.sent.shape
        (self.round, self.seconds), remaining = (int(stored[0]), float(stored[1])), stored[5:]
        self.staleness = stored[2:5].astype(np.int64)
        clocks, remaining = remaining[: 5 * n].reshape(5, n), remaining[5 * n :]
        versions = remaining[: 2 * n * slots].reshape(2, n, slots)
        self.changed = remaining[2 * n * slots :].astype(np.int64)
        going = self.computations
        going.ends, going.after = clocks[0].copy(), clocks[1].copy()
        going.counts = clocks[2].astype(np.int64)
        nodes = np.flatnonzero(clocks[3])
        order = np.lexsort((nodes, clocks[4, nodes]))
        self.finished = Finished(nodes[order], clocks[4, nodes[order]])
        self.versions = Versions(versions[0].copy(), versions[1].astype(np.int64))


def from_rank_0(communicator: Communicator, seconds: Seconds) -> Seconds:
    """Return the same function, computed by rank 0 alone: logarithms differ between processors."""
    if communicator.size == 1:
        return seconds

    def broadcast(numbers: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        durations = seconds(numbers, nodes) if communicator.rank == 0 else None
        return communicator.broadcast(durations)

    return broadcast


def partners_of(
    weights: scipy.sparse.csr_array, nodes: np.ndarray, numbers: np.ndarray, seed: int
) -> np.ndarray:
    """Return with whom each of some nodes averages after a computation."""
    partners = nodes.copy()
    keys = np.zeros(len(nodes), np.uint64)
    for number in np.unique(numbers):
        some = numbers == number
        keys[some] = client_keys(seed, "partner", int(number), nodes[some])
    draws = (keys >> np.uint64(11)) * 2.0**-53
    for k, (i, draw) in enumerate(zip(nodes, draws, strict=True)):
        row = slice(weights.indptr[i], weights.indptr[i + 1])
        others, share = weights.indices[row], np.abs(weights.data[row])
        share = np.cumsum(np.where(others == i, 0.0, share))
        if len(share) and share[-1] > 0:
            # A product that is rounded up to the sum would be beyond the last.
            level = min(draw * share[-1], np.nextafter(share[-1], 0))
            partners[k] = others[np.searchsorted(share, level, side="right")]
    return partners


__all__ = ["AsynchronousChannel", "Timetable", "first_values"]
