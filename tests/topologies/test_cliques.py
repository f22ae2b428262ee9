"""D-Cliques: the skew of cliques, their edges, and what is refused."""

import itertools

import networkx as nx
import numpy as np
import pytest

from topologies import build_schedule


@pytest.fixture
def swapped(tmp_path):
    """The clique of each node after so many swaps, for shares of labels."""

    def build(labels, size, swaps, draw, **options):
        np.savetxt(tmp_path / "labels.csv", labels, delimiter=",")
        options |= {"labels": str(tmp_path / "labels.csv"), "size": size, "swaps": swaps}
        return build_schedule("d_cliques", len(labels), draw=draw, **options)

    return build


def skew(labels, cliques):
    """As the paper writes it, summed over cliques."""
    mean = labels.mean(axis=0)
    return sum(np.abs(labels[cliques == c].mean(0) - mean).sum() for c in set(cliques.tolist()))


def test_greedy_swaps_leave_no_skew_where_labels_can_be_dealt_evenly(swapped):
    labels = np.eye(10)[np.arange(60) % 10]
    found = swapped(labels, 10, 2000, 0).cliques
    assert np.bincount(found).tolist() == [10] * 6
    assert skew(labels, found) < 0.25 * skew(labels, swapped(labels, 10, 0, 0).cliques)


def test_swaps_never_raise_the_skew(swapped):
    labels = np.random.default_rng(3).dirichlet(np.full(6, 0.1), size=23)
    found = [skew(labels, swapped(labels, 5, swaps, 4).cliques) for swaps in range(0, 60, 3)]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(found))
    assert found[-1] < found[0]


@pytest.mark.parametrize(("between", "edges"), [("ring", 4), ("complete", 6)])
def test_cliques_are_complete_and_connected_by_few_edges(between, edges, swapped):
    schedule = swapped(np.eye(2)[np.arange(20) % 2], 5, 10, 0, between=between)
    cliques = schedule.cliques
    graph = nx.Graph(schedule.matrix(1).edges.tolist())
    across = [(i, j) for i, j in graph.edges if cliques[i] != cliques[j]]
    assert len(across) == edges and graph.number_of_edges() == 4 * 10 + edges
    assert nx.is_connected(graph)
    ends = np.bincount(np.array(across).ravel(), minlength=20)
    assert ends.max() == 1  # no member has two edges where five members share three


@pytest.fixture
def labels(tmp_path):
    np.savetxt(tmp_path / "counts.csv", 5 * np.eye(3)[np.arange(12) % 3], delimiter=",")
    return str(tmp_path / "counts.csv")


def test_it_is_a_schedule_with_the_means_of_its_cliques(labels):
    schedule = build_schedule("d_cliques", 12, labels=labels, size=3)
    within = schedule.within()
    assert schedule.symmetric and within.doubly_stochastic
    v = within.to_dense()
    np.testing.assert_allclose(v @ v, v, atol=1e-12)
    assert np.linalg.matrix_rank(v) == 4 == schedule.cliques.max() + 1
