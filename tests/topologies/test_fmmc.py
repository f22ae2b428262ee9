import clarabel
import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse

from topologies import (
    MixingMatrix,
    TopologyError,
    build_graph,
    edge_array,
    fmmc,
    mixing_matrix,
    slem,
)

GAP_FLOOR = 1e-11
"""The least gap that is asked for, that of rounding."""


def at_most_one(n, edges, weights):
    """Weights scaled down so that the sum at each node is at most one."""
    sums = np.maximum(1, np.bincount(edges.ravel(), np.repeat(weights, 2), n))
    return weights / sums[edges].max(axis=1)


def er(n, p=0.5, seed=1234):
    return build_graph("erdos_renyi", n, seed, p=p)


@pytest.mark.parametrize(
    ("family", "n", "expected"),
    [
        ("path", 1, 0),
        ("path", 2, 0),
        ("path", 3, 0.5),
        ("star", 5, 0.75),
        ("star", 16, 14 / 15),
        ("star", 64, 62 / 63),
        ("ring", 4, 1 / 3),
        ("ring", 5, 1 / np.sqrt(5)),
        ("hypercube", 8, 0.5),
        ("hypercube", 64, 5 / 7),
        ("torus", 64, 0.8635450714),
        ("complete", 4, 0),
        ("complete", 7, 0),
    ],
)
def test_closed_forms(family, n, expected):
    result = fmmc(build_graph(family, n))
    assert result.status == "closed_form"
    assert result.slem == pytest.approx(expected, abs=1e-9)
    assert result.lower_bound == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("n", [4, 6, 9])
def test_paths_mix_best_with_weights_one_half(n):
    # Boyd, Diaconis, Sun and Xiao 2006: the fastest chain on a path has SLEM cos(pi / n).
    result = fmmc(nx.path_graph(n), 1e-5)
    assert result.slem == pytest.approx(np.cos(np.pi / n), rel=1e-5)
    assert result.lower_bound <= np.cos(np.pi / n)


@pytest.mark.parametrize(("n", "expected"), [(20, 0.350438), (50, 0.207789), (100, 0.142678)])
def test_measured_optima(n, expected):
    result = fmmc(er(n))
    assert result.status == "converged"
    assert result.slem == pytest.approx(expected, abs=2e-5)
    assert 0 <= result.certified_gap <= 1e-3
    assert result.lower_bound <= expected + 1e-6


def test_without_self_loops():
    result = fmmc(er(20), self_loops=False)
    matrix = MixingMatrix(20, edge_array(er(20)), result.weights)
    assert np.abs(matrix.self_weights).max() < 1e-10
    assert result.slem == pytest.approx(0.4009, abs=5e-4)
    assert result.slem == pytest.approx(slem(matrix), abs=1e-12)
    assert result.certified_gap <= 1e-3


@pytest.mark.parametrize(("family", "n"), [("path", 2), ("ring", 4), ("hypercube", 8)])
def test_bipartite_graphs_without_self_loops_do_not_mix(family, n):
    result = fmmc(build_graph(family, n), self_loops=False)
    assert result.slem == pytest.approx(1)
    assert result.lower_bound <= result.slem


@pytest.mark.parametrize(
    "graph", [nx.path_graph(1), nx.path_graph(3), nx.star_graph(4), nx.empty_graph(3)]
)
def test_without_self_loops_there_may_be_no_solution(graph):
    with pytest.raises(TopologyError, match="self_loops=true"):
        fmmc(graph, self_loops=False)


def test_disconnected_graphs_are_solved_by_component():
    graph = nx.disjoint_union(nx.path_graph(3), nx.cycle_graph(4))
    graph.add_node(7)
    result = fmmc(graph)
    assert (result.slem, result.lower_bound, result.certified_gap) == (1, 1, 0)
    first, second = result.weights[:2], result.weights[2:]
    assert first == pytest.approx([0.5, 0.5])
    assert second == pytest.approx(np.full(4, 1 / 3))
    assert fmmc(nx.empty_graph(3)).slem == 1


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 24), st.floats(0.15, 0.9), st.integers(0, 10**6))
@example(4, 0.75, 529833)  # the path of four, where the best constant is optimal
def test_it_is_certified_and_beats_every_other_rule(n, p, seed):
    graph = nx.binomial_graph(n, p, seed=seed)
    if not nx.is_connected(graph):
        return
    result = fmmc(graph)
    matrix = MixingMatrix(n, edge_array(graph), result.weights)
    assert matrix.validate(0).violations == () or matrix.validate().ok
    assert matrix.self_weights.min() >= 0
    assert result.weights.min(initial=0) >= 0
    assert slem(matrix) == pytest.approx(result.slem, abs=1e-12)
    assert result.lower_bound <= result.slem + 1e-12
    assert result.certified_gap <= 1e-3 or result.status == "max_iterations"
    best = mixing_matrix(graph, "best_constant")
    clipped = MixingMatrix(n, best.edges, at_most_one(n, best.edges, best.weights))
    assert result.slem <= slem(clipped) + 1e-12
    degrees = np.array([graph.degree(i) for i in range(n)])
    without_one = MixingMatrix(n, best.edges, 1 / degrees[best.edges].max(axis=1))
    assert result.slem <= slem(without_one) + 1e-12
    for rule in ("metropolis_hastings", "max_degree"):
        assert result.lower_bound <= slem(mixing_matrix(graph, rule)) + 1e-12
        assert result.slem <= slem(mixing_matrix(graph, rule)) + 1e-12


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 16), st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_admissible_matrix_is_below_the_bound(n, seed, other):
    graph = nx.binomial_graph(n, 0.5, seed=seed)
    if not nx.is_connected(graph):
        return
    bound = fmmc(graph, 1e-2).lower_bound
    random = np.random.default_rng(other)
    edges = edge_array(graph)
    for _ in range(5):
        weights = random.exponential(size=len(edges))
        sums = np.bincount(edges.ravel(), np.repeat(weights, 2), n)
        admissible = MixingMatrix(n, edges, weights / sums[edges].max(axis=1))
        assert slem(admissible) >= bound - 1e-12


def test_the_result_does_not_depend_on_the_names_of_the_nodes():
    graph = er(30, 0.3)
    order = np.random.default_rng(0).permutation(30)
    renamed = nx.relabel_nodes(graph, dict(enumerate(order.tolist())))
    assert fmmc(renamed, 1e-5).slem == pytest.approx(fmmc(graph, 1e-5).slem, rel=2e-5)


def test_repetition_is_bit_for_bit():
    assert mixing_matrix(er(40)).sha256 == mixing_matrix(er(40)).sha256


def test_a_stop_by_iterations_says_so_and_keeps_its_certificate():
    result = fmmc(er(40), max_iterations=7)
    assert result.status == "max_iterations"
    assert result.iterations == 7
    assert result.lower_bound <= 0.24 <= result.slem


def solved_as_semidefinite(graph, self_loops):
    """The least t with -t I <= W - J <= t I over admissible W, by an interior-point method."""
    n, edges = len(graph), edge_array(graph)
    loops = np.repeat(np.arange(n), 2).reshape(n, 2) if self_loops else edges[:0]
    places = np.concatenate([edges, loops])
    count = len(places)
    upper = np.triu_indices(n)
    order = np.lexsort(upper)  # the cone takes the upper triangle column by column
    rows, cols = upper[0][order], upper[1][order]
    position = {place: k for k, place in enumerate(zip(rows.tolist(), cols.tolist(), strict=True))}
    scale = np.where(rows == cols, 1.0, np.sqrt(2))
    at = [position[i, j] for i, j in places.tolist()]
    weight = sparse.csc_array((scale[at], (at, np.arange(count))), shape=(len(rows), count))
    identity = sparse.csc_array((rows == cols).astype(float)[:, None])
    of_place = np.repeat(np.arange(count), np.where(places[:, 0] == places[:, 1], 1, 2))
    nodes = np.concatenate([np.unique(place) for place in places])
    sums = sparse.csc_array((np.ones(len(nodes)), (nodes, of_place)), shape=(n, count))
    nothing = sparse.csc_array((n, 1)), sparse.csc_array((count, 1))
    a = sparse.block_array(
        [
            [sums, nothing[0]],
            [-sparse.eye_array(count), nothing[1]],
            [weight, -identity],
            [-weight, -identity],
        ],
        format="csc",
    )
    b = np.concatenate([np.ones(n), np.zeros(count), scale / n, -scale / n])
    cones = [clarabel.ZeroConeT(n), clarabel.NonnegativeConeT(count)]
    cones += [clarabel.PSDTriangleConeT(n), clarabel.PSDTriangleConeT(n)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cost = np.append(np.zeros(count), 1.0)
    empty = sparse.csc_array((count + 1, count + 1))
    solution = clarabel.DefaultSolver(empty, cost, a, b, cones, settings).solve()
    assert str(solution.status) == "Solved"
    return solution.obj_val


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize(
    "graph", [er(20), er(12, 0.3), nx.petersen_graph(), nx.lollipop_graph(5, 2)]
)
def test_a_general_solver_finds_the_same(graph, self_loops):
    found = fmmc(graph, 1e-6, self_loops=self_loops)
    assert found.slem == pytest.approx(solved_as_semidefinite(graph, self_loops), abs=1e-6)


def bipartite(n, p, seed):
    graph = nx.bipartite.random_graph(n, n, p, seed=seed)
    assert nx.is_connected(graph)
    return graph


@pytest.mark.parametrize(
    "graph",
    [bipartite(6, 0.5, 1), bipartite(10, 0.4, 2), bipartite(20, 0.3, 2), nx.path_graph(20)],
)
def test_graphs_that_cannot_mix_are_certified_soon(graph):
    result = fmmc(graph, self_loops=False)
    assert result.status == "converged"
    assert result.iterations < 1500
    assert result.slem == pytest.approx(1, abs=1e-10)
    assert result.slem - result.lower_bound <= GAP_FLOOR


@pytest.mark.parametrize("self_loops", [True, False])
def test_a_tolerance_below_rounding_ends_at_the_floor(self_loops):
    result = fmmc(er(20), 1e-15, self_loops=self_loops)
    assert result.status == "rounding"
    assert result.slem - result.lower_bound <= GAP_FLOOR
    assert result.certified_gap > 1e-15
