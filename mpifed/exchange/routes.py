"""What ranks send each other in a round of gossip, found from W and from who lives where.

A rank can get what it needs from another rank in two ways: as the *rows* that its clients mix, each
once, or as the *sums* that its clients receive, added up by the sender. The way with fewer bytes is
taken: sums for hubs (a star), rows for nearly everything else. All ranks derive the same plan from
the same W.

Rows travel by one of three transports. If nearly all ranks need nearly all rows, an Allgatherv
moves as many bytes in fewer steps; if few pairs of ranks are neighbours, a neighbourhood collective
on a distributed-graph communicator; where W changes from round to round, point-to-point messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse

from mpifed.exchange.mixer import Mixer, mix, mixer, off_diagonal_mixer
from mpifed.federation.clients import Federation
from topologies import MixingMatrix

GATHER_SLACK = 1.05
"""An Allgatherv is taken when it moves at most this many times the bytes that are needed."""

TRANSPORTS = ("auto", "collective", "neighbourhood", "messages")


@dataclass(frozen=True)
class Traffic:
    """What all pairs of ranks need of each other.

    ``distinct_rows[a, b]`` counts the rows of b that a mixes, ``distinct_sums[a, b]`` the nodes of
    a that receive from b; both int64 (ranks, ranks), zero on the diagonal. ``hosted`` counts the
    nodes of each rank. Rows have ``itemsize`` bytes a number, sums ``limbs`` limbs.
    """

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
    """The part of this rank in a round of gossip by ``matrix``, among the nodes with ``active``.

    ``repeats`` says whether the same matrix comes again; ``transport`` is 'auto' or forced.
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
        """Fill ``mixed`` by W X for some columns of our rows and of what arrived.

        The other arguments are those of ``reduction.mix``.
        """
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
