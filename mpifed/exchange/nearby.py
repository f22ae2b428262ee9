"""The rows of neighbours one by one, for gossip that is not linear in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mpifed.exchange.reduction import common_exponents
from mpifed.exchange.routes import Route
from mpifed.mpi.communicator import Communicator
from mpifed.state import on_host

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
