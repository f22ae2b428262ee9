from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse

from mpifed.exchange.mixer import Mixer
from mpifed.exchange.routes import Route, transfer
from mpifed.federation.clients import Federation, partitioned_owners, rows_sent, spectral_order
from mpifed.mpi.communicator import Alone
from topologies import mixing_matrix


class Rank(Alone):
    """One rank of several, for what needs no communication."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


def routes(graph, ranks, itemsize=4, owner=None, active=None, **more):
    n = len(graph)
    matrix = mixing_matrix(graph, "metropolis_hastings")
    owner = np.arange(n) * ranks // n if owner is None else owner
    active = np.ones(n, bool) if active is None else active
    federations = [
        Federation(Rank(r, ranks), owner, np.zeros(n, bool), np.ones(n, int)) for r in range(ranks)
    ]
    return [Route(f, matrix, active, itemsize, **more) for f in federations]


def play(made, x, exponent=3):
    """A round of all ranks in one process, along the routes."""
    arrived, mixed = [], {}
    for route in made:
        arrived.append(np.concatenate([x[np.zeros(0, int)], *(other_rows(made, route, x))]))
        assert np.array_equal(arrived[-1], x[route.columns])
    for route, rows in zip(made, arrived, strict=True):
        result = np.empty((len(route.mine), x.shape[1]))
        route.mix(x[route.mine], rows, exponent, result)
        mixed.update(zip(route.mine, result, strict=True))
    return np.array([mixed[node] for node in sorted(mixed)])


def other_rows(made, route, x):
    rank = made.index(route)
    for sender in made:
        rows = x[sender.mine]
        if not route.gathers:
            rows = rows[sender.transfer.send[rank]]
            assert len(rows) == route.transfer.receive[made.index(sender)]
        yield rows


@pytest.mark.parametrize("graph", [nx.star_graph(29), nx.cycle_graph(30), nx.complete_graph(30)])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_any_route_brings_the_same_numbers(graph, ranks):
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    w = mixing_matrix(graph, "metropolis_hastings").to_dense()
    scattered = np.random.default_rng(1).permutation(np.arange(30) * ranks // 30)
    whole = play(routes(graph, 1), x)
    assert np.allclose(whole, w @ x, atol=1e-9)
    for owner in (None, scattered):
        for transport in ("auto", "collective", "messages"):
            made = routes(graph, ranks, owner=owner, transport=transport)
            assert np.array_equal(play(made, x), whole)


def test_transports_are_chosen_by_counted_bytes():
    assert routes(nx.complete_graph(40), 4)[0].chosen[0] == "collective"
    assert routes(nx.cycle_graph(40), 4)[0].chosen[0] == "neighbourhood"
    assert routes(nx.cycle_graph(40), 4, repeats=False)[0].chosen[0] == "messages"
    assert routes(nx.cycle_graph(40), 1)[0].chosen[0] == "memory"


def test_rows_are_counted_once_per_pair_of_ranks():
    complete = routes(nx.complete_graph(6), 3, owner=np.array([0, 0, 0, 1, 1, 2]))[0]
    assert complete.transfer.between.tolist() == [[0, 2, 1], [3, 0, 1], [3, 2, 0]]
    assert complete.rows_moved == 12 and complete.bytes_a_number == (6 + 3) * 4
    star = routes(nx.star_graph(99), 4)[0]
    assert star.transfer.between[0].tolist() == [0, 25, 25, 25] and star.rows_moved == 78
    assert star.bytes_a_number == (75 + 3) * 4
    assert routes(nx.cycle_graph(100), 4)[0].rows_moved == 8


def test_rows_of_many_ranks_are_counted_in_64_bits():
    n, ranks = 4000, 1000  # ranks squared times nodes is above 2^31
    node = np.arange(n, dtype=np.int32)
    owner = node // (n // ranks)
    moved = transfer(owner[(node + 1) % n], node, owner, 7, ranks)
    assert moved.between.sum() == n
    assert all(moved.between[(k + 1) % ranks, k] == 1 for k in range(ranks))
    assert [len(rows) for rows in moved.send[6:10]] == [0, 3, 1, 0]
    assert moved.arriving.tolist() == [27, 28, 29, 30] and moved.receive[6:8] == [1, 3]


def test_those_who_do_not_take_part_are_nobodys_business():
    active = np.arange(10) % 3 != 0
    made = routes(nx.cycle_graph(10), 2, active=active)
    assert sorted(np.concatenate([route.mine for route in made])) == np.flatnonzero(active).tolist()


def test_partitioned_placement_cuts_fewer_edges():
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(8, 8))
    shuffled = nx.relabel_nodes(grid, dict(enumerate(np.random.default_rng(0).permutation(64))))
    links = nx.to_scipy_sparse_array(shuffled, nodelist=range(64), format="csr")
    owner = partitioned_owners(np.ones(64), np.zeros(64, bool), links, Rank(0, 4))
    assert np.bincount(owner).tolist() == [16] * 4
    contiguous = np.arange(64) // 16
    assert rows_sent(links, owner) < 0.6 * rows_sent(links, contiguous)


def test_placement_keeps_the_order_of_clients_where_that_is_better():
    links = nx.to_scipy_sparse_array(nx.path_graph(12), format="csr")
    owner = partitioned_owners(np.ones(12), np.zeros(12, bool), links, Rank(0, 3))
    assert owner.tolist() == sorted(owner.tolist())


@pytest.mark.parametrize("n", [1, 2, 7, 600])
def test_the_spectral_order_of_a_path_is_the_path(n):
    shuffle = np.random.default_rng(0).permutation(n)
    links = nx.to_scipy_sparse_array(nx.path_graph(n), format="csr")[shuffle][:, shuffle]
    order = shuffle[spectral_order(scipy.sparse.csr_array(links))]
    assert order.tolist() in (list(range(n)), list(range(n))[::-1])


def test_products_of_blocks_add_up_exactly():
    generator = np.random.default_rng(3)
    limbs = [generator.integers(-(2**20), 2**20, (5, 40)).astype(float) for _ in range(2)]
    x = generator.normal(size=(40, 3))
    whole = Mixer(limbs, 20).products(x, 3)
    parts = [Mixer([limb[:, c::3] for limb in limbs], 20).products(x[c::3], 3) for c in range(3)]
    assert np.array_equal(whole, sum(parts))
