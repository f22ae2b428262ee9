"""Rows between ranks: wide ones are sent from where they are, narrow ones side by side."""

from __future__ import annotations

import numpy as np
import pytest

from mpifed.mpi.communicator import world
from mpifed.mpi.pieces import PIECE, WIDE, in_place

OWN = 3


@pytest.mark.parametrize(
    ("row", "every", "found"),
    [(WIDE, 2 * WIDE, True), (WIDE - 1, WIDE, False), (WIDE, PIECE + 1, False)],
)
def test_wide_rows_that_fit_into_a_message_are_sent_in_place(row, every, found):
    assert in_place(row, every) is found


def numbers(rank: int, width: int, dtype: type) -> np.ndarray:
    """The rows of a rank; the last one of several has none."""
    count = 0 if rank and rank == world().size - 1 else OWN + rank
    return (np.arange(count * width).reshape(count, width) % 997 + 1000 * rank).astype(dtype)


def wanted(giver: int, taker: int) -> np.ndarray:
    """The rows that one rank gives another: neither all nor side by side, none to some."""
    have = len(numbers(giver, 1, np.int32))
    return np.arange(have)[:: 2 + (giver + taker) % 2] if (giver + taker) % 3 else np.zeros(0, int)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", ["all", "some"])
@pytest.mark.parametrize("way", ["messages", "neighbourhood"])
@pytest.mark.parametrize("width", [7, WIDE])
def test_every_rank_gets_the_rows_meant_for_it(width, way, columns, dtype):
    communicator = world()
    me, ranks = communicator.rank, range(communicator.size)
    part = slice(width // 8, None) if columns == "some" else slice(None)
    rows = numbers(me, width, dtype)[:, part]
    send = [wanted(me, peer) for peer in ranks]
    receive = [len(wanted(peer, me)) for peer in ranks]
    sent = communicator.bytes_sent
    if way == "messages":
        arrived = communicator.exchange_rows(rows, send, receive)
    else:
        others = [peer for peer in ranks if peer != me]
        sources = [peer for peer in others if receive[peer]]
        destinations = [peer for peer in others if len(send[peer])]
        receive[me] = 0
        made = communicator.neighbourhood(sources, destinations)
        most = 2 * len(ranks) * (OWN + len(ranks))
        arrived = communicator.begin_exchange_in(made, rows, send, receive, most)()
    given = [numbers(peer, width, dtype)[wanted(peer, me)][:, part] for peer in ranks]
    if way == "neighbourhood":
        given[me] = given[me][:0]
    np.testing.assert_array_equal(arrived, np.concatenate(given))
    leaving = sum(len(send[peer]) for peer in ranks if peer != me)
    assert communicator.bytes_sent - sent == leaving * rows.shape[1] * rows.itemsize
