import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies import (
    build_graph,
    build_schedule,
    consensus_rate,
    edge_array,
    prepare_schedule,
)


def matchings(graph, budget):
    """The edges, their colours, and the probability of each colour and the weight of MATCHA."""
    arrays = prepare_schedule("matcha", graph=graph, budget=budget)
    return tuple(arrays[name] for name in ("edges", "colours", "probabilities", "alpha"))


@settings(deadline=None)
@given(st.integers(1, 30), st.floats(0, 1), st.integers(0, 10**6))
def test_edge_colours_are_proper_and_few(n, p, seed):
    graph = nx.binomial_graph(n, p, seed=seed)
    rounds = [matrix.edges for matrix in build_schedule("matchings", graph=graph).matrices]
    largest = max(degree for _, degree in graph.degree)
    assert len(rounds) <= largest + 1
    assert sorted(map(tuple, np.concatenate(rounds).tolist())) == sorted(graph.edges)
    for edges in rounds:
        ends = edges.ravel().tolist()
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
    edges, colours, p, _ = matchings(graph, budget)
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
    edges, _, p, _ = matchings(graph, 1.0)
    assert (p == 1).all() and np.array_equal(edges, edge_array(graph))


def test_alpha_minimises_the_expected_contraction():
    graph = build_graph("erdos_renyi", 12, 1, p=0.4)
    edges, colours, p, alpha = matchings(graph, 0.5)

    # Of all outcomes of independent matchings with W = I - a L, the mean of W^2.
    laplacians = np.zeros((len(p), 12, 12))
    for (i, j), c in zip(edges.tolist(), colours, strict=True):
        laplacians[c, [i, j, i, j], [i, j, j, i]] += [1, 1, -1, -1]

    def contraction(a):
        mean = np.tensordot(p, laplacians, 1)
        spread = sum(q * (1 - q) * one @ one for q, one in zip(p, laplacians, strict=True))
        square = np.eye(12) - 2 * a * mean + a**2 * (mean @ mean + spread)
        return np.linalg.eigvalsh(square - 1 / 12)[-1]

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
    edges, colours, p, alpha = matchings(graph, 0.5)
    expected = np.zeros((12, 12))
    for (i, j), probability in zip(edges.tolist(), p[colours], strict=True):
        expected[[i, j], [j, i]] = alpha * probability
    np.fill_diagonal(expected, 1 - expected.sum(axis=1))
    schedule = build_schedule("matcha", graph=graph, seed=4, budget=0.5)
    draws = np.array([schedule.matrix(k).to_dense() for k in range(1, 801)])
    spread = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - expected) <= 5 * spread + 1e-12).all()
