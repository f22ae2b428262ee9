import networkx as nx
import numpy as np
import pytest

from topologies import build_graph, edge_array, fmmc
from topologies.weights import fastest_mixing
from topologies.weights.candidates import feasible_bound
from topologies.weights.patterns import Pattern, SparsePattern
from topologies.weights.primal_dual import sparse_iterates
from topologies.weights.projections import (
    Multipliers,
    Scales,
    project_admissible,
    project_scaled,
)


@pytest.fixture
def always_sparse(monkeypatch):
    monkeypatch.setattr(fastest_mixing, "SPARSE_NODES", 2)
    monkeypatch.setattr(fastest_mixing, "SPARSE_DENSITY", 1.0)


def graph_of(family):
    options = {"p": 0.15} if family == "erdos_renyi" else {}
    return build_graph(family, 60, seed=3, **options)


@pytest.mark.parametrize(
    "family",
    ["erdos_renyi", "random_regular", pytest.param("small_world", marks=pytest.mark.slow)],
)
def test_it_agrees_with_the_dense_method(family, request):
    graph = graph_of(family)
    dense = fmmc(graph)
    request.getfixturevalue("always_sparse")
    found = fmmc(graph)
    assert abs(found.slem - dense.slem) <= 1e-3 * dense.slem
    assert found.status == "converged"
    assert found.certified_gap <= 1e-3
    assert found.iterations != dense.iterations
    # Two intervals that hold the optimum.
    assert found.lower_bound <= dense.slem + 1e-12
    assert dense.lower_bound <= found.slem + 1e-12


def test_the_certificate_holds_by_eigenvalues_of_dense_matrices(always_sparse):
    graph = graph_of("erdos_renyi")
    found, edges = fmmc(graph, 5e-3), edge_array(graph)
    weights = np.zeros((60, 60))
    weights[edges[:, 0], edges[:, 1]] = weights[edges[:, 1], edges[:, 0]] = found.weights
    weights += np.diag(1 - weights.sum(axis=1))
    assert weights.min() >= 0
    assert np.abs(weights.sum(axis=1) - 1).max() <= 1e-15 * 60
    slem = np.sort(np.abs(np.linalg.eigvalsh(weights)))[-2]
    assert found.slem == pytest.approx(slem, abs=1e-12)
    assert found.lower_bound <= slem


def test_paths_have_the_closed_form(always_sparse):
    # Boyd, Diaconis, Sun and Xiao 2006: the fastest chain on a path has SLEM cos(pi / n).
    found = fmmc(nx.path_graph(9))
    assert found.slem == pytest.approx(np.cos(np.pi / 9), rel=1e-3)
    assert found.lower_bound <= np.cos(np.pi / 9) <= found.slem + 1e-12


def test_it_is_chosen_by_size_and_density():
    sparse, dense = build_graph("erdos_renyi", 500, 1, p=0.03), nx.path_graph(3)
    found = fmmc(sparse, max_iterations=2)
    pattern = Pattern(500, edge_array(sparse), True)
    iterate = [found for found, _ in zip(sparse_iterates(pattern), range(2), strict=False)][-1]
    y = (iterate.vectors * iterate.values) @ iterate.vectors.T
    assert found.lower_bound == feasible_bound(pattern, y, iterate.z)
    assert found.status == "max_iterations"
    assert fmmc(dense).status == "closed_form"


def test_repetition_is_bit_for_bit(always_sparse):
    graph = graph_of("small_world")
    first, second = fmmc(graph, 1e-2), fmmc(graph, 1e-2)
    assert first.weights.tobytes() == second.weights.tobytes()
    assert first.lower_bound == second.lower_bound


def test_iterates_are_admissible_and_their_duals_feasible():
    graph = graph_of("erdos_renyi")
    pattern = Pattern(60, edge_array(graph), True)
    for found, _ in zip(sparse_iterates(pattern), range(30), strict=False):
        assert found.weights.min() >= 0
        assert pattern.node_sums(found.weights).max() <= 1 + 1e-8
        assert np.abs(found.values).sum() == pytest.approx(1)
        gram = found.vectors.T @ found.vectors
        assert np.abs(gram - np.eye(len(gram))).max() < 1e-8


def test_the_scaled_projection_is_the_dense_one_where_steps_are_one():
    graph = graph_of("erdos_renyi")
    pattern = Pattern(60, edge_array(graph), True)
    random = np.random.default_rng(0)
    off, own = random.standard_normal(len(pattern.i)) / 5, random.standard_normal(60) / 5
    matrix = pattern.dense(off, own)
    expected_w, expected_own, _ = project_admissible(matrix, pattern, Multipliers(np.zeros(60)))
    ones = Scales(np.ones(len(off)), np.ones(60))
    w, diagonal, _ = project_scaled(off, own, SparsePattern(pattern), ones, np.zeros(60))
    assert w == pytest.approx(expected_w, abs=1e-8)
    assert diagonal == pytest.approx(expected_own, abs=1e-8)


def test_the_scaled_projection_meets_its_optimality_conditions():
    graph = graph_of("small_world")
    pattern = Pattern(60, edge_array(graph), True)
    random = np.random.default_rng(1)
    off, own = random.standard_normal(len(pattern.i)), random.standard_normal(60)
    steps = Scales(random.uniform(0.2, 20, len(off)), random.uniform(0.2, 20, 60))
    w, diagonal, y = project_scaled(off, own, SparsePattern(pattern), steps, np.zeros(60))
    assert diagonal + pattern.node_sums(w) == pytest.approx(np.ones(60), abs=1e-8)
    assert w == pytest.approx(np.maximum(off + steps.edges * (y[pattern.i] + y[pattern.j]), 0))
    assert diagonal == pytest.approx(np.maximum(own + 2 * steps.loops * y, 0))
