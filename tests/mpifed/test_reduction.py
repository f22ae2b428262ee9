"""Sums over clients along one tree, and rows mixed in one order: the same bits on any ranks."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import SMALL, same_after_a_resume, unlike_one_rank

from mpifed.errors import Diverged, PeerDiverged, RunError
from mpifed.exchange import mixing_product as mixing
from mpifed.exchange import routes as routing
from mpifed.exchange.compression import build
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.mixing_product import MixingProduct, products_agree
from mpifed.exchange.server import Server
from mpifed.federation import reduction
from mpifed.federation import tree as trees
from mpifed.federation.federation import Federation
from mpifed.federation.placement import contiguous_owners
from mpifed.federation.reduction import SparseRows, sum_and_mass, weighted_sum
from mpifed.federation.tree import APART, Tree, codes_of, merges
from mpifed.mpi.communicator import Alone, world
from mpifed.mpi.reused import Reused
from mpifed.testing import played, run_rounds
from mpifed.testing.ranks import Played
from topologies import mixing_matrix

DTYPES = st.sampled_from([torch.float32, torch.float64])


@st.composite
def layouts(draw, most=24):
    """Work of some clients, their ranks in blocks or anyhow, who takes part, and ranks' hosts."""
    n, ranks = draw(st.integers(1, most)), draw(st.integers(1, 5))
    work = np.array(draw(st.lists(st.integers(0, 40), min_size=n, max_size=n)))
    owner = np.array(draw(st.lists(st.integers(0, ranks - 1), min_size=n, max_size=n)))
    active = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    owner = np.sort(owner) if draw(st.booleans()) else owner
    hosts = draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))
    return work, owner, active, np.unique(hosts, return_inverse=True)[1]


def federation(communicator, owner, work):
    return Federation(communicator, owner, np.zeros(len(owner), bool), work)


def alone(work):
    return federation(Alone(), np.zeros(len(work), int), work)


def bits(values):
    return np.ascontiguousarray(values).tobytes()


@settings(max_examples=60, deadline=None)
@given(
    layouts(),
    DTYPES,
    st.integers(1, 70),
    st.integers(0, 99),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_a_sum_has_the_same_bits_on_any_ranks(layout, dtype, width, seed, few, sparse, data):
    work, owner, active, node = layout
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=len(work))
    scale = 10.0 ** generator.integers(-6, 6, size=(len(work), 1))
    rows = torch.from_numpy(generator.normal(size=(len(work), width)) * scale).to(dtype)
    k = int(generator.integers(1, width + 1))
    columns = np.stack([generator.permutation(width)[:k] for _ in work])

    def those(ids):
        if not sparse:
            return rows[ids]
        values = rows[ids].gather(1, torch.from_numpy(columns[ids]))
        return SparseRows(columns[ids], values, width)

    def action(communicator, where):
        mine = np.flatnonzero(active & (where.owner == communicator.rank))
        ids = mine[np.random.default_rng(seed).permutation(len(mine))]
        return sum_and_mass(where, those(ids), weights[ids], ids)

    with pytest.MonkeyPatch.context() as patch:
        whole = action(Alone(), alone(work))
        patch.setattr(reduction, "FEW", 1 << 16 if few else -1)
        patch.setattr(reduction, "SHARE", 1 << 9 if few else 0)
        patch.setattr(Played, "room", data.draw(st.sampled_from([0, 200, 1 << 20])))
        patch.setattr(trees, "GROUP", data.draw(st.sampled_from([2, 3, 16])))
        patch.setattr(reduction, "COLUMNS", data.draw(st.sampled_from([5, 16, 1 << 20])))
        patch.setattr(reduction, "CACHED", data.draw(st.sampled_from([1, 40, 1 << 17])))
        patch.setattr(reduction, "WIDE", data.draw(st.sampled_from([1, 1 << 10])))
        every = played(lambda c: action(c, federation(c, owner, work)), len(node), node)
    for total, mass in every:
        assert total.dtype == dtype and bits(total) == bits(whole[0]) and mass == whole[1]
    everyone = np.arange(len(work))
    heights = Tree(codes_of(work), owner).heights(everyone[:-1], everyone[1:])
    for column in range(min(width, 3)):
        chosen = [t for t in np.flatnonzero(active) if not sparse or column in columns[t]]
        terms = [Fraction(float(rows[t, column])) * Fraction(weights[t]) for t in chosen]
        levels = 2 + len(merges(heights))
        bound = levels * Fraction(torch.finfo(dtype).eps) * sum(map(abs, terms), Fraction(0))
        assert abs(Fraction(float(whole[0][column])) - sum(terms)) <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_of_many_equal_clients_is_exact_to_log_n_roundings(dtype):
    n = 100_000
    work, generator = np.ones(n, int), np.random.default_rng(0)
    rows, weights = torch.from_numpy(generator.normal(size=(n, 2))).to(dtype), generator.random(n)
    found, mass = sum_and_mass(alone(work), rows, weights, np.arange(n))
    products = rows.double().numpy() * weights[:, None]
    roundings = 2 + np.ceil(np.log2(n))
    bound = roundings * torch.finfo(dtype).eps / 2 * np.abs(products).sum(0)
    assert (np.abs(found.double().numpy() - products.sum(0)) <= bound).all()
    assert mass == pytest.approx(weights.sum(), rel=1e-14)


@pytest.mark.parametrize("node", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 3]])
def test_what_hosts_have_leaves_each_once(node):
    """A sum costs 2 (h - 1) of its size between h hosts, gossip each row for each other host."""
    hosts, numbers = np.array(node), 1 << 15
    options = {"topology": "complete", "weights": "metropolis_hastings", "schedule": "static"}
    owner = np.argsort(hosts, kind="stable")  # hosts have neighbours

    def action(communicator):
        where = federation(communicator, owner, np.ones(4, int))
        rows, weights = torch.ones(1, numbers), np.ones(1)
        weighted_sum(where, rows, weights, where.hosted)
        summed = communicator.crossed
        made = Gossip(where, 0, Gossip.prepare(communicator, 4, 0, options), **options)
        made.at(1, np.ones(4, bool)).average(rows, torch.ones(1).double(), rows)
        return summed, communicator.crossed - summed

    summed, gossiped = np.sum(played(action, 4, hosts), axis=0)
    others = hosts.max()
    in_blocks = (np.diff(hosts) >= 0).all()  # else each rank's sum leaves
    assert summed == (2 * others if in_blocks else 4) * 4 * numbers
    assert gossiped == 4 * others * 4 * numbers


def test_whoever_is_absent_is_no_term_not_even_a_zero():
    work, minus = np.ones(4, int), torch.tensor([[-0.0], [-0.0]])
    subtrees = alone(work).tree.subtrees(np.array([0, 2]), 0)
    part = reduction._subtrees(alone(work), minus, np.ones(2), subtrees)
    assert np.signbit(part).all()
    none = weighted_sum(alone(work), torch.zeros(0, 2), np.ones(0), np.arange(0))
    assert none.tolist() == [0, 0] and not torch.signbit(none).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["row", "weight", "few"])
def test_what_is_not_finite_is_refused_by_name(where, value):
    rows, weights = torch.ones(4, 3), np.ones(4)
    if where == "weight":
        weights[2] = value
    else:
        rows[2, 1] = value
    if where == "few":
        rows = SparseRows(np.tile(np.arange(3), (4, 1)), rows, 5)
    with pytest.raises(RunError, match="client 7 "):
        weighted_sum(alone(np.ones(9, int)), rows, weights, np.array([5, 6, 7, 8]))


def test_a_client_of_another_rank_is_refused_on_all():
    said = []

    def action(communicator):
        where = federation(communicator, np.array([0, 0, 1]), np.ones(3, int))
        rows = torch.tensor([[1.0], [1.0], [np.nan]])[where.hosted]
        try:
            weighted_sum(where, rows, np.ones(len(rows)), where.hosted)
        except (Diverged, PeerDiverged) as error:
            said.append((communicator.rank, type(error) is Diverged))

    played(action, 2)
    assert sorted(said) == [(0, False), (1, True)]


# The tree.


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200))
def test_a_tree_is_cut_within_the_middle_half_of_its_nodes(work):
    n = len(work)
    tree = Tree(codes_of(np.array(work)), np.zeros(n, int))
    assert tree.roots.tolist() == [0]
    heights = tree.heights(np.arange(n - 1), np.arange(1, n))
    assert len(set(heights.tolist())) <= np.log(max(n, 2)) / np.log(4 / 3) + 1
    levels = merges(heights)
    assert sum(len(left) for left, _ in levels) == n - 1
    covered = [{t} for t in range(n)]
    for left, right in levels:
        for to, of in zip(left, right, strict=True):
            assert max(covered[to]) + 1 == min(covered[of])
            covered[to] |= covered[of]
    assert covered[0] == set(range(n))


def test_a_tree_of_equal_work_is_halved_by_number():
    tree = Tree(codes_of(np.ones(8, int)), np.zeros(8, int))
    assert tree.heights(np.arange(7), np.arange(1, 8)).tolist() == [62, 63, 62, 64, 62, 63, 62]
    assert Tree(codes_of(np.ones(8, int)), np.arange(8) // 4).roots.tolist() == [0, 4]
    assert Tree(codes_of(np.ones(8, int)), np.arange(8) // 3).roots.tolist() == [0, 2, 3, 4, 6]
    assert len(Tree(codes_of(np.ones(8, int)), np.arange(8) % 2).roots) == 8


def test_what_is_apart_is_not_merged():
    levels = merges(np.array([1, APART, 2, 1]))
    assert [(a.tolist(), b.tolist()) for a, b in levels] == [([0, 3], [1, 4]), ([2], [3])]


@pytest.mark.parametrize("skewed", [False, True])
def test_ranks_move_little_more_than_in_an_allreduce(skewed):
    """Sums of subtrees go to those who add a share of the columns, whose totals go to all."""
    generator, ratios = np.random.default_rng(0), []
    for ranks in (2, 3, 4, 7, 8):
        for _ in range(20):
            work = generator.integers(20, 400, 300) if skewed else np.full(300, 50)
            tree = Tree(codes_of(work), contiguous_owners(work.astype(float), ranks, work))
            ratios.append((len(tree.roots) + ranks) / (2 * ranks))
    assert np.mean(ratios) <= 1.5


# Rows that are mixed.


def random_matrix(generator, n, density):
    w = np.triu(generator.random((n, n)) * (generator.random((n, n)) < density), 1) / n
    w = w + w.T
    np.fill_diagonal(w, 1 - w.sum(1))
    return w


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.floats(0, 1), st.integers(0, 99), DTYPES)
def test_rounded_rows_of_w_sum_to_one_exactly(n, density, seed, dtype):
    w = random_matrix(np.random.default_rng(seed), n, density)
    made = MixingProduct(scipy.sparse.csr_array(w), np.arange(n), np.arange(n), False)
    numpy_type = torch.empty(0, dtype=dtype).numpy().dtype
    weights = made.weights(numpy_type)
    assert weights.dtype == numpy_type
    eps = np.finfo(numpy_type).eps
    for t in range(n):
        row = weights[made._starts[t] : made._starts[t + 1]]
        assert sum(map(Fraction, row.tolist())) == 1
        columns = made._column[made._starts[t] : made._starts[t + 1]]
        error, largest = np.abs(row - w[t, columns]), np.abs(w[t]).max()
        assert error.max() <= n * eps
        # Half a unit of the last place of the row's largest weight; 1 minus the others may be less.
        assert error[columns != t].max(initial=0) <= max(eps / 2 * largest, 2.0**-54)


@settings(max_examples=60, deadline=None)
@given(layouts(most=20), DTYPES, st.sampled_from([1, 7, 5000]), st.integers(0, 99), st.booleans())
def test_gossip_has_the_same_bits_on_any_ranks(layout, dtype, width, seed, dense):
    work, owner, active, node = layout
    n, generator = len(work), np.random.default_rng(seed)
    if n < 2:
        return
    erdos_renyi = {"name": "erdos_renyi", "p": 0.5, "on_disconnected": "keep"}
    options = {"topology": [erdos_renyi, {"name": "star"}, {"name": "complete"}][seed % 3]}
    options |= {"weights": "metropolis_hastings", "schedule": "static"}
    rows = torch.from_numpy(generator.normal(size=(n, width))).to(dtype)

    def action(communicator, where):
        made = Gossip(where, seed, Gossip.prepare(Alone(), n, seed, options), **options)
        ids = where.hosted[active[where.hosted]]
        mixed = made.at(1, active).average(rows[ids], torch.ones(len(ids)).double(), rows[ids])
        return ids, mixed, made.schedule.matrix(1).restricted_to(active).to_dense()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "MANY", 1)
        patch.setattr(mixing, "DENSE", 0.0 if dense else 2.0)
        patch.setattr(routing, "SUMMED", 1 + seed % 2 * 15)
        patch.setattr(routing, "BUFFER", 1 << 15)
        patch.setattr(mixing, "INNER", 8)
        ids, whole, w = action(Alone(), alone(work))
        every = played(lambda c: action(c, federation(c, owner, work)), len(node), node)
    assert sorted(np.concatenate([each[0] for each in every])) == ids.tolist()
    for some, mixed, _ in every:
        assert bits(mixed) == bits(whole[np.searchsorted(ids, some)])
    expected = w[np.ix_(ids, ids)] @ rows[ids].double().numpy()
    tolerance = 2 * n * torch.finfo(dtype).eps * float(rows.abs().max())
    assert np.allclose(whole, expected, rtol=0, atol=tolerance)


def test_products_that_depend_on_other_rows_are_not_taken(monkeypatch):
    w = mixing_matrix(nx.complete_graph(9), "metropolis_hastings").to_sparse()
    made = MixingProduct(w, np.arange(9), np.arange(9), True)
    x, found = torch.randn(9, 30), torch.empty(9, 30)
    monkeypatch.setattr(mixing, "products_agree", lambda dtype: False)
    monkeypatch.setattr(mixing, "blocked_product", None)
    made(x, np.empty((0, 30), np.float32), found)
    assert torch.allclose(found, x.mean(0).expand(9, -1), atol=1e-6)


@pytest.mark.parametrize("place", [0, 41, 79])
def test_products_that_depend_on_the_place_of_a_row_are_found(place, monkeypatch):
    def wrong(w, x, product):
        torch.mm(w, x, out=product)
        product[place : place + 1] *= 1.5

    monkeypatch.setattr(mixing, "blocked_product", wrong)
    assert not products_agree.__wrapped__(torch.float64)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixing_keeps_constants_and_the_mean_to_rounding(dtype, dense):
    n, eps = 50, torch.finfo(dtype).eps
    w = random_matrix(np.random.default_rng(2), n, 0.8)
    made = MixingProduct(scipy.sparse.csr_array(w), np.arange(n), np.arange(n), dense)

    def mixed(x):
        found = torch.empty_like(x)
        made(x, np.empty((0, 3), x.numpy().dtype), found)
        return found

    # Multiples of the type's spacing below one add up without rounding, whatever the order.
    exact = w.max(1) >= 0.5 if dtype == torch.float32 else np.full(n, True)
    assert exact.any() and (mixed(torch.ones(n, 3, dtype=dtype))[exact] == 1).all()
    # Else each neighbour's product and addition is rounded once.
    same = torch.full((n, 3), 0.3, dtype=dtype)
    error = ((mixed(same) - same).abs() / same).amax(1).numpy()
    assert (error <= np.count_nonzero(w, 1) * eps / 2 * 1.001).all()
    x = torch.randn(n, 3, dtype=dtype)
    assert torch.allclose(mixed(x).double().mean(0), x.double().mean(0), rtol=0, atol=2 * eps)


def test_memory_is_used_again_once_nothing_refers_to_it():
    reused, shape = Reused(2), (3, 4)
    first = reused.empty(shape, np.float32)
    place, held = first.ctypes.data, torch.from_numpy(first[1:].reshape(-1)).view(2, 4)
    del first
    second = reused.empty(shape, np.float32)
    assert second.ctypes.data != place  # a tensor of a part refers to it
    del held
    assert reused.empty(shape, np.float32).ctypes.data == place
    assert reused.empty(shape, np.float64).dtype == np.float64


# Averages of a server, compressed or not.


N, WIDTH = 13, 50
WAYS = {
    "float32": {},
    "float64": {"dtype": torch.float64},
    "the absent": {"active": np.arange(N) % 3 != 0, "average_over": "all"},
    "error feedback": {"compression": "top_k"},
    "few coordinates": {"compression": {"name": "rand_k", "k": 3}},
    "levels": {"compression": "quantise"},
}


def average(server, dtype=torch.float32, active=None, rounds=2):
    """What clients' averages are after some rounds."""
    active = np.ones(N, bool) if active is None else active
    hosted = server.federation.hosted[active[server.federation.hosted]]
    every = torch.randn(N, 2, WIDTH // 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights = torch.linspace(0.01, 0.1, N, dtype=torch.float64)[hosted]
    model, memory = torch.zeros(2, WIDTH // 2, dtype=dtype), None
    if server.compressor is not None:
        memory = server.remember([model], len(hosted), dtype)
    for k in range(1, 1 + rounds):
        channel = server.at(k, active, memory)
        model = channel.average(every[hosted] / k, weights, before=model)
        memory = channel.memory
    return model, vars(server.ledger)


def server_on(communicator, owner=None, compression=None, average_over="participants"):
    owner = np.arange(N) * communicator.size // N if owner is None else owner
    made = federation(communicator, owner, np.ones(N, np.int64))
    compressor = build(compression) if compression else None
    return Server(made, 0, {}, compressor, average_over=average_over)


def of_way(way):
    rounds = {key: WAYS[way][key] for key in ("dtype", "active") if key in WAYS[way]}
    return rounds, {key: WAYS[way][key] for key in WAYS[way] if key not in rounds}


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_an_average_and_its_bits_are_those_of_one_rank(way, few, monkeypatch):
    rounds, made = of_way(way)
    expected, booked = average(server_on(Alone(), **made), **rounds)
    monkeypatch.setattr(reduction, "FEW", 1 << 16 if few else 0)
    monkeypatch.setattr(reduction, "SHARE", 1 << 9 if few else 0)
    for ranks in (2, 3, 6):
        for owner in (None, np.arange(N) % ranks):
            many = played(
                lambda c, owner=owner: average(server_on(c, owner, **made), **rounds), ranks
            )
            for found, ledger in many:
                assert torch.equal(found, expected) and ledger == booked


@pytest.mark.mpi
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_an_average_is_that_of_one_rank(way, few, monkeypatch):
    rounds, made = of_way(way)
    expected, _ = average(server_on(Alone(), **made), **rounds)
    monkeypatch.setattr(reduction, "FEW", 1 << 16 if few else 0)
    monkeypatch.setattr(reduction, "SHARE", 1 << 9 if few else 0)
    assert torch.equal(average(server_on(world(), **made), **rounds)[0], expected)


@pytest.mark.mpi
@pytest.mark.parametrize("algorithm", ["fedem", "scaffold"])
def test_a_run_is_that_of_one_rank(algorithm, tmp_path, monkeypatch):
    monkeypatch.setattr(reduction, "FEW", 0)
    chosen = {"placement": "balanced", "algorithm": algorithm, "local.momentum": 0.0}
    assert unlike_one_rank({**SMALL, **chosen}, tmp_path) == []


@pytest.mark.mpi
def test_a_run_may_be_resumed(tmp_path):
    chosen = {"placement": "balanced", "dtype": "float64", "participation": 0.6}
    assert same_after_a_resume({**SMALL, **chosen}, tmp_path)


# What ranks send each other.


def messages_of(ranks, action):
    """The most messages that one of so many ranks sends in ``action(federation)``."""

    def counting(communicator):
        sent, exchange_rows = [], communicator.exchange_rows

        def counted(rows, send, receive):
            sent.extend(peer for peer in send if peer != communicator.rank and len(send[peer]))
            return exchange_rows(rows, send, receive)

        communicator.exchange_rows = counted
        action(federation(communicator, np.arange(ranks), np.ones(ranks, int)))
        return len(sent)

    return max(played(counting, ranks))


@pytest.mark.parametrize("numbers", [10, 1 << 14])
def test_messages_of_a_sum_grow_as_the_log_of_ranks(numbers, monkeypatch):
    monkeypatch.setattr(trees, "GROUP", 4)
    rows, weights = torch.ones(1, numbers), np.ones(1)
    for ranks, levels in ((4, 1), (13, 2), (40, 3)):
        sent = messages_of(ranks, lambda where: weighted_sum(where, rows, weights, where.hosted))
        assert sent <= 2 * levels * (trees.GROUP + 1)


def test_a_rank_of_a_ring_sends_to_two_others():
    options = {"topology": "ring", "weights": "metropolis_hastings", "schedule": "static"}

    def action(where):
        made = Gossip(where, 0, Gossip.prepare(Alone(), len(where.owner), 0, options), **options)
        made.at(1, ~where.unseen).average(torch.ones(1, 3), torch.ones(1), torch.ones(1, 3))

    assert [messages_of(ranks, action) for ranks in (4, 40)] == [2, 2]


def test_numbers_of_clients_add_up_as_rows_of_one_number_do():
    clients = run_rounds("fedavg", rounds=0).clients
    numbers = torch.randn(len(clients), generator=torch.Generator().manual_seed(3))
    for weights in (None, clients.equal_weights):
        summed = clients.total(numbers, weights)
        assert summed.shape == ()
        assert summed == clients.total(numbers[:, None], weights)[0]
