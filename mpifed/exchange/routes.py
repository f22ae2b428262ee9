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
from mpifed.exchange.mixer import Mixer, mix, mixer
from mpifed.exchange.reduction import common_exponents
from mpifed.federation.clients import Federation
from mpifed.mpi.communicator import Communicator
from mpifed.state import on_host
from topologies import MixingMatrix

# An Allgatherv is taken when it moves at most this many times the bytes that are needed.
GATHER_SLACK = 1.05

TRANSPORTS = ("auto", "collective", "neighbourhood", "messages")


@dataclass(frozen=True)
class Transfer:
    """Which rows, each once, a rank sends to others and receives.

    ``send`` has positions among its own rows for each rank, ``receive`` how many rows come from
    each, ``arriving`` which ones, by rank and then by number, and ``between`` how many each rank
    gets of each other, int64 (ranks, ranks).
    """

    send: list[np.ndarray]
    receive: list[int]
    arriving: np.ndarray
    between: np.ndarray


def transfer(to: np.ndarray, row: np.ndarray, owner: np.ndarray, rank: int, ranks: int) -> Transfer:
    """Return what rank ``rank`` moves where the ranks ``to`` need the rows ``row`` of ``owner``."""
    # In 64 bits: ranks times nodes, and its square, may be above 2^31.
    pairs = np.unique(to.astype(np.int64) * len(owner) + row)
    to, row = pairs // max(1, len(owner)), pairs % max(1, len(owner))
    source = owner[row]
    own, mine = source == rank, np.flatnonzero(owner == rank)
    ends = np.searchsorted(to[own], np.arange(1, ranks))
    arriving = row[to == rank]
    arriving = arriving[np.argsort(owner[arriving], kind="stable")]
    between = np.bincount(to * ranks + source, minlength=ranks * ranks).reshape(ranks, ranks)
    return Transfer(
        np.split(np.searchsorted(mine, row[own]), ends), between[rank].tolist(), arriving, between
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
    def transfer(self) -> Transfer:
        """The rows that other ranks need, and those that this one needs."""
        links, communicator = self.sparse.tocoo(), self.federation.communicator
        to, source = self.owner[links.row], self.owner[links.col]
        across = to != source
        return transfer(
            to[across], links.col[across], self.owner, communicator.rank, communicator.size
        )

    @cached_property
    def hosted(self) -> np.ndarray:
        """How many participants each rank hosts."""
        ranks = self.federation.communicator.size
        return np.bincount(self.owner[self.owner >= 0], minlength=ranks)

    @cached_property
    def chosen(self) -> tuple[str, str]:
        """The transport of rows, and why."""
        between, ranks = self.transfer.between, self.federation.communicator.size
        gathered, needed = int(self.hosted.sum()) * (ranks - 1), int(between.sum())
        if ranks == 1:
            return "memory", "all clients live on one rank"
        if self.transport != "auto":
            return self.transport, "as asked"
        if gathered <= GATHER_SLACK * needed:
            return "collective", f"an Allgatherv of {gathered} rows against {needed} needed"
        if self.repeats:
            pairs = f"{np.count_nonzero(between)} of {ranks * (ranks - 1)} pairs of ranks"
            return "neighbourhood", f"{needed} rows between {pairs}"
        return "messages", "W changes from round to round"

    @property
    def gathers(self) -> bool:
        """Whether every rank gets every row."""
        return self.chosen[0] == "collective"

    @property
    def rows_moved(self) -> int:
        """Rows that MPI moves in a round."""
        if self.gathers:
            return int(self.hosted.sum()) * (len(self.hosted) - 1)
        return int(self.transfer.between.sum())

    @cached_property
    def bytes_a_number(self) -> int:
        """Bytes that the fullest rank holds per number of the state; the same on every rank."""
        between = self.transfer.between
        rows = self.hosted.sum() + self.hosted if self.gathers else between.sum(0) + between.sum(1)
        return max(1, int(rows.max()) * self.itemsize)

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
        if not self.gathers:
            return self.transfer.arriving
        everyone = np.flatnonzero(self.owner >= 0)
        return everyone[np.argsort(self.owner[everyone], kind="stable")]

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
        whole = mixer(self._incoming, self.mine, self.longest, 3 if self.itemsize == 8 else 2)
        own = None if self.gathers else whole.of(self.mine)
        return own, whole.of(self.columns)

    def mix(self, mine: np.ndarray, arrived: np.ndarray, exponent: int, mixed: np.ndarray) -> None:
        """Fill ``mixed`` by W X for some columns of our rows and of what arrived."""
        own, others = self.mixers
        parts = [(others, arrived)] if own is None else [(own, mine), (others, arrived)]
        mix([part for part in parts if len(part[1])] or parts, exponent, mixed)


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

    def arrivals(self, route: Route, flat: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield some columns, and what arrives there of the rows of others. Collective."""
        communicator, moved = self.federation.communicator, route.transfer
        begin: Callable[[np.ndarray], Callable[[], np.ndarray]]
        if route.gathers:
            begin = partial(communicator.begin_gather, counts=route.hosted.tolist())
        elif route.chosen[0] == "neighbourhood":
            between = moved.between
            most = int(between.sum(0).max()) + int(between.sum(1).max())
            begin = partial(self._begin_among_neighbours, self.neighbourhood(route), route, most)
        else:
            begin = partial(communicator.begin_exchange, send=moved.send, receive=moved.receive)
        return in_pieces(begin, flat, route.bytes_a_number)

    def _begin_among_neighbours(
        self, neighbourhood: Any, route: Route, most: int, part: np.ndarray
    ) -> Callable[[], np.ndarray]:
        send, receive = route.transfer.send, route.transfer.receive
        begin = self.federation.communicator.begin_exchange_in
        return begin(neighbourhood, part, send, receive, most)

    def neighbourhood(self, route: Route) -> Any:
        """Return the distributed-graph communicator of ``route``. Collective when first
        asked for.
        """
        if id(route) not in self._neighbourhoods:
            moved, rank = route.transfer, self.federation.communicator.rank
            others = [peer for peer in range(len(moved.receive)) if peer != rank]
            self._neighbourhoods[id(route)] = self.federation.communicator.neighbourhood(
                [peer for peer in others if moved.receive[peer]],
                [peer for peer in others if len(moved.send[peer])],
            )
        return self._neighbourhoods[id(route)]


T = TypeVar("T")

# Bytes of rows, leaving and arriving, of a piece; a rank holds two at a time.
BUFFER = 1 << 23

# Bytes of a large model that a piece may have without notice, beside a rank's clients.
LITTLE = 1 << 21

# A model of more numbers than ``COLUMNS`` travels in at least ``PIECES``, or pieces of that; in
# ``FEWEST`` where these have no more than ``LITTLE`` bytes.
COLUMNS, FEWEST, PIECES = 1 << 15, 8, 32


def in_pieces(
    begin: Callable[[np.ndarray], Callable[[], np.ndarray]], rows: np.ndarray, bytes_a_number: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield some columns, and what ``begin`` makes arrive of these columns of ``rows``."""
    total = rows.shape[1]
    width = piece(total, bytes_a_number)
    parts = [slice(first, min(first + width, total)) for first in range(0, total, width)]
    return zip(parts, ahead(begin(rows[:, part]) for part in parts), strict=True)


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


# Columns that travel at a time: the same on any ranks, so that sums over them are too.
WIDTH = 1 << 13


@dataclass(frozen=True)
class Nearby:
    """Who hears whom in a round, for the participants hosted here."""

    communicator: Communicator
    ids: np.ndarray
    transfer: Transfer
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
            moved = self.transfer
            arrived = self.communicator.exchange_rows(own, moved.send, moved.receive)
            yield part, arrived.astype(np.float64)


def nearby(communicator: Communicator, route: Route) -> Nearby:
    """Return who hears whom in a round."""
    arcs = route.sparse.tocoo()
    between = (arcs.row != arcs.col) & (route.owner[arcs.row] >= 0)
    row, column, weight = arcs.row[between], arcs.col[between], arcs.data[between]
    me, owner = communicator.rank, route.owner
    moved = transfer(owner[row], column, owner, me, communicator.size)
    place = np.zeros(route.matrix.n, np.int64)
    place[moved.arriving] = np.arange(len(moved.arriving))
    here = np.flatnonzero(owner[row] == me)
    here = here[np.lexsort((column[here], row[here]))]
    return Nearby(
        communicator,
        route.federation.training[route.mine],
        moved,
        np.searchsorted(route.mine, row[here]),
        place[column[here]],
        weight[here],
    )
