""""""

from __future__ import annotations

import logging
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from on_ranks import SMALL, same_after_a_resume, unlike_one_rank

from mpifed.errors import Diverged, RunError
from mpifed.exchange import reduction as grouping
from mpifed.exchange.compression import build
from mpifed.exchange.mixer import mixer
from mpifed.exchange.reduction import sum_and_mass, weighted_sum
from mpifed.exchange.server import Server
from mpifed.federation.clients import Federation
from mpifed.mpi import node
from mpifed.mpi import sums as mpi_sums
from mpifed.mpi.communicator import Alone, world
from mpifed.mpi.over_mpi4py import Mpi

finite = st.floats(-(2.0**99), 2.0**99, allow_nan=False, width=32)
shapes = st.tuples(st.integers(1, 12), st.integers(1, 4))


class Ranks:
    """Several ranks played by one process: the rows of all, grouped, reduced group by group."""

    def __init__(self, groups, rows, weights):
        self.groups, self.rows, self.weights = groups, rows, weights

    def sum(self):
        """What ``weighted_sum`` gives on every rank, each rank's part computed by itself."""
        largest, results = [], []

        class Probe(Alone):
            def max(self, values):
                largest.append(values.copy())
                return np.max(largest, axis=0)

        class Replay(Alone):
            def max(self, values):
                return top

            def begin_total(self, values):
                results.append(values.copy())
                return lambda: values

        for group in self.groups:
            self._one(Probe(), group)
        top = np.max(largest, axis=0)
        for group in self.groups:
            self._one(Replay(), group)
        whole = np.sum(results, axis=0)

        class Total(Replay):
            def begin_total(self, values):
                return lambda: whole

        return self._one(Total(), self.groups[0])

    def _one(self, communicator, group):
        rows = torch.from_numpy(self.rows[group])
        return weighted_sum(communicator, rows, self.weights[group], group, len(self.rows))


@settings(max_examples=60)
@given(
    st.data(),
    shapes,
    st.sampled_from([np.float32, np.float64]),
    st.lists(st.integers(1, 11), max_size=4),
)
def test_a_sum_depends_neither_on_grouping_nor_on_order(data, shape, dtype, cuts):
    rows = data.draw(hnp.arrays(np.float32, shape, elements=finite)).astype(dtype)
    rows *= dtype(1 + 2**-20)  # uses the bits that float32 has not
    weights = np.linspace(0.1, 1.7, len(rows))
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    groups = [g for g in np.split(order, sorted({c for c in cuts if c < len(rows)})) if len(g)]
    everyone = np.arange(len(rows))
    whole = weighted_sum(Alone(), torch.from_numpy(rows), weights, everyone, len(rows))
    assert np.array_equal(whole, Ranks(groups, rows, weights).sum())


@settings(max_examples=60)
@given(st.data(), shapes, st.sampled_from([np.float32, np.float64]))
def test_a_sum_is_exact_to_far_beyond_the_precision_of_the_state(data, shape, dtype):
    rows = data.draw(hnp.arrays(np.float32, shape, elements=finite)).astype(dtype)
    weights = data.draw(hnp.arrays(np.float64, shape[0], elements=st.floats(0, 1)))
    got = weighted_sum(Alone(), torch.from_numpy(rows), weights, np.arange(shape[0]), shape[0])
    bits = 61 - shape[0].bit_length()
    largest = max(
        abs(Fraction(float(np.abs(r).max())) * Fraction(w))
        for r, w in zip(rows, weights, strict=True)
    )
    for column in range(shape[1]):
        terms = [
            Fraction(float(x)) * Fraction(float(w))
            for x, w in zip(rows[:, column], weights, strict=True)
        ]
        rounding = sum(abs(t) for t in terms) / 2**52 + len(terms) * largest / 2 ** (bits - 1)
        if dtype == np.float64:
            rounding = sum(abs(t) for t in terms) / 2**52 + len(terms) * largest / 2 ** (
                2 * bits - 2
            )
        assert abs(Fraction(float(got[column])) - sum(terms)) <= rounding + Fraction(1, 2**1000)


def test_ranks_with_more_rows_and_with_fewer_reduce_in_the_same_pieces(monkeypatch):
    monkeypatch.setattr(mpi_sums.FlatSums, "columns", 10)
    pieces = []

    class Counting(Alone):
        def begin_total(self, values):
            pieces.append(values.shape)
            return values.copy

    for count in (0, 1, 14):
        summed = weighted_sum(
            Counting(), torch.ones(count, 25), np.ones(count), np.arange(count), 15
        )
        assert np.array_equal(summed, np.full(25, count))
    assert pieces == 3 * [(1, 10), (1, 10), (1, 5)]


@pytest.mark.parametrize("under_way", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_travel_while_the_next_are_made(under_way, dtype, monkeypatch):
    monkeypatch.setattr(mpi_sums.FlatSums, "columns", 10)
    monkeypatch.setattr(mpi_sums.FlatSums, "under_way", under_way)
    events, begun = [], []

    class Slow(Alone):
        def begin_total(self, values):
            number = len(begun)
            begun.append(values.copy())
            values[:] = -1  # as undefined as what MPI leaves there
            events.append(f"begin {number}")

            def ended():
                events.append(f"end {number}")
                return begun[number]

            return ended

    rows, weights = torch.randn(3, 45, dtype=dtype), np.array([0.2, 0.3, 0.5])
    expected = weighted_sum(Alone(), rows, weights, np.arange(3), 3)
    assert np.array_equal(weighted_sum(Slow(), rows, weights, np.arange(3), 3), expected)
    order = [f"begin {k}" for k in range(min(5, under_way))]
    for k in range(5):
        order += [f"begin {k + under_way}"] * (k + under_way < 5) + [f"end {k}"]
    assert events == order


@pytest.mark.parametrize("exponent", [-1000, -300, 0, 300])
@pytest.mark.parametrize("weight", [2.0**-130, 0.3, 2.0**130])
def test_sums_of_any_magnitude_are_those_of_fractions(exponent, weight):
    generator = np.random.default_rng(5)
    rows = np.ldexp(generator.uniform(-1, 1, (3, 40)), exponent)
    weights = np.array([weight, 0.0, 0.7 * weight])
    found = weighted_sum(Alone(), torch.from_numpy(rows), weights, np.arange(3), 3)
    products = rows * weights[:, None]
    whole = [float(sum(map(Fraction, column))) for column in products.T.tolist()]
    largest = np.abs(products).max()
    assert np.abs(found - whole).max() <= max(2.0**-80 * largest, np.spacing(largest))


def test_zero_rows_and_zeros_sum_to_zero():
    zeros = torch.zeros(3, 2)
    assert np.array_equal(weighted_sum(Alone(), zeros, np.ones(3), np.arange(3), 3), [0, 0])
    none = torch.zeros(0, 2)
    assert np.array_equal(weighted_sum(Alone(), none, np.ones(0), np.arange(0), 3), [0, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(value):
    rows = torch.ones(4, 3)
    rows[2, 1] = value
    with pytest.raises(RunError, match="client 7 "):
        weighted_sum(Alone(), rows, np.ones(4), np.array([5, 6, 7, 8]), 4)


def random_matrix(generator, n, density):
    w = np.triu(generator.random((n, n)) * (generator.random((n, n)) < density), 1) / n
    w = w + w.T
    np.fill_diagonal(w, 1 - w.sum(1))
    return w


@pytest.mark.parametrize("density", [0.05, 0.9])
@pytest.mark.parametrize("limbs", [2, 3])
def test_mixing_is_the_matrix_product_and_independent_of_columns_and_rows(density, limbs):
    generator = np.random.default_rng(1)
    n = 37
    w = random_matrix(generator, n, density)
    x = generator.normal(size=(n, 11)) * 10.0 ** generator.integers(-6, 3, size=(n, 1))
    exponent = int(np.frexp(np.abs(x).max())[1])
    longest = int((w != 0).sum(1).max())
    whole = mixer(scipy.sparse.csr_array(w), np.arange(n), longest, limbs)(x, exponent)
    bound = np.abs(x).max() * 2.0 ** (-40 if limbs == 2 else -52)
    assert np.abs(whole - w @ x).max() < bound
    order = generator.permutation(n)
    for rows in ([3], [5, 9, 30], list(range(20))):
        place = np.argsort(order)
        part = scipy.sparse.csr_array(w[rows][:, order])
        mixed = mixer(part, place[rows], longest, limbs)(x[order], exponent)
        assert np.array_equal(mixed, whole[rows])


def test_mixing_keeps_constants_and_the_mean_exactly():
    generator = np.random.default_rng(2)
    n = 50
    w = scipy.sparse.csr_array(random_matrix(generator, n, 0.4))
    mix = mixer(w, np.arange(n), n, 2)
    assert np.array_equal(
        mix(np.full((n, 2), 0.3, np.float32), 0), np.full((n, 2), np.float32(0.3))
    )
    x = generator.integers(-(2**20), 2**20, size=(n, 3)) / 2.0**20
    assert np.array_equal(
        mix(x, 1).sum(0) * 2**30, np.rint(mix(x, 1).sum(0) * 2**30)
    ) or np.allclose(mix(x, 1).sum(0), x.sum(0), rtol=0, atol=1e-11)


class Counted(Alone):
    """A process that counts its collectives."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def max(self, values):
        self.calls += 1
        return super().max(values)

    def begin_total(self, values):
        self.calls += 1
        return super().begin_total(values)


@settings(max_examples=60)
@given(st.data(), shapes, st.sampled_from([np.float32, np.float64]))
def test_a_sum_and_its_mass_are_those_of_two_sums_in_half_the_collectives(data, shape, dtype):
    rows = torch.from_numpy(data.draw(hnp.arrays(np.float32, shape, elements=finite)).astype(dtype))
    weights = data.draw(hnp.arrays(np.float64, shape[0], elements=st.floats(0, 1e3)))
    ids, ones = np.arange(len(rows)), torch.ones(len(rows), 1, dtype=torch.float64)
    together, apart = Counted(), Counted()
    total, mass = sum_and_mass(together, rows, weights, ids, len(rows))
    assert np.array_equal(total, weighted_sum(apart, rows, weights, ids, len(rows)))
    assert mass == weighted_sum(apart, ones, weights, ids, len(rows))[0]
    assert (together.calls, apart.calls) == (2, 4)


@pytest.mark.parametrize("which", ["row", "weight"])
def test_a_sum_with_its_mass_refuses_what_is_not_finite_by_name(which):
    rows, weights = torch.ones(3, 2), np.ones(3)
    if which == "row":
        rows[1, 1] = np.nan
    else:
        weights[1] = np.inf
    with pytest.raises(Diverged, match="client 8"):
        sum_and_mass(Alone(), rows, weights, np.array([7, 8, 9]), 3)


# Sums node by node are those over all ranks at once, to the bit, whatever the nodes are.


N, WIDTH = 13, 50
PARTITIONS = {
    "one node": lambda ranks: np.zeros(ranks, np.int64),
    "a node each": np.arange,
    "two nodes": lambda ranks: np.arange(ranks) // -(-ranks // 2),
    "in turn": lambda ranks: np.arange(ranks) % 2 if ranks > 2 else np.zeros(ranks, np.int64),
    "one beside many": lambda ranks: np.minimum(np.arange(ranks), 1),
}
WAYS = {
    "float32": {},
    "float64": {"dtype": torch.float64},
    "the absent": {"active": np.arange(N) % 3 != 0, "average_over": "all"},
    "error feedback": {"compression": "top_k"},
}


@pytest.fixture(params=PARTITIONS)
def nodes(request, monkeypatch):
    """The node of each rank, which the communicator then tells."""
    found = PARTITIONS[request.param](world().size)
    monkeypatch.setattr(Mpi, "nodes", lambda self: found)
    monkeypatch.setattr(grouping, "LARGE", 1)
    return found


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
    return model


def server_on(communicator, reduction, compression=None, average_over="participants"):
    owner = np.arange(N) * communicator.size // N
    made = Federation(communicator, owner, np.zeros(N, bool), np.ones(N, np.int64))
    compressor = build(compression) if compression else None
    return Server(made, 0, {}, compressor, average_over=average_over, reduction=reduction)


@pytest.mark.mpi
@pytest.mark.parametrize("way", WAYS)
def test_an_average_is_that_of_one_rank(nodes, way):
    rounds = {key: WAYS[way][key] for key in ("dtype", "active") if key in WAYS[way]}
    made = {key: WAYS[way][key] for key in WAYS[way] if key not in rounds}
    alone = average(server_on(Alone(), "auto", **made), **rounds)
    many = server_on(world(), "hierarchical", **made)
    assert torch.equal(average(many, **rounds), alone)


@pytest.mark.mpi
def test_what_is_sent_is_booked_as_by_one_rank(nodes):
    many, alone = server_on(world(), "hierarchical"), server_on(Alone(), "auto")
    average(many)
    average(alone)
    assert vars(many.ledger) == vars(alone.ledger)


@pytest.mark.mpi
def test_integers_are_added_in_pieces_of_any_size(nodes):
    communicator = world()
    sums = communicator.node_sums(nodes)
    for columns in (1, 2, 7, 1000, 3):
        own = np.arange(2 * columns).reshape(2, columns) + 1000 * communicator.rank
        expected = communicator.sum(own)[:, sums.share(columns)]
        assert np.array_equal(sums.begin(own)(), expected)


@pytest.mark.mpi
def test_only_leaders_hand_sums_to_mpi(nodes):
    communicator = world()
    sums = communicator.node_sums(nodes)
    before = communicator.bytes_sent
    sums.begin(np.ones((1, 40), np.int64))()
    leads = np.flatnonzero(nodes == nodes[communicator.rank])[0] == communicator.rank
    several = len({*nodes}) > 1
    assert communicator.bytes_sent - before == (320 if leads and several else 0)


@pytest.mark.mpi
def test_ranks_of_a_node_share_the_average(nodes):
    communicator = world()
    model = average(server_on(communicator, "hierarchical"))
    first = np.flatnonzero(nodes == nodes[communicator.rank])[0]
    communicator.barrier()
    if communicator.rank == first:
        model.fill_(float(first))
    communicator.barrier()
    assert torch.equal(model, torch.full_like(model, float(first)))


@pytest.mark.mpi
def test_memory_is_used_again_once_no_rank_refers_to_it(nodes, monkeypatch):
    monkeypatch.setattr(node, "LONG_UNUSED", 8)
    communicator = world()
    sums = communicator.node_sums(nodes)
    kept = []
    for k in range(4):
        kept.append(sums.array((3,), np.float64))
        kept[-1][sums.share(3)] = k
        sums.filled()
    assert [list(one) for one in kept] == [[k] * 3 for k in range(4)]
    last = kept.pop()
    if communicator.rank != 0:
        del kept[:]
    communicator.barrier()
    other = sums.array((3,), np.float64)
    other[sums.share(3)] = 9
    sums.filled()
    assert list(last) == [3.0] * 3 and list(other) == [9.0] * 3
    if communicator.rank == 0:
        assert [list(one) for one in kept] == [[k] * 3 for k in range(3)]
        del kept[:]
    del last, other
    communicator.barrier()
    for size in range(1, 30):  # all sizes differ
        sums.array((size,), np.float32)
        communicator.barrier()
    assert len(sums._arrays) <= 12


@pytest.mark.mpi
def test_without_room_ranks_add_all_at_once_and_say_so(nodes, monkeypatch, caplog):
    monkeypatch.setattr(grouping, "room", lambda: 100)
    communicator = world()
    if communicator.size == 1:
        return
    with pytest.raises(RunError, match=r"needs .* bytes of shared memory, and a node has 100 in"):
        average(server_on(communicator, "hierarchical"))
    server = server_on(communicator, "auto")
    with caplog.at_level(logging.WARNING, "mpifed"):
        made = average(server)
    assert torch.equal(made, average(server_on(Alone(), "auto")))
    tried = server.grouping.goes_by_node(WIDTH)
    assert ("needs" in caplog.text) == (tried and communicator.rank == 0)


@pytest.mark.mpi
def test_on_one_node_ranks_without_room_add_all_at_once(monkeypatch, caplog):
    monkeypatch.setattr(grouping, "room", lambda: 100)
    monkeypatch.setattr(grouping, "LARGE", 1)
    monkeypatch.setattr(grouping, "LARGE_ON_ONE_NODE", WIDTH)
    server = server_on(world(), "auto")
    with caplog.at_level(logging.WARNING, "mpifed"):
        made = average(server)
    assert torch.equal(made, average(server_on(Alone(), "auto")))
    assert caplog.text == "" and not server.grouping.is_shared(WIDTH)
    assert server.grouping.goes_by_node(WIDTH) == (world().size > 1)


@pytest.mark.mpi
def test_auto_goes_by_node_where_a_node_has_several_ranks(nodes):
    grouped = server_on(world(), "auto").grouping
    several = np.bincount(nodes).max() > 1
    assert grouped.goes_by_node(WIDTH) == (several and len({*nodes}) > 1)
    assert grouped.goes_by_node(1 << 18) == several
    assert not server_on(world(), "flat").grouping.goes_by_node(1 << 18)


@pytest.mark.mpi
def test_ranks_of_one_node_add_wide_rows_in_shared_memory(monkeypatch):
    monkeypatch.setattr(grouping, "LARGE", 1)
    monkeypatch.setattr(grouping, "LARGE_ON_ONE_NODE", WIDTH)
    server = server_on(world(), "auto")
    assert torch.equal(average(server), average(server_on(Alone(), "auto")))
    assert server.grouping.is_shared(WIDTH) == (world().size > 1)
    assert not server.grouping.is_shared(WIDTH - 1)


@pytest.mark.mpi
def test_these_ranks_are_one_node():
    assert not world().nodes().any()


@pytest.mark.mpi
@pytest.mark.parametrize("algorithm", ["fedem", "scaffold"])
def test_a_run_is_that_of_one_rank(nodes, algorithm, tmp_path):
    chosen = {"exchange.reduction": "hierarchical", "algorithm": algorithm, "local.momentum": 0.0}
    assert unlike_one_rank({**SMALL, **chosen}, tmp_path) == []


@pytest.mark.mpi
def test_a_run_may_be_resumed(nodes, tmp_path):
    chosen = {"exchange.reduction": "hierarchical", "dtype": "float64", "participation": 0.6}
    assert same_after_a_resume({**SMALL, **chosen}, tmp_path)
