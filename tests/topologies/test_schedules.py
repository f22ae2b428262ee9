import itertools
import math
from dataclasses import dataclass

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from topologies import (
    SCHEDULES,
    BurstyEdges,
    DropEdges,
    DropNodes,
    LocalRounds,
    MixingMatrix,
    Periodic,
    Static,
    TopologyError,
    build_graph,
    build_schedule,
    check_schedule,
    consensus_rate,
    metropolis_hastings,
    mixing_matrix,
    prepare_schedule,
    restore_schedule,
)

NAMED = [
    name
    for name, entry in SCHEDULES.items()
    if not any(parameter.required for parameter in entry.parameters.values())
]


def graph_of(n, seed=1):
    return build_graph("erdos_renyi", n, seed, p=0.6)


def prime_factors(n):
    factors, divisor = [], 2
    while n > 1:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return factors


def product_of(schedule):
    product = np.eye(schedule.n)
    for k in range(1, schedule.period + 1):
        product = schedule.matrix(k).to_dense() @ product
    return product


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(NAMED), st.integers(1, 33), st.integers(0, 9), st.data())
def test_every_schedule_is_what_it_says(name, n, seed, data):
    assume(n > 1 or name != "teleport")  # whose two models need two nodes
    drop_nodes = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    drop_edges = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    every = data.draw(st.sampled_from([1, 3]))
    schedule = build_schedule(
        name,
        n,
        graph=graph_of(n, seed),
        weights="metropolis_hastings",
        seed=seed,
        drop_nodes=drop_nodes,
        drop_edges=drop_edges,
        local_rounds=every,
    )
    assert schedule.n == n
    rounds = data.draw(st.lists(st.integers(1, 40), min_size=3, max_size=6))
    for k in rounds:
        matrix = schedule.matrix(k)
        assert matrix.n == n
        assert not schedule.symmetric or matrix.symmetric
        assert not schedule.doubly_stochastic or matrix.doubly_stochastic
        assert np.abs(matrix.to_dense().sum(axis=1) - 1).max() < 1e-12
        assert matrix.weights.min(initial=0) >= 0
        if k % every or drop_nodes == 1 or drop_edges == 1:
            assert len(matrix.edges) == 0
        if schedule.period is not None:
            assert schedule.matrix(k + schedule.period) == matrix
    if drop_nodes or drop_edges:
        assert schedule.period is None


@pytest.mark.parametrize("name", NAMED)
def test_rounds_may_be_asked_in_any_order_by_any_process(name):
    losses = {"drop_nodes": 0.2, "drop_edges": 0.1}
    options = {"graph": graph_of(12), "weights": "metropolis_hastings", **losses}
    schedule = build_schedule(name, 12, seed=5, **options)
    forwards = [schedule.matrix(k).sha256 for k in range(1, 20)]
    again = build_schedule(name, 12, seed=5, **options)
    assert [again.matrix(k).sha256 for k in range(19, 0, -1)] == forwards[::-1]
    arrays = prepare_schedule(name, **options)
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    restored = restore_schedule(name, 12, arrays, seed=5, **losses)
    assert [restored.matrix(k).sha256 for k in range(1, 20)] == forwards


# d_equistatic and u_equistatic draw once, for all rounds.
DRAWN = {"equitopo", "od_equidyn", "ou_equidyn", "epidemic", "teleport", "random_walk"}
DRAWN |= {"random_matching", "matcha", "resampled"}


@pytest.mark.parametrize("name", sorted({*NAMED} & DRAWN))
def test_seeds_and_rounds_give_other_draws(name):
    options = {"graph": graph_of(12), "weights": "metropolis_hastings"}
    first = build_schedule(name, 12, seed=0, **options)
    second = build_schedule(name, 12, seed=1, **options)
    hashes = [[s.matrix(k).sha256 for k in range(1, 9)] for s in (first, second)]
    assert hashes[0] != hashes[1]
    assert min(len(set(row)) for row in hashes) > 2


def test_bursts_have_the_law_of_their_chain():
    """Stationary from round 1, with runs of failures of mean 1 / recovery, each edge by itself."""
    complete = Static(metropolis_hastings(nx.complete_graph(40)))
    bursty, every = BurstyEdges(complete, 0.1, 0.25, 3), {*map(tuple, complete.matrix(1).edges)}
    there = np.array(
        [
            [edge in kept for edge in sorted(every)]
            for kept in ({*map(tuple, bursty.matrix(k).edges)} for k in range(1, 41))
        ]
    )
    assert there[0].mean() == pytest.approx(0.25 / 0.35, abs=0.06)
    assert there.mean() == pytest.approx(0.25 / 0.35, abs=0.03)
    was, now = there[:-1], there[1:]
    assert 1 - now[was].mean() == pytest.approx(0.1, abs=0.01)
    assert now[~was].mean() == pytest.approx(0.25, abs=0.02)
    assert bursty.matrix(7).doubly_stochastic


@pytest.mark.parametrize("regular", [True, False])
def test_epidemic_nodes_send_to_distinct_others_whom_they_draw_anew(regular):
    n, sends = 9, 4
    schedule = build_schedule("epidemic", n, sends=sends, regular=regular)
    reached = np.zeros((n, n))
    for k in range(1, 401):
        w = schedule.matrix(k).to_dense()
        out, into = ((w > 0).sum(axis) - 1 for axis in (0, 1))
        assert (out == sends).all() and (not regular or (into == sends).all())
        np.testing.assert_allclose(w[w > 0], np.repeat(1 / (1 + into), into + 1), rtol=1e-12)
        assert schedule.matrix(k).doubly_stochastic == regular or not regular
        reached += w > 0
    others = reached[~np.eye(n, dtype=bool)] / 400
    assert others == pytest.approx(np.full(n * (n - 1), sends / (n - 1)), abs=0.12)


def test_the_consensus_rate_of_regular_epidemics_is_that_of_their_mean_square():
    schedule = build_schedule("epidemic", 8, sends=3, regular=True)
    square = np.mean([(w := schedule.matrix(k).to_dense()).T @ w for k in range(1, 3001)], axis=0)
    np.testing.assert_allclose(schedule.mean_square(), square, atol=0.01)
    own = 1 / 4
    assert consensus_rate(schedule).p == pytest.approx(1 - (own - (1 - own) / 7), abs=1e-12)


def test_the_two_drop_outs_draw_apart():
    path = Static(metropolis_hastings(nx.path_graph(40)))
    nodes, edges = DropNodes(path, 0.5, 0).matrix(1), DropEdges(path, 0.5, 0).matrix(1)
    kept = {tuple(edge) for edge in edges.edges.tolist()}
    assert kept != {tuple(edge) for edge in nodes.edges.tolist()}


def test_drop_outs_have_the_probability_they_say():
    complete = Static(metropolis_hastings(nx.complete_graph(30)))
    edges = [len(DropEdges(complete, 0.3, 0).matrix(k).edges) for k in range(1, 101)]
    assert np.mean(edges) == pytest.approx(0.7 * 435, rel=0.02)
    nodes = [len(DropNodes(complete, 0.3, 0).matrix(k).edges) for k in range(1, 101)]
    assert np.mean(nodes) == pytest.approx(0.49 * 435, rel=0.1)


def test_local_rounds_thin_a_schedule():
    inner = build_schedule("one_peer_exponential", 8)
    thinned = LocalRounds(inner, 3)
    assert (thinned.period, thinned.tau) == (9, 9)
    assert [len(thinned.matrix(k).edges) for k in range(1, 7)] == [0, 0, 8, 0, 0, 8]
    assert thinned.matrix(6) == inner.matrix(2)


def test_directed_schedules_lose_the_mean_by_drop_outs_and_say_so():
    schedule = DropNodes(build_schedule("one_peer_exponential", 8), 0.5, 0)
    assert build_schedule("one_peer_exponential", 8).doubly_stochastic
    assert not schedule.doubly_stochastic
    assert not schedule.matrix(1).doubly_stochastic


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 64])
def test_one_peer_exponential_reaches_the_mean_at_powers_of_two(n):
    schedule = build_schedule("one_peer_exponential", n)
    assert schedule.period == max(1, int(math.log2(n)))
    assert np.abs(product_of(schedule) - 1 / n).max() < 1e-15
    assert schedule.symmetric == (n <= 2)


def test_exponential_schedules_receive_from_before():
    assert build_schedule("one_peer_exponential", 6).matrix(3).neighbours(1)[0].tolist() == [3]
    static = build_schedule("static_exponential", 6).matrix(1)
    assert static.neighbours(0)[0].tolist() == [2, 4, 5]
    assert static.self_weights[0] == pytest.approx(1 / 4)


def test_equitopo_draws_all_shifts_alike():
    schedule = build_schedule("equitopo", 5, seed=0)
    hops = [(0 - schedule.matrix(k).neighbours(0)[0][0]) % 5 for k in range(1, 401)]
    assert np.bincount(hops, minlength=5)[0] == 0
    assert np.bincount(hops)[1:].min() > 70
    mean = np.mean([schedule.matrix(k).to_dense() for k in range(1, 401)], axis=0)
    assert mean == pytest.approx(0.5 * np.eye(5) + 0.5 / 5, abs=0.05)


def test_resampled_draws_a_new_graph_of_the_same_law():
    options = {"graph": build_graph("erdos_renyi", 20, 0, p=0.3)}
    schedule = build_schedule("resampled", weights="metropolis_hastings", seed=7, **options)
    edges = [len(schedule.matrix(k).edges) for k in range(1, 101)]
    assert np.mean(edges) == pytest.approx(0.3 * 190, rel=0.05)
    with pytest.raises(TopologyError, match=r"resampled.*ring"):
        build_schedule("resampled", graph=build_graph("ring", 5))


def test_a_random_matching_is_maximal():
    graph = graph_of(11)
    schedule = build_schedule("random_matching", graph=graph, seed=0)
    for k in range(1, 10):
        edges = schedule.matrix(k).edges
        ends = edges.ravel().tolist()
        assert len(set(ends)) == len(ends)
        assert nx.is_maximal_matching(graph, {tuple(edge) for edge in edges.tolist()})


def test_periodic_matrices_from_a_directory(tmp_path):
    rounds = [
        metropolis_hastings(nx.path_graph(4)),
        build_schedule("one_peer_exponential", 4).matrix(1),
    ]
    for k, matrix in enumerate(rounds):
        matrix.save(tmp_path / f"w-{k}.npz")
    schedule = build_schedule("periodic", 4, path=str(tmp_path))
    assert (schedule.period, schedule.symmetric) == (2, False)
    assert [schedule.matrix(k) for k in (1, 2, 3)] == [*rounds, rounds[0]]
    with pytest.raises(TopologyError, match=r"periodic.*\[4, 4\].*\bn\b.*\b5\b"):
        build_schedule("periodic", 5, path=str(tmp_path))
    with pytest.raises(TopologyError, match=r"\.npz.*none'"):
        build_schedule("periodic", 4, path=str(tmp_path / "none"))
    swing = MixingMatrix(4, [[0, 1]], [1.25])
    swing.save(tmp_path / "w-2.npz")
    assert build_schedule("periodic", 4, path=str(tmp_path)).matrix(3) == swing
    MixingMatrix(4, [[0, 1]], [-0.25]).save(tmp_path / "w-2.npz")
    with pytest.raises(TopologyError, match=r"w-2\.npz.*negative.*0\.25"):
        build_schedule("periodic", 4, path=str(tmp_path))
    MixingMatrix(4, [[0, 1]], [0.5], symmetric=False).save(tmp_path / "w-2.npz")
    assert not build_schedule("periodic", 4, path=str(tmp_path)).doubly_stochastic
    with pytest.raises(TopologyError, match=r"\[3, 4\]"):
        Periodic((rounds[0], metropolis_hastings(nx.path_graph(3))))


def lonely(n, share=0.5):
    return Static(MixingMatrix(n, np.array([[0, 1]]), np.array([share])))


def test_a_users_own_schedule():
    schedule = build_schedule(f"{__name__}:lonely", 4, share=0.25, local_rounds=2)
    assert len(schedule.matrix(1).edges) == 0
    assert schedule.matrix(2).weights.tolist() == [0.25]


@dataclass(frozen=True)
class Misspelt:
    """A schedule but for the name of one attribute."""

    n: int
    period = None
    tau = 1
    symetric = True
    doubly_stochastic = True

    def matrix(self, k):
        return MixingMatrix(self.n, np.array([[0, 1]]), np.array([0.5]))


def one_too_many(n):
    return lonely(n + 1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Misspelt", r"Misspelt.*topologies\.Schedule"),
        ("one_too_many", r"one_too_many.*\b4\b.*\b5 nodes"),
    ],
)
def test_what_a_user_calls_a_schedule_must_be_one(name, words):
    with pytest.raises(TopologyError, match=words):
        build_schedule(f"{__name__}:{name}", 4)


def of_round(n, round, *, until=9):
    return np.eye(n) if round < until else np.eye(n - 1)


def failing(*arguments, **options):
    raise KeyError("spokes")


def test_the_static_schedule_keeps_what_is_known_of_its_weights():
    schedule = build_schedule("static", graph=graph_of(8))
    assert schedule.matrix(3) == mixing_matrix(graph_of(8))
    assert schedule.matrix(3).info["certified_gap"] <= 1e-3


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("mathca", {}, "'mathca'.*'matcha'"),
        ("matcha", {"budget": 0}, r"budget.*\b0\b.*\b0\b.*\b1\b"),
        ("static", {"drop_nodes": 1.5}, r"drop_nodes.*1\.5"),
        ("periodic", {}, "path.*missing"),
    ],
)
def test_bad_schedules(name, params, words):
    with pytest.raises(TopologyError, match=words):
        check_schedule(name, params)
    with pytest.raises(TopologyError, match=words):
        build_schedule(name, 4, graph=graph_of(4), **params)


@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_one_peer_on_the_hypercube_is_base_two(dimension):
    n = 2**dimension
    cube = build_schedule("matchings", graph=build_graph("hypercube", n))
    for schedule in (cube, build_schedule("base_k", n)):
        assert schedule.period == dimension
        assert np.abs(product_of(schedule) - 1 / n).max() == 0
        flipped = [np.bitwise_xor(*matrix.edges.T) for matrix in schedule.matrices]
        assert sorted(bits[0] for bits in flipped) == [2**k for k in range(dimension)]
        assert all((bits == bits[0]).all() for bits in flipped)


def test_an_odd_number_of_nodes_leaves_one_idle():
    for name in ("matchings", "random_matching"):
        schedule = build_schedule(name, graph=build_graph("complete", 7), seed=0)
        for k in range(1, 8):
            assert sorted(schedule.matrix(k).self_weights) == [0.5] * 6 + [1.0]


@pytest.mark.parametrize("peers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ["base_k", "simple_base_k"])
def test_base_k_has_the_stated_length_for_a_sample_of_sizes(name, peers):
    check_base_k(name, peers, [*range(1, 34), 37, 60, 99, 128, 143, 199, 200])


@pytest.mark.slow
@pytest.mark.parametrize("peers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ["base_k", "simple_base_k"])
def test_base_k_has_the_stated_length_for_every_n_up_to_200(name, peers):
    check_base_k(name, peers, range(1, 201))


def check_base_k(name, peers, sizes):
    for n in sizes:
        schedule = build_schedule(name, n, peers=peers)
        assert schedule.period <= max(1, 2 * math.log(n) / math.log(peers + 1) + 2 + 1e-9)
        # Algorithm 2: the digits before and after the rounds between the first part and the others.
        if name == "simple_base_k" and max(prime_factors(n), default=1) > peers + 1:
            digits = len(np.base_repr(n, peers + 1)) - 1
            first = n // (peers + 1) ** digits
            several = n != first * (peers + 1) ** digits
            assert schedule.period == digits + (first > 1) + several * (1 + digits)
        product = np.eye(n)
        for matrix in schedule.matrices:
            assert matrix.symmetric
            assert np.bincount(matrix.edges.ravel(), minlength=n).max(initial=0) <= peers
            product = matrix.to_sparse() @ product
        assert np.abs(product - 1 / n).max() < 1e-12


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 64))
def test_null_cascades_commute_and_end_at_the_mean(n):
    schedule = build_schedule("null_cascade", n)
    assert schedule.period == max(1, sum(p // 2 for p in prime_factors(n)))
    assert np.abs(product_of(schedule) - 1 / n).max() < 1e-12
    rounds = [matrix.to_dense() for matrix in schedule.matrices]
    for one, other in itertools.pairwise(rounds):
        assert np.abs(one @ other - other @ one).max() < 1e-14
        assert (one >= 0).all() and (np.count_nonzero(one, axis=1) <= 3).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 130), st.integers(0, 4))
def test_hyper_hypercubes_have_a_round_a_factor(n, more):
    least = max(1, max(prime_factors(n), default=1) - 1)
    schedule = build_schedule("hyper_hypercube", n, peers=least + more)
    assert np.abs(product_of(schedule) - 1 / n).max() < 1e-12
    assert schedule.period <= max(1, len(prime_factors(n)))
    degrees = [np.bincount(m.edges.ravel(), minlength=n).max(initial=0) for m in schedule.matrices]
    assert max(degrees) <= least + more
    if least > 1:
        with pytest.raises(TopologyError, match=rf"peers.*\b{least - 1}\b.*\b{n}\b.*\b{least}\b"):
            build_schedule("hyper_hypercube", n, peers=least - 1)


@pytest.mark.parametrize(("n", "peers"), [(27, 2), (16, 3), (8, 1), (5, 4)])
def test_k_peer_exponential_reaches_the_mean_at_powers(n, peers):
    schedule = build_schedule("k_peer_exponential", n, peers=peers)
    assert schedule.period == round(math.log(n, peers + 1))
    assert np.abs(product_of(schedule) - 1 / n).max() < 1e-12


def paired(n, shift, first):
    """The pairs of Algorithm 2, node by node."""
    free, pairs = set(range(n)), set()
    for k in range(n):
        i, j = (first + k) % n, (first + k + shift) % n
        if i in free and j in free:
            free -= {i, j}
            pairs.add((min(i, j), max(i, j)))
    return frozenset(pairs)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13])
def test_ou_equidyn_pairs_as_its_algorithm_says(n):
    schedule = build_schedule("ou_equidyn", n, seed=1)
    drawn = [frozenset(map(tuple, schedule.matrix(k).edges.tolist())) for k in range(1, 60)]
    possible = {paired(n, shift, first) for shift in range(1, n) for first in range(n)}
    assert set(drawn) <= possible
    assert len(set(drawn)) > 0.2 * min(len(possible), 60)


def test_od_equidyn_of_many_shifts_has_the_rate_of_all():
    some, every = (
        build_schedule("od_equidyn", 12, shifts=4000),
        build_schedule("equitopo", 12, seed=0),
    )
    assert consensus_rate(some).p == pytest.approx(consensus_rate(every).p, abs=0.03)
    static = build_schedule("d_equistatic", 12, seed=3, shifts=5).matrix(1).to_dense()
    both = build_schedule("u_equistatic", 12, seed=3, shifts=5).matrix(1)
    assert np.abs((static + static.T) / 2 - both.to_dense()).max() < 1e-15
    assert both.symmetric
