import networkx as nx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies import (
    FAMILIES,
    WEIGHTS,
    MixingMatrix,
    TopologyError,
    build_graph,
    build_schedule,
    check_weights,
    mixing_matrix,
    slem,
    stationary_distribution,
    weighted_slem,
)

GENERATED = [name for name in FAMILIES if name not in ("edge_list", "graphml", "matrix")]
RULES = [name for name in WEIGHTS if name != "given"]


def rounding(n: int) -> float:
    """How well weights from eigenvalues of float64 matrices (n, n) of norm 1 are known."""
    return float(8 * n * np.finfo(float).eps)


@settings(deadline=None)
@given(
    st.sampled_from(GENERATED),
    st.integers(1, 33),
    st.integers(0, 3),
    st.sampled_from(RULES),
)
def test_every_rule_on_every_family_is_a_mixing_matrix(family, n, seed, rule):
    try:
        graph = build_graph(family, n, seed)
        matrix = mixing_matrix(graph, rule)
    except TopologyError as error:
        assert family in str(error) or rule == "uniform"
        return
    dense = matrix.to_dense()
    assert (dense == dense.T).all()
    assert np.abs(dense.sum(axis=1) - 1).max() <= 1e-14
    allowed = nx.to_numpy_array(graph, nodelist=range(n)) + np.eye(n) > 0
    assert (dense[~allowed] == 0).all()
    if rule != "best_constant":
        assert dense.min() >= 0
        assert slem(matrix) < 1 - 1e-10
    assert matrix.info["family"] == family
    assert matrix.info["weights"] == rule


def test_metropolis_hastings_and_max_degree_by_hand():
    star = nx.star_graph(3)
    expected = np.array([[1, 1, 1, 1], [1, 3, 0, 0], [1, 0, 3, 0], [1, 0, 0, 3]]) / 4
    assert mixing_matrix(star, "metropolis_hastings").to_dense() == pytest.approx(expected)
    assert mixing_matrix(star, "max_degree").to_dense() == pytest.approx(expected)
    path = mixing_matrix(nx.path_graph(4), "metropolis_hastings")
    assert path.weights == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_best_constant_is_the_best_constant():
    graph = build_graph("erdos_renyi", 20, 1234, p=0.5)
    best = mixing_matrix(graph, "best_constant")
    assert best.self_weights.min() < 0
    assert np.ptp(best.weights) == 0
    for factor in (0.99, 1.01):
        assert slem(MixingMatrix(20, best.edges, best.weights * factor)) > slem(best)


def test_uniform_wants_equal_degrees():
    ring = mixing_matrix(build_graph("ring", 5), "uniform")
    assert ring.to_dense() == pytest.approx(
        nx.to_numpy_array(nx.cycle_graph(5)) / 3 + np.eye(5) / 3
    )
    with pytest.raises(TopologyError, match=r"degrees.*\b1\b.*\b2\b.*metropolis_hastings"):
        mixing_matrix(nx.path_graph(3), "uniform")


def lazy(graph, share):
    edges = np.array(sorted(graph.edges))
    return MixingMatrix(len(graph), edges, np.full(len(edges), share))


def test_a_users_own_rule():
    matrix = mixing_matrix(nx.path_graph(3), f"{__name__}:lazy", share=0.25)
    assert matrix.self_weights.tolist() == [0.75, 0.5, 0.75]
    assert matrix.info["weight_options"] == {"share": 0.25}


@pytest.mark.parametrize(
    ("rule", "options", "words"),
    [
        ("metropolis", {}, "'metropolis'.*'metropolis_hastings'"),
        ("fmmc", {"tolerance": 0}, r"tolerance.*\b0\b.*\b0\b.*\b1\b"),
        ("uniform", {"p": 1}, r"uniform\.p\b"),
    ],
)
def test_bad_rules(rule, options, words):
    with pytest.raises(TopologyError, match=words):
        check_weights(rule, options)
    with pytest.raises(TopologyError, match=words):
        mixing_matrix(nx.path_graph(3), rule, **options)


@pytest.mark.parametrize(
    "graph", [nx.path_graph(3, create_using=nx.DiGraph), nx.Graph([(1, 2)]), nx.Graph()]
)
def test_graphs_that_are_not_on_0_to_n_are_refused(graph):
    with pytest.raises(TopologyError, match=r"0 \.\. n-1"):
        mixing_matrix(graph, "metropolis_hastings")


@pytest.mark.parametrize("rule", RULES)
def test_two_nodes_average_and_one_keeps_its_value(rule):
    pair = mixing_matrix(nx.path_graph(2), rule)
    assert pair.to_dense() == pytest.approx(np.full((2, 2), 0.5), abs=rounding(2))
    assert slem(pair) == pytest.approx(0, abs=rounding(2))
    assert mixing_matrix(nx.empty_graph(1), rule).to_dense().tolist() == [[1.0]]


@pytest.mark.parametrize("rule", ["fmmc", "metropolis_hastings", "max_degree", "uniform"])
@pytest.mark.parametrize("n", [3, 8])
def test_p_one_averages_at_once(rule, n):
    matrix = mixing_matrix(build_graph("erdos_renyi", n, 0, p=1), rule)
    assert matrix.to_dense() == pytest.approx(np.full((n, n), 1 / n), abs=rounding(n))
    assert slem(matrix) == pytest.approx(0, abs=rounding(n))


def halved(graph, *, share=0.5):
    """A rule that returns an array: half of a maximum-degree matrix."""
    adjacency = nx.to_numpy_array(graph, range(len(graph)))
    w = share * adjacency / adjacency.sum(axis=1).max()
    return w + np.diag(1 - w.sum(axis=1))


def halved_sparse(graph, **options):
    return scipy.sparse.csr_array(halved(graph, **options))


def halved_made(graph, **options):
    return MixingMatrix.from_sparse(halved(graph, **options))


def rounded(graph):
    """A rule that leaves rounding errors beside the edges."""
    return halved(graph) + 1e-12 * (1 - np.eye(len(graph)) * len(graph))


@pytest.mark.parametrize("rule", ["halved", "halved_sparse", "halved_made"])
def test_a_user_s_rule_may_return_an_array(rule):
    graph = build_graph("star", 5)
    matrix = mixing_matrix(graph, f"{__name__}:{rule}", share=0.25)
    assert matrix.symmetric and matrix.info["weight_options"] == {"share": 0.25}
    assert matrix.to_dense() == pytest.approx(halved(graph, share=0.25), abs=1e-15)


def to_all(graph):
    return np.full((len(graph), len(graph)), 1 / len(graph))


def of_fewer(graph):
    return np.eye(len(graph) - 1)


def of_rows(graph):
    return np.full((len(graph), len(graph)), 0.5)


def of_a_list(graph):
    return graph.edges


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (to_all, r"nodes.*\b0\b.*\b2\b.*0\.2\b.*edge"),
        (of_fewer, r"\b4 nodes.*\b5\b"),
        (of_rows, r"rows.*1\.5"),
        (of_a_list, "square"),
    ],
)
def test_what_a_user_s_rule_returns_wrongly_is_reported(rule, words):
    with pytest.raises(TopologyError, match=words) as refused:
        mixing_matrix(build_graph("ring", 5), f"{__name__}:{rule.__name__}")
    assert str(refused.value).startswith(f"{__name__}:{rule.__name__}")


SIZES = np.array([1.0, 2.0, 7.0, 3.0, 1.0, 4.0])


def test_gossip_by_sizes_ends_in_the_weighted_mean_at_its_rate(tmp_path):
    graph = build_graph("erdos_renyi", 6, 3, p=0.6)
    matrix = mixing_matrix(graph, "by_size", sizes=SIZES.tolist())
    w, share = matrix.to_dense(), SIZES / SIZES.sum()
    assert w.min() >= 0 and np.diag(w).min() > 0
    np.testing.assert_allclose(w.sum(axis=1), 1, atol=1e-15)
    np.testing.assert_allclose(share[:, None] * w, (share[:, None] * w).T, atol=1e-16)
    np.testing.assert_allclose(stationary_distribution(matrix), share, atol=1e-14)
    np.testing.assert_allclose(np.linalg.matrix_power(w, 500), np.tile(share, (6, 1)), atol=1e-12)
    moduli = np.sort(np.abs(np.linalg.eigvals(w)))
    assert weighted_slem(matrix) == pytest.approx(moduli[-2], abs=1e-12)
    # A file of label counts is the same, equal sizes are the usual weights.
    np.savetxt(tmp_path / "counts.csv", np.stack([SIZES - 1, np.ones(6)], 1), delimiter=",")
    assert mixing_matrix(graph, "by_size", sizes=str(tmp_path / "counts.csv")) == matrix
    usual = mixing_matrix(graph, "metropolis_hastings")
    assert mixing_matrix(graph, "by_size", sizes=[2.0] * 6) == usual
    # In the norm of unequal nodes, doubly stochastic weights do not contract as their slem says.
    assert weighted_slem(usual, SIZES) > slem(usual) == pytest.approx(weighted_slem(usual))
    static = build_schedule(
        "static", graph=graph, weights="by_size", weight_options={"sizes": SIZES.tolist()}
    )
    assert static.matrix(1) == matrix and not static.doubly_stochastic
    for bad in ([1.0] * 5, [1.0] * 5 + [np.inf]):
        with pytest.raises(TopologyError, match=r"6 nodes.*\b5\b|sizes.*inf"):
            mixing_matrix(graph, "by_size", sizes=bad)
    with pytest.raises(TopologyError, match="distribution"):
        stationary_distribution(MixingMatrix(3, np.array([[0, 1]]), np.array([0.5])))
