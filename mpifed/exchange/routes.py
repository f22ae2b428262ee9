"""What ranks send each other in a round of gossip, found from W and from who lives where.

The rows of neighbours one by one, for gossip that is not linear in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
from torch import Tensor

import topologies
from mpifed.errors import RunError
from mpifed.exchange.mixer import Mixer, mix, mixer, off_diagonal_mixer
from mpifed.exchange.reduction import common_exponents
from mpifed.federation.clients import Federation
from mpifed.mpi.communicator import Communicator
from mpifed.state import on_host
from topologies import MixingMatrix

# An Allgatherv is taken when it moves at most this many times the bytes that are needed.
GATHER_SLACK = 1.05

TRANSPORTS = ("auto", "collective", "neighbourhood", "messages")


@dataclass(frozen=True)
class Traffic:
    """What all pairs of ranks need of each other."""

    distinct_rows: np.ndarray
    distinct_sums: np.ndarray
    hosted: np.ndarray
    itemsize: int
    limbs: int

    @cached_property
    def by_sums(self) -> np.ndarray:
        """Which pairs send sums: bool (ranks, ranks)."""
        sum_bytes = self.distinct_sums * (2 * self.limbs - 1) * 8
        return sum_bytes < self.distinct_rows * self.itemsize

    @property
    def row_numbers(self) -> int:
        """Rows sent in all."""
        return int(self.distinct_rows[~self.by_sums].sum())

    @property
    def sum_numbers(self) -> int:
        """Sums sent in all."""
        return int(self.distinct_sums[self.by_sums].sum())

    @property
    def gathered_rows(self) -> int:
        """Rows that an Allgatherv would send."""
        return int(self.hosted.sum()) * (len(self.hosted) - 1)

    def bytes_a_number(self) -> tuple[int, int]:
        """Return the bytes of a row and of a sum, per number of the state."""
        return self.itemsize, (2 * self.limbs - 1) * 8

    def held(self, gathered: bool) -> int:
        """Return the bytes per number of the state that the fullest rank sends and receives."""
        per_row, per_sum = self.bytes_a_number()
        if gathered:
            return int(self.hosted.sum() + self.hosted.max()) * per_row
        rows = np.where(self.by_sums, 0, self.distinct_rows) * per_row
        sums = np.where(self.by_sums, self.distinct_sums, 0) * per_sum
        return int((rows.sum(0) + rows.sum(1) + sums.sum(0) + sums.sum(1)).max())

    def choose(self, repeats: bool) -> tuple[str, str]:
        """Return the transport of the rows, and why."""
        gathers = self.gathered_rows <= GATHER_SLACK * self.row_numbers
        if len(self.hosted) == 1:
            return "memory", "all clients live on one rank"
        if gathers and not self.by_sums.any():
            return "collective", (
                f"an Allgatherv of {self.gathered_rows} rows against {self.row_numbers} needed"
            )
        if repeats:
            pairs = int((self.distinct_rows > 0).sum())
            return "neighbourhood", (
                f"{self.row_numbers} rows between {pairs} of "
                f"{self.distinct_rows.size - len(self.hosted)} pairs of ranks"
            )
        return "messages", "W changes from round to round"


def traffic(
    matrix: scipy.sparse.csr_array, owner: np.ndarray, ranks: int, itemsize: int
) -> Traffic:
    """Count what ranks need of each other; ``owner`` is the rank of each node, -1 if idle."""
    links = matrix.tocoo()
    receiver, sender = links.row, links.col
    across = owner[receiver] != owner[sender]
    receiver, sender = receiver[across], sender[across]
    # ranks squared times nodes is above 2^31 from 1,500 ranks with 1,000 nodes on
    a, b = owner[receiver].astype(np.int64), owner[sender].astype(np.int64)
    n = len(owner)
    rows = np.unique((a * ranks + b) * n + sender) // n
    sums = np.unique((a * ranks + b) * n + receiver) // n
    square = ranks * ranks
    return Traffic(
        np.bincount(rows, minlength=square).reshape(ranks, ranks),
        np.bincount(sums, minlength=square).reshape(ranks, ranks),
        np.bincount(owner[owner >= 0], minlength=ranks),
        itemsize,
        3 if itemsize == 8 else 2,
    )


@dataclass(frozen=True)
class Route:
    """The part of this rank in a round of gossip by ``matrix``, among the nodes with
    ``active``.
    """

    federation: Federation
    matrix: MixingMatrix
    active: np.ndarray
    itemsize: int
    repeats: bool = True
    transport: str = "auto"

    @cached_property
    def owner(self) -> np.ndarray:
        """The rank of each node, -1 for those that do not take part."""
        return np.where(self.active, self.federation.owner[self.federation.training], -1)

    @cached_property
    def sparse(self) -> scipy.sparse.csr_array:
        """W without explicit zeros."""
        w = self.matrix.to_sparse()
        w.eliminate_zeros()
        return w

    @cached_property
    def traffic(self) -> Traffic:
        """What all ranks need of each other."""
        return traffic(self.sparse, self.owner, self.federation.communicator.size, self.itemsize)

    @cached_property
    def chosen(self) -> tuple[str, str]:
        """The transport of rows, and why."""
        found = self.traffic.choose(self.repeats)
        if self.transport == "auto" or found[0] == "memory":
            return found
        return self.transport, "as asked"

    @property
    def by_sums(self) -> np.ndarray:
        """Which pairs send sums; an Allgatherv sends every row anyway."""
        pairs = self.traffic.by_sums
        return np.zeros_like(pairs) if self.chosen[0] == "collective" else pairs

    @cached_property
    def bytes_a_number(self) -> int:
        """Bytes that the fullest rank holds per number of the state; the same on every rank."""
        return max(1, self.traffic.held(self.chosen[0] == "collective"))

    @cached_property
    def most(self) -> int:
        """Rows that a rank sends and receives, at most; the same on every rank."""
        rows = self.traffic.distinct_rows
        return int(rows.sum(0).max()) + int(rows.sum(1).max())

    @cached_property
    def mine(self) -> np.ndarray:
        """The participating nodes hosted here, ascending."""
        return np.flatnonzero(self.owner == self.federation.communicator.rank)

    @cached_property
    def _incoming(self) -> scipy.sparse.csr_array:
        return self.sparse[self.mine]

    @cached_property
    def columns(self) -> np.ndarray:
        """Nodes whose rows come here, by owner, then by number; all nodes with an Allgatherv."""
        rank = self.federation.communicator.rank
        if self.chosen[0] == "collective":
            needed = np.flatnonzero(self.owner >= 0)
        else:
            needed = np.setdiff1d(self._incoming.indices, self.mine)
            needed = needed[~self.by_sums[rank, self.owner[needed]]]
        return needed[np.argsort(self.owner[needed], kind="stable")]

    @cached_property
    def receive(self) -> list[int]:
        """Rows that come from each rank."""
        ranks = self.federation.communicator.size
        return [int(k) for k in np.bincount(self.owner[self.columns], minlength=ranks)]

    @cached_property
    def _outgoing(self) -> tuple[np.ndarray, np.ndarray]:
        """(receiving rank, position in ``mine``) of every row wanted elsewhere, sorted."""
        used = self.sparse[:, self.mine].tocoo()
        receiver, position = used.row, used.col
        pairs = np.unique(np.stack([self.owner[receiver], position]), axis=1)
        return pairs[0], pairs[1]

    @cached_property
    def send(self) -> list[np.ndarray]:
        """For each rank, which rows of ``mine`` it gets (positions, ascending)."""
        rank, size = self.federation.communicator.rank, self.federation.communicator.size
        everything = np.arange(len(self.mine))
        if self.chosen[0] == "collective":
            return [everything] * size
        to, position = self._outgoing
        nothing = everything[:0]
        return [
            nothing if peer == rank or self.by_sums[peer, rank] else position[to == peer]
            for peer in range(size)
        ]

    @cached_property
    def sums_to(self) -> list[np.ndarray]:
        """For each rank, the nodes of it that get a sum from here, ascending."""
        rank = self.federation.communicator.rank
        return [self._hubs(peer, rank) for peer in range(self.federation.communicator.size)]

    @cached_property
    def sums_from(self) -> list[np.ndarray]:
        """For each rank, our nodes that get a sum from there, ascending."""
        rank = self.federation.communicator.rank
        return [self._hubs(rank, peer) for peer in range(self.federation.communicator.size)]

    def _hubs(self, receiver: int, sender: int) -> np.ndarray:
        if receiver == sender or not self.by_sums[receiver, sender]:
            return np.zeros(0, np.int64)
        theirs = np.flatnonzero(self.owner == receiver)
        linked = self.sparse[theirs][:, np.flatnonzero(self.owner == sender)]
        return theirs[np.diff(linked.tocsr().indptr) > 0]

    @cached_property
    def messages(self) -> int:
        """Messages between clients in a round: one for every direction of an edge with weight."""
        used = int(np.count_nonzero(self.matrix.weights))
        return 2 * used if self.matrix.symmetric else used

    @cached_property
    def receivers(self) -> np.ndarray:
        """How many other nodes mix each node's row, int64 (nodes,)."""
        used = self.sparse.tocoo()
        receiver, sender = used.row, used.col
        return np.bincount(sender[receiver != sender], minlength=self.sparse.shape[0])

    @cached_property
    def linked(self) -> np.ndarray:
        """Which of ``mine`` have a neighbour; the others keep their row to the bit."""
        return np.diff(self._incoming.indptr) > (self.sparse.diagonal()[self.mine] != 0)

    @cached_property
    def longest(self) -> int:
        """Entries in the longest row of W, at most; the same on every rank."""
        return int(np.diff(self.sparse.indptr).max(initial=0)) + 1

    @cached_property
    def mixers(self) -> tuple[Mixer | None, Mixer]:
        """The rows of W for ``mine``: columns of ``mine``, None if they arrive; of ``columns``."""
        whole = mixer(self._incoming, self.mine, self.longest, self.traffic.limbs)
        own = None if self.chosen[0] == "collective" else whole.of(self.mine)
        return own, whole.of(self.columns)

    def mix(
        self,
        mine: np.ndarray,
        arrived: np.ndarray,
        exponent: int,
        mixed: np.ndarray,
        sums: Iterable[tuple[np.ndarray, np.ndarray]],
    ) -> None:
        """Fill ``mixed`` by W X for some columns of our rows and of what arrived."""
        own, others = self.mixers
        parts = [(others, arrived)] if own is None else [(own, mine), (others, arrived)]
        mix([part for part in parts if len(part[1])] or parts, exponent, mixed, sums)

    @cached_property
    def sum_mixers(self) -> list[Mixer | None]:
        """For each rank that gets sums from here, what makes them from the rows of ``mine``."""
        return [
            off_diagonal_mixer(self.sparse[nodes][:, self.mine], self.longest, self.traffic.limbs)
            if len(nodes)
            else None
            for nodes in self.sums_to
        ]


# Routes of earlier rounds that are kept for when their matrix comes again.
ROUTES_KEPT = 16


class Routing:
    """The routes of a schedule's matrices between the clients of a federation."""

    def __init__(
        self,
        federation: Federation,
        schedule: topologies.Schedule,
        from_rank_0: bool,
        transport: str,
        within: topologies.Schedule | None = None,
    ) -> None:
        self.within: Routing | None = None
        if within is not None:
            self.within = Routing(federation, within, from_rank_0, transport)
        self.federation, self.schedule = federation, schedule
        self._from_rank_0, self._transport = from_rank_0, transport
        self._routes: dict[tuple[int, bytes, int], Route] = {}
        self._weights: dict[int, scipy.sparse.csr_array] = {}
        self._neighbourhoods: dict[int, Any] = {}

    def route(self, round: int, active: np.ndarray, itemsize: int) -> Route:
        """Return what this rank does in a round. Collective when first asked for."""
        phase, period = self._phase(round), self.schedule.period
        key = (phase, np.packbits(active).tobytes(), itemsize)
        if key not in self._routes:
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
                self._neighbourhoods.clear()
            nodes = active[self.federation.training]
            matrix = self._matrix(round)
            if not nodes.all():
                matrix = matrix.restricted_to(nodes)
            repeats = period is not None and bool(nodes.all())
            self._routes[key] = Route(
                self.federation, matrix, nodes, itemsize, repeats, self._transport
            )
        return self._routes[key]

    def arcs(self, round: int, active: np.ndarray, itemsize: int) -> np.ndarray:
        """Return receivers and senders of a round's messages, int64 (messages, 2)."""
        used = self.route(round, active, itemsize).sparse.tocoo()
        pairs = np.stack([used.row, used.col], axis=1).astype(np.int64)
        return np.asarray(pairs[used.row != used.col])

    def weights(self, round: int) -> scipy.sparse.csr_array:
        """Return W^k over all training clients, without explicit zeros. Collective."""
        phase = self._phase(round)
        if phase not in self._weights:
            if len(self._weights) >= ROUTES_KEPT:
                self._weights.clear()
            found = self._matrix(round).to_sparse()
            found.eliminate_zeros()
            self._weights[phase] = found
        return self._weights[phase]

    def _phase(self, round: int) -> int:
        period = self.schedule.period
        return round if period is None else (round - 1) % period

    def _matrix(self, round: int) -> topologies.MixingMatrix:
        """W^k, the same bits on every rank."""
        if not self._from_rank_0:
            return self.schedule.matrix(round)
        communicator = self.federation.communicator
        made: Any = None
        if communicator.rank == 0:
            try:
                found = self.schedule.matrix(round)
                made = (found.n, found.edges, found.weights, found.symmetric)
            except topologies.TopologyError as error:
                made = str(error)
        made = communicator.broadcast_object(made)
        if isinstance(made, str):
            raise RunError(f"exchange.schedule: {made}")
        return topologies.MixingMatrix(*made)

    def neighbourhood(self, route: Route) -> Any:
        """Return the distributed-graph communicator of ``route``. Collective when first
        asked for.
        """
        if route.chosen[0] != "neighbourhood":
            return None
        if id(route) not in self._neighbourhoods:
            rank = self.federation.communicator.rank
            others = [peer for peer in range(len(route.receive)) if peer != rank]
            self._neighbourhoods[id(route)] = self.federation.communicator.neighbourhood(
                [peer for peer in others if route.receive[peer]],
                [peer for peer in others if len(route.send[peer])],
            )
        return self._neighbourhoods[id(route)]


T = TypeVar("T")

# Bytes of rows and sums, leaving and arriving, of a piece; a rank holds two at a time.
BUFFER = 1 << 23

# Bytes of a large model that a piece may have without notice, beside a rank's clients.
LITTLE = 1 << 21

# A model of more numbers than ``COLUMNS`` travels in at least ``PIECES``, or pieces of that; in
# ``FEWEST`` where these have no more than ``LITTLE`` bytes.
COLUMNS, FEWEST, PIECES = 1 << 15, 8, 32


@dataclass(frozen=True)
class Arrival:
    """Some columns of the rows that a rank mixes."""

    columns: slice
    rows: np.ndarray
    sums: list[tuple[np.ndarray, np.ndarray]]


def arrivals(
    communicator: Communicator, route: Route, neighbourhood: Any, flat: np.ndarray, exponent: int
) -> Iterator[Arrival]:
    """Return what a rank mixes, piece by piece. Collective: every rank must take all pieces."""
    width, by_sums = piece(flat.shape[1], route.bytes_a_number), route.by_sums.any()

    def begun() -> Iterator[Callable[[], Arrival]]:
        for start in range(0, flat.shape[1], width):
            columns = slice(start, min(start + width, flat.shape[1]))
            part = flat[:, columns]
            rows = _begin_rows(communicator, route, neighbourhood, part)
            sums = _begin_sums(communicator, route, part, exponent) if by_sums else list
            yield partial(_arrival, columns, rows, sums)

    return ahead(begun())


def _arrival(
    columns: slice,
    rows: Callable[[], np.ndarray],
    sums: Callable[[], list[tuple[np.ndarray, np.ndarray]]],
) -> Arrival:
    return Arrival(columns, rows(), sums())


def ahead(begun: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield what operations return, each once the one after it has begun."""
    waiting: Callable[[], T] | None = None
    for operation in begun:
        if waiting is not None:
            yield waiting()
        waiting = operation
    if waiting is not None:
        yield waiting()


def piece(numbers: int, bytes_a_number: int) -> int:
    """Return the columns of a model of so many numbers that travel at a time."""
    little = min(-(-numbers // FEWEST), LITTLE // bytes_a_number)
    return max(1, min(BUFFER // bytes_a_number, max(COLUMNS, numbers // PIECES, little)))


def _begin_rows(
    communicator: Communicator, route: Route, neighbourhood: Any, part: np.ndarray
) -> Callable[[], np.ndarray]:
    transport = route.chosen[0]
    if transport == "collective":
        return communicator.begin_gather(part, route.receive)
    if transport == "neighbourhood":
        return communicator.begin_exchange_in(
            neighbourhood, part, route.send, route.receive, route.most
        )
    return communicator.begin_exchange(part, route.send, route.receive)


def _begin_sums(
    communicator: Communicator, route: Route, part: np.ndarray, exponent: int
) -> Callable[[], list[tuple[np.ndarray, np.ndarray]]]:
    """Gives other ranks the sums of our rows that they want, and takes theirs."""
    orders, width = 2 * route.traffic.limbs - 1, part.shape[1]
    receive = [len(nodes) for nodes in route.sums_from]
    ends = np.cumsum([len(nodes) for nodes in route.sums_to])
    send = [
        np.arange(end - len(nodes), end) for end, nodes in zip(ends, route.sums_to, strict=True)
    ]
    outgoing = np.empty((ends[-1], orders, width))
    for places, made in zip(send, route.sum_mixers, strict=True):
        if made:
            outgoing[places] = np.moveaxis(made.products(part, exponent), 0, 1)
    arriving = communicator.begin_exchange(outgoing.reshape(-1, orders * width), send, receive)

    def ended() -> list[tuple[np.ndarray, np.ndarray]]:
        arrived, found, begin = arriving(), [], 0
        for nodes in route.sums_from:
            block = arrived[begin : begin + len(nodes)].reshape(len(nodes), orders, width)
            begin += len(nodes)
            if len(nodes):
                found.append((np.searchsorted(route.mine, nodes), np.moveaxis(block, 1, 0)))
        return found

    return ended


# Columns that travel at a time: the same on any ranks, so that sums over them are too.
WIDTH = 1 << 13


@dataclass(frozen=True)
class Nearby:
    """Who hears whom in a round, for the participants hosted here."""

    communicator: Communicator
    ids: np.ndarray
    send: list[np.ndarray]
    receive: list[int]
    receivers: np.ndarray
    senders: np.ndarray
    weights: np.ndarray

    def pieces(self, rows: Tensor) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield some columns, and the rows of all senders there, float64 (senders, width)."""
        # What is not finite is refused with the client's number.
        common_exponents(self.communicator, [rows], self.ids, "update")
        for start in range(0, rows.shape[1], WIDTH):
            part = slice(start, min(start + WIDTH, rows.shape[1]))
            own = np.ascontiguousarray(on_host(rows[:, part]))
            arrived = self.communicator.exchange_rows(own, self.send, self.receive)
            yield part, arrived.astype(np.float64)


def nearby(communicator: Communicator, route: Route) -> Nearby:
    """Return who hears whom in a round."""
    arcs = route.sparse.tocoo()
    between = (arcs.row != arcs.col) & (route.owner[arcs.row] >= 0)
    row, column, weight = arcs.row[between], arcs.col[between], arcs.data[between]
    ranks, me = range(communicator.size), communicator.rank
    heard = [np.unique(column[route.owner[row] == rank]) for rank in ranks]
    send = [np.searchsorted(route.mine, nodes[route.owner[nodes] == me]) for nodes in heard]
    by_rank = [heard[me][route.owner[heard[me]] == rank] for rank in ranks]
    place = np.zeros(route.matrix.n, np.int64)
    place[np.concatenate(by_rank)] = np.arange(len(heard[me]))
    here = np.flatnonzero(route.owner[row] == me)
    here = here[np.lexsort((column[here], row[here]))]
    return Nearby(
        communicator,
        route.federation.training[route.mine],
        send,
        [len(nodes) for nodes in by_rank],
        np.searchsorted(route.mine, row[here]),
        place[column[here]],
        weight[here],
    )
