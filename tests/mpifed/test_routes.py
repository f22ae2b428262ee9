from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse

from mpifed.exchange.mixer import Mixer
from mpifed.exchange.routes import Route, traffic
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
    arrived, sums, mixed = [], [[] for _ in made], {}
    for route in made:
        arrived.append(np.concatenate([x[np.zeros(0, int)], *(other_rows(made, route, x))]))
        assert np.array_equal(arrived[-1], x[route.columns])
    for sender in made:
        for receiver, mixer in zip(made, sender.sum_mixers, strict=True):
            if mixer is not None:
                nodes = receiver.sums_from[made.index(sender)]
                assert np.array_equal(nodes, sender.sums_to[made.index(receiver)])
                places = np.searchsorted(receiver.mine, nodes)
                products = mixer.products(x[sender.mine], exponent)
                sums[made.index(receiver)].append((places, products))
    for route, rows, more in zip(made, arrived, sums, strict=True):
        result = np.empty((len(route.mine), x.shape[1]))
        route.mix(x[route.mine], rows, exponent, result, more)
        mixed.update(zip(route.mine, result, strict=True))
    return np.array([mixed[node] for node in sorted(mixed)])


def other_rows(made, route, x):
    rank = made.index(route)
    for sender in made:
        rows = x[sender.mine][sender.send[rank]]
        assert len(rows) == route.receive[made.index(sender)]
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


def test_a_hub_receives_sums_and_a_ring_rows():
    star = routes(nx.star_graph(99), 4)[0]
    # 25 rows of 4 bytes against one sum of 3 x 8 bytes, from each of three ranks.
    assert star.by_sums[0, 1:].all() and not star.by_sums[1:, 0].any()
    assert star.traffic.sum_numbers == 3 and star.traffic.row_numbers == 3
    ring = routes(nx.cycle_graph(100), 4)[0]
    assert not ring.by_sums.any() and ring.traffic.row_numbers == 8


def test_transports_are_chosen_by_counted_bytes():
    assert routes(nx.complete_graph(40), 4)[0].chosen[0] == "collective"
    assert routes(nx.cycle_graph(40), 4)[0].chosen[0] == "neighbourhood"
    assert routes(nx.cycle_graph(40), 4, repeats=False)[0].chosen[0] == "messages"
    assert routes(nx.cycle_graph(40), 1)[0].chosen[0] == "memory"


def test_rows_are_counted_once_per_pair_of_ranks():
    w = mixing_matrix(nx.complete_graph(6), "metropolis_hastings").to_sparse()
    counted = traffic(w, np.array([0, 0, 0, 1, 1, 2]), 3, 4)
    assert counted.distinct_rows.tolist() == [[0, 2, 1], [3, 0, 1], [3, 2, 0]]
    assert counted.distinct_sums.tolist() == [[0, 3, 3], [2, 0, 2], [1, 1, 0]]
    assert counted.gathered_rows == 12 == counted.row_numbers


def test_rows_of_many_ranks_are_counted_in_64_bits():
    n, ranks = 4000, 1000  # ranks squared times nodes is above 2^31
    w = mixing_matrix(nx.cycle_graph(n), "metropolis_hastings").to_sparse()
    counted = traffic(w, np.arange(n, dtype=np.int32) // (n // ranks), ranks, 4)
    assert counted.distinct_rows.sum() == counted.distinct_sums.sum() == 2 * ranks
    assert all(counted.distinct_rows[k, (k + 1) % ranks] == 1 for k in range(ranks))


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
