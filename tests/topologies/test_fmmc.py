import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from topologies import (
    MixingMatrix,
    TopologyError,
    build_graph,
    edge_array,
    fmmc,
    mixing_matrix,
    slem,
)
from topologies.matrix import at_most_one


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


@pytest.mark.parametrize("self_loops", [True, False])
def test_a_general_solver_finds_the_same(self_loops):
    cvxpy = pytest.importorskip("cvxpy")
    graph = er(20)
    allowed = nx.to_numpy_array(graph, nodelist=range(20)) + self_loops * np.eye(20)
    w = cvxpy.Variable((20, 20), symmetric=True)
    constraints = [w >= 0, cvxpy.sum(w, axis=1) == 1, cvxpy.multiply(w, 1 - allowed) == 0]
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sigma_max(w - 1 / 20)), constraints)
    problem.solve(solver="CLARABEL")
    assert fmmc(graph, 1e-5, self_loops=self_loops).slem == pytest.approx(problem.value, abs=1e-4)
