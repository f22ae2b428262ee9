"""One round of asynchronous gossip: values of this round and of earlier ones, mixed exactly.

The values that may still be read are rows of the run's state, next to the client that sent them:
``slots`` models a client. They are changed in place, so that a round costs what its participants
send, however many clients rest. Products are exact, as in ``mixer``: ranks change no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.asynchrony.plans import FRESH, Plan
from mpifed.exchange.base import Channel
from mpifed.exchange.compression import Compressor
from mpifed.exchange.ledger import Ledger, bits_of
from mpifed.exchange.mixer import Mixer, mix, mixer
from mpifed.exchange.reduction import common_exponents, largest
from mpifed.exchange.transfer import ahead, piece
from mpifed.federation.clients import Federation
from mpifed.staging import host_memory, on_host
from mpifed.state import client


@dataclass(frozen=True)
class Values:
    """What is kept of the clients' values under asynchronous gossip.

    Attributes
    ----------
    kept : Tensor
        (clients, slots, numbers), the shared values of a round one after another.
    """

    kept: Tensor = client()


def first_values(shared: list[Tensor], slots: int | None) -> Values:
    """Return what is kept before the first round.

    Parameters
    ----------
    shared : list of Tensor
        The clients' first shared values, rows of clients hosted here.
    slots : int or None
        Empty slots of a client; None is one that has its value.
    """
    if slots is None:
        return Values(torch.cat([tensor.flatten(1) for tensor in shared], 1)[:, None].clone())
    size = sum(math.prod(tensor.shape[1:]) for tensor in shared)
    return Values(shared[0].new_zeros(len(shared[0]), slots, size))


@dataclass
class AsynchronousChannel(Channel):
    """Those whose computations end in a round.

    Attributes
    ----------
    federation : Federation
        Its training clients are the nodes.
    ledger : Ledger
        Where messages are booked.
    make_plan : callable
        Returns the plan of the round; called when something is sent first. Collective.
    memory : Values
        The values that are kept, of all clients hosted here. Changed in place.
    """

    federation: Federation
    ledger: Ledger
    make_plan: Callable[[], Plan]
    memory: Values
    _place: int = 0
    _crossings: dict[int, Crossing] = field(default_factory=dict)

    @property
    def shared_is_rows(self) -> bool:
        return True

    @property
    def compressor(self) -> Compressor | None:
        return None

    @cached_property
    def plan(self) -> Plan:
        """What is mixed in this round."""
        return self.make_plan()

    def broadcast(self, shared: Tensor) -> Tensor:
        return shared

    def average(self, rows: Tensor, weights: Tensor, before: Tensor, whole: float = 1.0) -> Tensor:
        plan, size = self.plan, math.prod(rows.shape[1:])
        part = slice(self._place, self._place + size)
        self._place = part.stop
        bits = plan.messages * bits_of(torch.Size([size]), rows.dtype)
        self.ledger.up_bits += bits
        self.ledger.down_bits += bits
        self.ledger.up_floats += plan.messages * size
        crossing = self._crossing(rows.element_size())
        fresh = rows.flatten(1)
        if plan.keeps_mixed and len(fresh):
            # Others may have changed the value since the computation began.
            now = self.memory.kept[crossing.hosted(plan.sender[crossing.fresh]), 0, part]
            fresh = fresh - before.flatten(1) + now
        mixed = self._mixed(fresh, part, crossing)
        source = mixed if plan.keeps_mixed else fresh
        nodes, slots, rows_kept = crossing.keeps
        self.memory.kept[nodes, slots, part] = source[rows_kept]
        return mixed[: len(fresh)].view(rows.shape)

    def _crossing(self, itemsize: int) -> Crossing:
        if itemsize not in self._crossings:
            self._crossings[itemsize] = Crossing(self.federation, self.plan, itemsize)
        return self._crossings[itemsize]

    def _mixed(self, fresh: Tensor, part: slice, crossing: Crossing) -> Tensor:
        """The rows of the plan that belong to clients hosted here."""
        plan, communicator = self.plan, self.federation.communicator
        ids = self.federation.training[plan.sender[crossing.fresh]]
        (exponent,) = common_exponents(communicator, [fresh], ids, "update")
        values = on_host(fresh)
        if len(plan.slot) > plan.participants:
            older = crossing.columns[len(fresh) :]
            slots = torch.from_numpy(plan.slot[older])
            kept = self.memory.kept[crossing.hosted(plan.sender[older]), slots, part]
            (most,) = communicator.max(np.array([largest(kept)]))
            exponent = max(exponent, int(np.frexp(most)[1]))
            values = np.concatenate([values, on_host(kept)])
        values = np.ascontiguousarray(values)
        made = host_memory(fresh.new_empty(len(crossing.rows), values.shape[1]))
        target = made.numpy()
        for columns, arrived in crossing.arrivals(values):
            crossing.mix(values[:, columns], arrived, exponent, target[:, columns])
        alone = crossing.alone
        target[alone] = values[crossing.own[alone]]
        return made.to(fresh.device)


class Crossing:
    """What this rank sends, receives and mixes by a plan.

    Parameters
    ----------
    federation : Federation
        Its training clients are the nodes.
    plan : Plan
        What is mixed.
    itemsize : int
        Bytes of a number.

    Attributes
    ----------
    rows, columns : ndarray of int64
        The rows and columns of the plan that are hosted here, ascending.
    own : ndarray of int64
        The place in ``columns`` of each row's own column.
    """

    def __init__(self, federation: Federation, plan: Plan, itemsize: int) -> None:
        self.federation, self.plan = federation, plan
        owner = federation.owner[federation.training]
        rank, size = federation.communicator.rank, federation.communicator.size
        of_row, of_column = owner[plan.receiver], owner[plan.sender]
        self.rows = np.flatnonzero(of_row == rank)
        self.columns = np.flatnonzero(of_column == rank)
        self.own = np.searchsorted(self.columns, plan.own[self.rows])
        used = plan.weights.tocoo()
        # Pairs (receiving rank, column) of all that crosses between ranks, each once.
        to, column = of_row[used.row], used.col.astype(np.int64)
        across = to != of_column[column]
        pairs = np.unique(to[across] * len(plan.sender) + column[across])
        to, column = pairs // len(plan.sender), pairs % len(plan.sender)
        source = of_column[column]
        ours = [column[(source == rank) & (to == peer)] for peer in range(size)]
        self._send = [np.searchsorted(self.columns, some) for some in ours]
        theirs = [column[(to == rank) & (source == peer)] for peer in range(size)]
        self._receive = [len(some) for some in theirs]
        self._arriving = np.concatenate(theirs) if theirs else column[:0]
        counts = np.bincount(source, minlength=size) + np.bincount(to, minlength=size)
        self._bytes = max(1, int(counts.max()) * itemsize)
        self._limbs = 3 if itemsize == 8 else 2

    @property
    def fresh(self) -> np.ndarray:
        """The columns hosted here that have been computed in this round."""
        return self.columns[self.plan.slot[self.columns] == FRESH]

    @property
    def alone(self) -> np.ndarray:
        """Which of ``rows`` mix nothing, bool."""
        return np.diff(self.plan.weights.indptr)[self.rows] == 1

    @property
    def keeps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Clients hosted here, their slots, and the rows or columns that are kept in them."""
        plan = self.plan
        of, places = (plan.receiver, self.rows) if plan.keeps_mixed else (plan.sender, self.columns)
        owner = self.federation.owner[self.federation.training[of[plan.kept]]]
        here = owner == self.federation.communicator.rank
        kept = plan.kept[here]
        found = np.searchsorted(places, kept)
        return self.hosted(of[kept]), torch.from_numpy(plan.into[here]), torch.from_numpy(found)

    def hosted(self, nodes: np.ndarray) -> Tensor:
        """Return the positions of some nodes among the clients hosted here."""
        clients = self.federation.training[nodes]
        return torch.from_numpy(np.searchsorted(self.federation.hosted, clients))

    def arrivals(self, values: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Return what arrives, some numbers of the rows at a time. Collective."""
        width, total = piece(values.shape[1], self._bytes), values.shape[1]
        begin = self.federation.communicator.begin_exchange
        parts = [slice(first, min(first + width, total)) for first in range(0, total, width)]
        begun = (begin(values[:, part], self._send, self._receive) for part in parts)
        return zip(parts, ahead(begun), strict=True)

    @cached_property
    def mixers(self) -> tuple[Mixer, Mixer | None]:
        """The rows of the plan hosted here: columns hosted here, and those that arrive, if any."""
        weights, everything = self.plan.weights, len(self.rows) == len(self.plan.receiver)
        longest = int(np.diff(weights.indptr).max(initial=0)) + 1
        part = weights if everything else weights[self.rows]
        whole = mixer(part, self.plan.own[self.rows], longest, self._limbs)
        if everything and len(self.columns) == len(self.plan.sender):
            return whole, None
        return whole.of(self.columns), whole.of(self._arriving)

    def mix(self, mine: np.ndarray, arrived: np.ndarray, exponent: int, target: np.ndarray) -> None:
        """Fill ``target`` by some numbers of the rows hosted here."""
        ours, others = self.mixers
        parts = [(ours, mine)] if others is None else [(ours, mine), (others, arrived)]
        mix([part for part in parts if len(part[1])] or parts[:1], exponent, target)
