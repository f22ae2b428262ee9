import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies import build_graph, build_schedule, consensus_rate, edge_array
from topologies.schedules.matchings import (
    activation_probabilities,
    best_alpha,
    edge_colours,
    mean_square,
)


@settings(deadline=None)
@given(st.integers(1, 30), st.floats(0, 1), st.integers(0, 10**6))
def test_edge_colours_are_proper_and_few(n, p, seed):
    graph = nx.binomial_graph(n, p, seed=seed)
    colours, edges = edge_colours(graph), edge_array(graph)
    assert len(colours) == len(edges)
    largest = max(degree for _, degree in graph.degree)
    assert len(set(colours.tolist())) <= largest + 1
    for c in set(colours.tolist()):
        ends = edges[colours == c].ravel().tolist()
        assert len(set(ends)) == len(ends)


def test_the_cycle_of_matchings_covers_the_graph():
    graph = build_graph("ring", 6)
    schedule = build_schedule("matchings", graph=graph)
    assert schedule.period == 2
    assert sorted(e for m in schedule.matrices for e in map(tuple, m.edges)) == sorted(graph.edges)
    assert 0 < consensus_rate(schedule).p < 1


def connectivity(n, edges, colours, p):
    graph = nx.empty_graph(n)
    graph.add_weighted_edges_from(
        (i, j, w) for (i, j), w in zip(edges.tolist(), p[colours], strict=True)
    )
    return np.linalg.eigvalsh(nx.laplacian_matrix(graph, nodelist=range(n)).toarray())[1]


@pytest.mark.parametrize("budget", [0.1, 0.5, 0.9])
def test_activation_probabilities_keep_the_budget_and_beat_other_choices(budget):
    graph = build_graph("barbell", 10)
    edges, colours = edge_array(graph), edge_colours(graph)
    p = activation_probabilities(10, edges, colours, budget)
    assert p.min() >= 0
    assert p.max() <= 1
    assert p.sum() <= budget * len(p) + 1e-9
    found = connectivity(10, edges, colours, p)
    random = np.random.default_rng(0)
    for _ in range(50):
        other = random.dirichlet(np.ones(len(p))) * budget * len(p)
        if other.max() <= 1:
            assert connectivity(10, edges, colours, other) <= found * (1 + 2e-3)
    assert found >= connectivity(10, edges, colours, np.full(len(p), budget))


def test_the_whole_budget_uses_every_matching():
    graph = build_graph("ring", 5)
    assert (activation_probabilities(5, edge_array(graph), edge_colours(graph), 1.0) == 1).all()


def test_alpha_minimises_the_expected_contraction():
    graph = build_graph("erdos_renyi", 12, 1, p=0.4)
    edges, colours = edge_array(graph), edge_colours(graph)
    p = activation_probabilities(12, edges, colours, 0.5)
    alpha = best_alpha(12, edges, colours, p)

    def contraction(a):
        return np.linalg.eigvalsh(mean_square(12, edges, colours, p, a) - 1 / 12)[-1]

    assert contraction(alpha) < min(contraction(0.9 * alpha), contraction(1.1 * alpha))
    assert contraction(alpha) < 1


def test_draws_have_the_expected_square():
    schedule = build_schedule("matcha", graph=build_graph("small_world", 10, 0), seed=4, budget=0.4)
    squares = []
    for k in range(1, 801):
        dense = schedule.matrix(k).to_dense()
        squares.append(dense @ dense)
    spread = np.std(squares, axis=0) / np.sqrt(len(squares))
    difference = np.abs(np.mean(squares, axis=0) - schedule.mean_square())
    assert (difference <= 5 * spread + 1e-12).all()


def test_a_graph_without_edges():
    graph = nx.empty_graph(1)
    schedule = build_schedule("matcha", graph=graph)
    assert schedule.matrix(1).self_weights.tolist() == [1]
    assert consensus_rate(schedule).p == 1


def test_draws_have_the_expected_mean():
    graph = build_graph("erdos_renyi", 12, 1, p=0.4)
    edges, colours = edge_array(graph), edge_colours(graph)
    p = activation_probabilities(12, edges, colours, 0.5)
    alpha = best_alpha(12, edges, colours, p)
    expected = np.zeros((12, 12))
    for (i, j), probability in zip(edges.tolist(), p[colours], strict=True):
        expected[[i, j], [j, i]] = alpha * probability
    np.fill_diagonal(expected, 1 - expected.sum(axis=1))
    schedule = build_schedule("matcha", graph=graph, seed=4, budget=0.5)
    draws = np.array([schedule.matrix(k).to_dense() for k in range(1, 801)])
    spread = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - expected) <= 5 * spread + 1e-12).all()
