import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from topologies import MixingMatrix, TopologyError, build_graph, metropolis_hastings, mixing_matrix

graphs = st.builds(
    lambda n, p, seed: nx.binomial_graph(n, p, seed=seed),
    st.integers(1, 20),
    st.floats(0, 1),
    st.integers(0, 1000),
)


def shift(n):
    """The directed cycle in which everyone averages itself and its predecessor."""
    edges = [(i, (i - 1) % n) for i in range(n)]
    return MixingMatrix(n, edges, np.full(n, 0.5), symmetric=False)


@settings(max_examples=60, deadline=None)
@given(graphs, st.randoms())
def test_invariants_and_representations_agree(graph, random):
    matrix = metropolis_hastings(graph)
    dense = matrix.to_dense()
    assert matrix.validate().ok
    assert matrix.doubly_stochastic
    assert (dense == dense.T).all()
    assert (matrix.to_sparse().toarray() == dense).all()
    assert np.abs(dense.sum(axis=1) - 1).max() < 1e-15 * matrix.n
    for i in range(matrix.n):
        indices, weights = matrix.neighbours(i)
        assert indices.tolist() == sorted(graph[i])
        assert (dense[i, indices] == weights).all()
    order = list(range(len(matrix.edges)))
    random.shuffle(order)
    flipped = matrix.edges[order][:, ::-1]
    assert MixingMatrix(matrix.n, flipped, matrix.weights[order]) == matrix
    assert MixingMatrix.from_sparse(dense).to_dense() == pytest.approx(dense, abs=1e-15)


def test_sparse_rows_are_sorted_and_store_no_zero():
    directed = MixingMatrix(3, [[2, 1], [0, 2], [2, 0]], [0.25, 1.0, 0.5], symmetric=False)
    for matrix in (MixingMatrix(3, [[1, 2], [0, 1]], [1.0, 0.0]), directed):
        found = matrix.to_sparse()
        assert found.has_canonical_format
        assert found.nnz == np.count_nonzero(matrix.to_dense())
        assert (found.toarray() == matrix.to_dense()).all()


@settings(max_examples=60, deadline=None)
@given(graphs, st.data())
def test_inactive_nodes_keep_their_value(graph, data):
    matrix = metropolis_hastings(graph)
    active = np.array(data.draw(st.lists(st.booleans(), min_size=matrix.n, max_size=matrix.n)))
    restricted = matrix.restricted_to(active)
    dense = restricted.to_dense()
    assert restricted.validate().ok
    assert (dense[~active] == np.eye(matrix.n)[~active]).all()
    both = np.outer(active, active) & ~np.eye(matrix.n, dtype=bool)
    assert (dense[both] == matrix.to_dense()[both]).all()
    assert matrix.restricted_to(np.ones(matrix.n, bool)) == matrix


def test_the_hash_is_of_the_content():
    matrix = metropolis_hastings(nx.path_graph(3))
    assert matrix.sha256 == metropolis_hastings(nx.path_graph(3)).sha256
    assert len(matrix.sha256) == 64
    weights = matrix.weights.copy()
    weights[0] = np.nextafter(weights[0], 1)
    changed = MixingMatrix(3, matrix.edges, weights)
    assert changed.sha256 != matrix.sha256
    assert changed != matrix
    assert MixingMatrix(4, matrix.edges, matrix.weights) != matrix


def test_it_cannot_be_changed():
    matrix = metropolis_hastings(nx.path_graph(3))
    with pytest.raises(ValueError, match="read-only"):
        matrix.weights[0] = 1
    with pytest.raises(AttributeError):
        matrix.n = 4


def test_zero_weights_are_edges():
    matrix = MixingMatrix(3, [(0, 1), (1, 2)], [0.5, 0.0])
    assert len(matrix.edges) == 2
    assert matrix.neighbours(1)[0].tolist() == [0, 2]


def test_directed_matrices():
    matrix = shift(4)
    assert matrix.doubly_stochastic
    assert (matrix.to_dense() == 0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=0)).all()
    assert matrix.neighbours(0)[0].tolist() == [3]
    restricted = matrix.restricted_to(np.array([True, True, False, True]))
    assert not restricted.doubly_stochastic
    assert [v.name for v in restricted.validate().violations] == ["columns do not sum to one"]
    again = MixingMatrix.from_sparse(matrix.to_sparse())
    assert again == matrix
    assert not again.symmetric


@pytest.mark.parametrize(
    ("n", "edges", "weights", "words"),
    [
        (2, [(0, 2)], [0.5], r"edge.*0 \.\. 1"),
        (2, [(1, 1)], [0.5], r"edge.*0 \.\. 1"),
        (2, [(0, 1), (1, 0)], [0.5, 0.5], "twice"),
        (2, [(0, 1)], [np.nan], "weight.*finite"),
    ],
)
def test_malformed_edges(n, edges, weights, words):
    with pytest.raises(TopologyError, match=words):
        MixingMatrix(n, edges, weights)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (
            [[0.5, 0.4], [0.5, 0.5]],
            r"rows.*0\.1",
        ),
        ([[1.5, -0.5], [-0.5, 1.5]], r"negative.*0\.5"),
        ([[np.nan, 1.0], [1.0, 0.0]], "finite"),
    ],
)
def test_an_imported_matrix_that_does_not_keep_constants_is_refused_with_the_report(array, words):
    with pytest.raises(TopologyError, match=words):
        MixingMatrix.from_sparse(np.array(array))


def test_import_repairs_rounding():
    noisy = metropolis_hastings(nx.path_graph(4)).to_dense()
    noisy[0, 1] += 1e-10
    matrix = MixingMatrix.from_sparse(sparse.csr_array(noisy))
    assert matrix.symmetric
    assert matrix.validate().ok


def test_a_negative_self_weight_is_reported():
    graph = build_graph("erdos_renyi", 20, 1234, p=0.5)
    report = mixing_matrix(graph, "best_constant").validate()
    assert [v.name for v in report.violations] == ["entries are negative"]
    assert report.violations[0].value > 0.1
    assert "1e-12" in str(report)


@pytest.mark.parametrize("matrix", [metropolis_hastings(nx.path_graph(5)), shift(5)])
def test_saving_is_exact(tmp_path, matrix):
    file = tmp_path / "w.npz"
    tagged = MixingMatrix(
        matrix.n, matrix.edges, matrix.weights, matrix.symmetric, {"weights": "x"}
    )
    tagged.save(file)
    loaded = MixingMatrix.load(file)
    assert loaded == matrix
    assert loaded.info == {"weights": "x"}


def test_damaged_files_are_refused(tmp_path):
    file = tmp_path / "w.npz"
    with pytest.raises(TopologyError, match=r"\bno\b.*w\.npz"):
        MixingMatrix.load(file)
    metropolis_hastings(nx.path_graph(5)).save(file)
    content = file.read_bytes()
    for cut in (0, 10, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:cut])
        with pytest.raises(TopologyError):
            MixingMatrix.load(file)
    np.savez(file, a=np.arange(3))
    with pytest.raises(TopologyError, match=r"w\.npz.*mixing matrix"):
        MixingMatrix.load(file)
    good = metropolis_hastings(nx.path_graph(5))
    np.savez(
        file,
        n=5,
        edges=good.edges,
        weights=good.weights * 0.5,
        symmetric=True,
        info="{}",
        sha256=good.sha256,
    )
    with pytest.raises(TopologyError, match=r"w\.npz.*damaged"):
        MixingMatrix.load(file)
