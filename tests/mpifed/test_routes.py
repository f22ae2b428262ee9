"""Rows that gossip sends between ranks: their routes, their counts, and placements of clients."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch

from mpifed.exchange import aggregation
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.routes import Route, transfer
from mpifed.exchange.server import Server
from mpifed.federation.federation import Federation
from mpifed.federation.placement import partitioned_owners, rows_sent, spectral_order
from mpifed.mpi.communicator import Alone, world
from topologies import mixing_matrix


class Rank(Alone):
    """One rank of several, for what needs no communication."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


def routes(graph, ranks, owner=None, active=None):
    n = len(graph)
    matrix = mixing_matrix(graph, "metropolis_hastings")
    owner = np.arange(n) * ranks // n if owner is None else owner
    active = np.ones(n, bool) if active is None else active
    federations = [
        Federation(Rank(r, ranks), owner, np.zeros(n, bool), np.ones(n, int)) for r in range(ranks)
    ]
    return [Route(f, matrix, active) for f in federations]


def play(made, x):
    """A round of all ranks in one process, along the routes."""
    mixed = {}
    for rank, route in enumerate(made):
        sent = [x[peer.mine][peer.transfer.send.get(rank, [])] for peer in made]
        receive = {peer: len(rows) for peer, rows in enumerate(sent) if len(rows)}
        assert receive == route.transfer.receive
        arrived = np.concatenate(sent)
        assert np.array_equal(arrived, x[route.transfer.arriving])
        result = torch.empty(len(route.mine), x.shape[1])
        route.product(torch.from_numpy(x[route.mine]), arrived, result)
        mixed.update(zip(route.mine, result.numpy(), strict=True))
    return np.array([mixed[node] for node in sorted(mixed)])


@pytest.mark.parametrize(
    "graph", [nx.lollipop_graph(10, 20), nx.cycle_graph(30), nx.complete_bipartite_graph(10, 20)]
)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_any_route_brings_the_same_numbers(graph, ranks):
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    w = mixing_matrix(graph, "metropolis_hastings").to_dense()
    scattered = np.random.default_rng(1).permutation(np.arange(30) * ranks // 30)
    whole = play(routes(graph, 1), x)
    assert np.allclose(whole, w @ x, atol=1e-5)
    for owner in (None, scattered):
        assert np.array_equal(play(routes(graph, ranks, owner=owner), x), whole)


def test_rows_are_counted_once_per_pair_of_ranks():
    complete = routes(nx.complete_graph(6), 3, owner=np.array([0, 0, 0, 1, 1, 2]))
    received = [route.transfer.receive for route in complete]
    assert received == [{1: 2, 2: 1}, {0: 3, 2: 1}, {0: 3, 1: 2}]
    assert complete[0].rows_moved == 12 and complete[2].transfer.moved.max() == 9
    star = routes(nx.star_graph(99), 4)[0]
    assert star.transfer.receive == {} and star.rows_moved == 3 + 6
    assert routes(nx.complete_graph(100), 4)[0].rows_moved == 6
    assert routes(nx.cycle_graph(100), 4)[0].rows_moved == 8


def test_rows_of_many_ranks_are_counted_in_64_bits():
    n, ranks = 4000, 1000  # ranks squared times nodes is above 2^31
    node = np.arange(n, dtype=np.int32)
    owner = node // (n // ranks)
    moved = transfer(owner[(node + 1) % n], node, owner, 7, ranks)
    assert moved.moved.sum() == 2 * n and moved.moved.max() == 8
    assert {peer: len(rows) for peer, rows in moved.send.items()} == {7: 3, 8: 1}
    assert moved.arriving.tolist() == [27, 28, 29, 30] and moved.receive == {6: 1, 7: 3}


def test_those_who_do_not_take_part_are_nobodys_business():
    active = np.arange(10) % 3 != 0
    made = routes(nx.cycle_graph(10), 2, active=active)
    assert sorted(np.concatenate([route.mine for route in made])) == np.flatnonzero(active).tolist()


def test_partitioned_placement_cuts_fewer_edges():
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(8, 8))
    shuffled = nx.relabel_nodes(grid, dict(enumerate(np.random.default_rng(0).permutation(64))))
    links = nx.to_scipy_sparse_array(shuffled, nodelist=range(64), format="csr")
    owner = partitioned_owners(np.ones(64), np.zeros(64, bool), links, 4, Rank(0, 4))
    assert np.bincount(owner).tolist() == [16] * 4
    contiguous = np.arange(64) // 16
    assert rows_sent(links, owner) < 0.6 * rows_sent(links, contiguous)


def test_placement_keeps_the_order_of_clients_where_that_is_better():
    links = nx.to_scipy_sparse_array(nx.path_graph(12), format="csr")
    owner = partitioned_owners(np.ones(12), np.zeros(12, bool), links, 3, Rank(0, 3))
    assert owner.tolist() == sorted(owner.tolist())


@pytest.mark.parametrize("n", [1, 2, 7, 600])
def test_the_spectral_order_of_a_path_is_the_path(n):
    shuffle = np.random.default_rng(0).permutation(n)
    links = nx.to_scipy_sparse_array(nx.path_graph(n), format="csr")[shuffle][:, shuffle]
    order = shuffle[spectral_order(scipy.sparse.csr_array(links))]
    assert order.tolist() in (list(range(n)), list(range(n))[::-1])


# Rows between ranks.


OWN = 3


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
@pytest.mark.parametrize("width", [7, 1 << 14])
def test_every_rank_gets_the_rows_meant_for_it(width, columns, dtype):
    communicator = world()
    me, ranks = communicator.rank, range(communicator.size)
    part = slice(width // 8, None) if columns == "some" else slice(None)
    rows = numbers(me, width, dtype)[:, part]
    send = {peer: wanted(me, peer) for peer in ranks}
    receive = {peer: len(wanted(peer, me)) for peer in ranks}
    sent = communicator.bytes_sent
    arrived = communicator.exchange_rows(rows, send, receive)
    given = [numbers(peer, width, dtype)[wanted(peer, me)][:, part] for peer in ranks]
    np.testing.assert_array_equal(arrived, np.concatenate(given))
    leaving = sum(len(send[peer]) for peer in ranks if peer != me)
    assert communicator.bytes_sent - sent == leaving * rows.shape[1] * rows.itemsize


# Numbers and products of clients' messages, as a server has them on any number of ranks.


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


def test_links_count_the_matrices_that_join_two_clients():
    alone, named = Alone(), {"topology": None, "weights": None}
    options = {**named, "schedule": {"name": "one_peer_exponential"}}
    # Of 4 clients each sends to the next, then to the one opposite; both directions count.
    links = Gossip.links(4, 0, options, Gossip.prepare(alone, 4, 0, options)).toarray()
    assert links[0, 1] == links[0, 3] == 1 and links[0, 2] == 2
    options = {"topology": "path", "weights": "metropolis_hastings", "schedule": "static"}
    links = Gossip.links(4, 0, options, Gossip.prepare(alone, 4, 0, options)).toarray()
    joined = np.abs(np.subtract.outer(range(4), range(4))) == 1
    assert (links[~np.eye(4, dtype=bool)] == 2 * joined[~np.eye(4, dtype=bool)]).all()
