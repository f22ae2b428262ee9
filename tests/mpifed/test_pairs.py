"""Numbers and products of clients' messages, as a server has them on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed.exchange import aggregation
from mpifed.exchange.server import Server
from mpifed.federation.clients import Federation
from mpifed.mpi.communicator import Alone, world

N = 7
ROWS = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 2, 5)))
ACTIVE = np.arange(N) != 3


def channel_of(communicator, owner):
    federation = Federation(communicator, owner, np.zeros(N, bool), np.full(N, 4))
    hosted = federation.hosted[ACTIVE[federation.hosted]]
    return Server(federation, 0).at(1, ACTIVE), ROWS[hosted], hosted


def alone():
    return channel_of(Alone(), np.zeros(N, int))


def test_products_are_those_of_all_pairs_in_the_order_of_clients(monkeypatch):
    channel, rows, _ = alone()
    flat = rows.flatten(1).numpy()
    assert channel.products(rows).numpy() == pytest.approx(flat @ flat.T, rel=1e-13)
    monkeypatch.setattr(aggregation, "AT_ONCE", 15)  # two columns at a time
    assert channel.products(rows).numpy() == pytest.approx(flat @ flat.T, rel=1e-13)


def test_numbers_are_at_their_clients_and_zero_elsewhere():
    channel, _, hosted = alone()
    assert channel.gather(torch.from_numpy(hosted + 10)).tolist() == [10, 11, 12, 0, 14, 15, 16]


def test_a_row_of_each_client_is_booked_once_for_each_who_takes_part():
    channel, rows, _ = alone()
    assert channel.scatter(rows) is rows
    assert channel.exchange.ledger.down_bits == 6 * 10 * 64


@pytest.mark.mpi
def test_both_are_the_same_on_these_ranks_as_on_one():
    communicator = world()
    channel, rows, hosted = channel_of(communicator, np.arange(N)[::-1] % communicator.size)
    one, whole, everyone = alone()
    assert torch.equal(channel.products(rows), one.products(whole))
    own = channel.gather(torch.from_numpy(hosted + 10))
    assert own.tolist() == one.gather(torch.from_numpy(everyone + 10)).tolist()
