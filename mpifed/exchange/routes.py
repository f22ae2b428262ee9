"""What gossip sends: which rows go from rank to rank in a round, by W and by who lives where.

A ``Routing`` has the ``Route`` of every round. Where gossip is not linear in the rows of
neighbours, ``Nearby`` gives these rows one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from torch import Tensor

import topologies
from mpifed.errors import RunError
from mpifed.exchange.mixing_product import WIDTH, MixingProduct, is_dense
from mpifed.federation.federation import Federation
from mpifed.federation.reduction import bytes_of_sum, check_not_diverged
from mpifed.mpi.communicator import Communicator
from mpifed.state import on_host
from topologies import MixingMatrix

# Bytes of rows, leaving and arriving, that a rank holds at a time.
BUFFER = 1 << 23

# How many times more nodes there are than sums in place of their rows.
SUMMED = 16

# Routes of earlier rounds that are kept for when their matrix comes again.
ROUTES_KEPT = 16

# Columns of neighbours that are looked at together: the same on any ranks, as sums over them are.
TOGETHER = 1 << 13


@dataclass(frozen=True)
class Transfer:
    """Which rows, each once, a rank sends to others and receives.

    ``send`` has positions among its own rows for each rank that needs some, ``receive`` how many
    rows come from each that sends some, ``arriving`` which ones, by rank and then by number, and
    ``moved`` how many leave and enter each rank, int64 (ranks,). ``onward`` is what a rank passes
    on to others of its host of what has arrived, and gets so; the last two are then of both.
    """

    send: dict[int, np.ndarray]
    receive: dict[int, int]
    arriving: np.ndarray
    moved: np.ndarray
    onward: Transfer | None = None


def transfer(
    to: np.ndarray,
    row: np.ndarray,
    owner: np.ndarray,
    rank: int,
    ranks: int,
    node: np.ndarray | None = None,
) -> Transfer:
    """Return what rank ``rank`` moves where the ranks ``to`` need the rows ``row`` of ``owner``.

    With ``node``, the host of each rank, a row goes to each other host once.
    """
    # In 64 bits: ranks times nodes, and its square, may be above 2^31.
    n = max(1, len(owner))
    to, row = np.divmod(np.unique(to.astype(np.int64) * n + row), n)
    source = owner[row]
    mine, direct = np.flatnonzero(owner == rank), np.ones(len(to), bool)
    if node is not None and node.any():  # several hosts
        order = np.lexsort((to, row, node[to]))
        new = np.diff(node[to[order]] * n + row[order], prepend=-1) != 0
        starts = np.flatnonzero(new)
        count = np.diff(starts, append=len(order))
        relay = np.empty_like(to)
        # Those who need a row take turns.
        relay[order] = np.repeat(to[order[starts + row[order[starts]] % count]], count)
        direct = (node[to] == node[source]) | (relay == to)
    first = _transfer(to[direct], row[direct], source[direct], mine, rank, ranks)
    if direct.all():
        return first
    relayed = ~direct
    onward = _transfer(to[relayed], row[relayed], relay[relayed], first.arriving, rank, ranks)
    arriving = np.concatenate([first.arriving, onward.arriving])
    return Transfer(first.send, first.receive, arriving, first.moved + onward.moved, onward)


def _transfer(
    to: np.ndarray, row: np.ndarray, source: np.ndarray, held: np.ndarray, rank: int, ranks: int
) -> Transfer:
    """``transfer`` of pairs that are sorted, by a rank that holds the rows ``held``."""
    sends, order = source == rank, np.argsort(held)
    positions = order[np.searchsorted(held, row[sends], sorter=order)]
    peers, starts = np.unique(to[sends], return_index=True)
    mine = to == rank
    froms, counts = np.unique(source[mine], return_counts=True)
    arriving = row[mine][np.argsort(source[mine], kind="stable")]
    return Transfer(
        dict(zip(peers.tolist(), np.split(positions, starts[1:]), strict=False)),
        dict(zip(froms.tolist(), counts.tolist(), strict=True)),
        arriving,
        np.bincount(to, minlength=ranks) + np.bincount(source, minlength=ranks),
    )


@dataclass(frozen=True)
class Route:
    """The part of this rank in a round of gossip by ``matrix``, among the nodes with
    ``active``.
    """

    federation: Federation
    matrix: MixingMatrix
    active: np.ndarray

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
    def summed(self) -> list[tuple[np.ndarray, list[int]]]:
        """What is added along the tree: weights of all nodes, and the nodes t that share them.

        Rows of W with most of the nodes, if they are few or differ only in W[t, t], which stands as
        the largest of the others. Of W alone, not of ranks.
        """
        w, n, nodes_by_row = self.sparse, len(self.active), dict[bytes, list[int]]()
        for node in np.flatnonzero(np.diff(w.indptr) > n / 2).tolist():
            row = w[[node]].toarray()[0]
            row[node] = 0
            row[node] = row.max()
            nodes_by_row.setdefault(row.tobytes(), []).append(node)
            if len(nodes_by_row) > n / SUMMED:
                return []
        return [(np.frombuffer(row), nodes) for row, nodes in nodes_by_row.items()]

    @cached_property
    def by_rows(self) -> scipy.sparse.csr_array:
        """W without the rows that are ``summed``."""
        is_sparse = np.ones(self.sparse.shape[0])
        is_sparse[[node for _, nodes in self.summed for node in nodes]] = 0
        w = self.sparse.multiply(is_sparse[:, None]).tocsr()
        w.eliminate_zeros()
        return w

    def transfer_for(self, w: scipy.sparse.csr_array) -> Transfer:
        """Return which rows ranks need of each other where they multiply ``w``."""
        links, communicator = w.tocoo(), self.federation.communicator
        to, source = self.owner[links.row], self.owner[links.col]
        across = to != source
        rank, ranks, node = communicator.rank, communicator.size, communicator.nodes()
        return transfer(to[across], links.col[across], self.owner, rank, ranks, node)

    @cached_property
    def transfer(self) -> Transfer:
        """The rows that other ranks need, and those that this one needs."""
        return self.transfer_for(self.by_rows)

    @property
    def rows_moved(self) -> int:
        """Rows, and sums of rows, that MPI moves in a round."""
        sums = len(self.summed) * bytes_of_sum(self.federation, 1)
        return int(self.transfer.moved.sum()) // 2 + sums

    @cached_property
    def mine(self) -> np.ndarray:
        """The participating nodes hosted here, ascending."""
        return np.flatnonzero(self.owner == self.federation.communicator.rank)

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
    def product(self) -> MixingProduct:
        """The rows of W for ``mine``, to multiply these and what arrives."""
        columns = np.concatenate([self.mine, self.transfer.arriving])
        return MixingProduct(self.by_rows[self.mine], self.mine, columns, is_dense(self.by_rows))


class Routing:
    """The routes of a schedule's matrices between the clients of a federation."""

    def __init__(
        self,
        federation: Federation,
        schedule: topologies.Schedule,
        from_rank_0: bool,
        cliques: topologies.Schedule | None = None,
    ) -> None:
        self.cliques: Routing | None = None
        if cliques is not None:
            self.cliques = Routing(federation, cliques, from_rank_0)
        self.federation, self.schedule = federation, schedule
        self._from_rank_0 = from_rank_0
        self._routes: dict[tuple[int, bytes], Route] = {}

    def route(self, round: int, active: np.ndarray) -> Route:
        """Return what this rank does in a round. Collective when first asked for."""
        key = (self._phase(round), np.packbits(active).tobytes())
        if key not in self._routes:
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
            nodes = active[self.federation.training]
            matrix = self._matrix(round)
            if not nodes.all():
                matrix = matrix.restricted_to(nodes)
            self._routes[key] = Route(self.federation, matrix, nodes)
        return self._routes[key]

    def arcs(self, round: int, active: np.ndarray) -> np.ndarray:
        """Return receivers and senders of a round's messages, int64 (messages, 2)."""
        used = self.route(round, active).sparse.tocoo()
        pairs = np.stack([used.row, used.col], axis=1).astype(np.int64)
        return np.asarray(pairs[used.row != used.col])

    def weights(self, round: int) -> scipy.sparse.csr_array:
        """Return W^k over all training clients, without explicit zeros. Collective."""
        return self.route(round, ~self.federation.unseen).sparse

    def _phase(self, round: int) -> int:
        period = self.schedule.period
        return round if period is None else (round - 1) % period

    def _matrix(self, round: int) -> topologies.MixingMatrix:
        """W^k, the same bits on every rank."""
        if not self._from_rank_0:
            return self.schedule.matrix(round)
        communicator = self.federation.communicator
        arrays: Any = None
        if communicator.rank == 0:
            try:
                matrix = self.schedule.matrix(round)
                arrays = (matrix.n, matrix.edges, matrix.weights, matrix.symmetric)
            except topologies.TopologyError as error:
                arrays = str(error)
        arrays = communicator.broadcast_object(arrays)
        if isinstance(arrays, str):
            raise RunError(f"exchange.schedule: {arrays}")
        return topologies.MixingMatrix(*arrays)


def arrivals(
    communicator: Communicator, moved: Transfer, rows: Tensor, width: int | None = None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield some columns, and what arrives there of the rows of other ranks. Collective."""
    # A single rank needs nothing on the host.
    hosted = on_host(rows if communicator.size > 1 else rows[:0])
    if width is None:
        # The same columns are mixed together on any number of ranks.
        width = (
            max(1, BUFFER // (max(1, int(moved.moved.max(initial=0))) * hosted.itemsize) // WIDTH)
            * WIDTH
        )
    for start in range(0, rows.shape[1], width):
        part = slice(start, min(start + width, rows.shape[1]))
        arrived = communicator.exchange_rows(hosted[:, part], moved.send, moved.receive)
        if moved.onward is not None:
            onward = moved.onward
            passed = communicator.exchange_rows(arrived, onward.send, onward.receive)
            arrived = np.concatenate([arrived, passed])
        yield part, arrived


@dataclass(frozen=True)
class Nearby:
    """Who hears whom in a round, for the participants hosted here.

    Its rows are those of the participants hosted here, in their order, and behind them those that
    arrive from other ranks. An arc is a message: arcs are sorted by receivers, and the arcs of a
    receiver by the nodes of their senders.

    Attributes
    ----------
    communicator : Communicator
        The ranks.
    ids : ndarray
        The clients hosted here that take part, int64 (participants,).
    transfer : Transfer
        Which rows go from rank to rank.
    receivers, senders : ndarray
        The positions of an arc's receiver and sender among the rows, whole numbers (arcs,); a
        receiver's is also that among the participants hosted here.
    weights : ndarray
        W[receiver, sender] of each arc, float64 (arcs,).
    nodes : ndarray
        The node of each row, int64 (rows,).
    """

    communicator: Communicator
    ids: np.ndarray
    transfer: Transfer
    receivers: np.ndarray
    senders: np.ndarray
    weights: np.ndarray
    nodes: np.ndarray

    def all_rows(self, rows: Tensor) -> np.ndarray:
        """Return the rows hosted here and those that arrive, float64 (rows, numbers). Collective.

        ``rows`` are (participants, numbers).
        """
        full = np.empty((len(self.nodes), rows.shape[1]))
        for part, columns in self.pieces(rows):
            full[:, part] = columns
        return full

    def pieces(self, rows: Tensor) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield some columns, and there the rows hosted here and those that arrive, float64."""
        # What is not finite is refused with the client's number.
        check_not_diverged(self.communicator, [rows], self.ids, "update")
        for part, arrived in arrivals(self.communicator, self.transfer, rows, TOGETHER):
            yield part, np.concatenate([on_host(rows[:, part]), arrived]).astype(np.float64)


def nearby(communicator: Communicator, route: Route) -> Nearby:
    """Return who hears whom in a round, receiver by receiver in the order of the senders."""
    ids, mine = route.federation.training[route.mine], route.mine
    moved = route.transfer_for(route.sparse)
    position, nodes = np.zeros(route.matrix.n, np.int64), np.concatenate([mine, moved.arriving])
    position[nodes] = np.arange(len(nodes))
    arcs = route.sparse[mine].tocoo()
    others = np.flatnonzero(mine[arcs.row] != arcs.col)
    others = others[np.lexsort((arcs.col[others], arcs.row[others]))]
    senders = position[arcs.col[others]]
    return Nearby(communicator, ids, moved, arcs.row[others], senders, arcs.data[others], nodes)
