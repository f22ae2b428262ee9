import networkx as nx
import numpy as np
import pytest

from topologies import TopologyError, build_graph, mixing_matrix
from topologies.__main__ import write_matrix
from topologies.graphs.files import read_matrix
from topologies.schedules.circulants import one_peer_exponential


@pytest.mark.parametrize(
    ("suffix", "family"),
    [(".npz", "matrix"), (".csv", "matrix"), (".edges", "edge_list"), (".graphml", "graphml")],
)
def test_a_matrix_comes_back_from_every_format(tmp_path, suffix, family):
    matrix = mixing_matrix(build_graph("erdos_renyi", 12, 1, p=0.5))
    file = tmp_path / f"w{suffix}"
    write_matrix(matrix, file)
    again = mixing_matrix(build_graph(family, 12, path=str(file)), "given")
    if suffix == ".csv":
        assert again.to_dense() == pytest.approx(matrix.to_dense(), abs=1e-15)
    else:
        assert again == matrix


def test_directed_matrices_have_two_formats(tmp_path):
    matrix = one_peer_exponential(5).matrix(2)
    for name in ("w.npz", "w.csv"):
        write_matrix(matrix, tmp_path / name)
        assert read_matrix(tmp_path / name) == matrix
    for name in ("w.edges", "w.graphml"):
        with pytest.raises(TopologyError, match=r"use \.npz or \.csv"):
            write_matrix(matrix, tmp_path / name)
    with pytest.raises(TopologyError, match="directed"):
        build_graph("matrix", path=str(tmp_path / "w.npz"))


def test_bad_matrices_are_refused_with_the_report(tmp_path):
    file = tmp_path / "w.csv"
    file.write_text("0.5,0.4\n0.4,0.5\n")
    with pytest.raises(TopologyError, match=r"rows do not sum to one by 0\.1"):
        build_graph("matrix", path=str(file))
    file.write_text("one,two\n")
    with pytest.raises(TopologyError, match="is not a table of numbers"):
        build_graph("matrix", path=str(file))
    np.savetxt(file, np.eye(3), delimiter=",")
    with pytest.raises(TopologyError, match="n is 2"):
        build_graph("matrix", 2, path=str(file))


def test_weights_of_a_file(tmp_path):
    file = tmp_path / "w.edges"
    file.write_text("0 1 0.5\n1 2 0.25\n")
    matrix = mixing_matrix(build_graph("edge_list", path=str(file)), "given")
    assert matrix.self_weights.tolist() == [0.5, 0.25, 0.75]
    file.write_text("0 1 0.75\n1 2 0.5\n")
    with pytest.raises(TopologyError, match=r"entries are negative by 0\.25"):
        mixing_matrix(build_graph("edge_list", path=str(file)), "given")
    file.write_text("0 1 0.75\n1 2\n")
    with pytest.raises(TopologyError, match="edge between 1 and 2 has none"):
        mixing_matrix(build_graph("edge_list", path=str(file)), "given")
    file.write_text("0 1 heavy\n")
    with pytest.raises(TopologyError, match=r"line 1 .* is '0 1 heavy'"):
        build_graph("edge_list", path=str(file))
    with pytest.raises(TopologyError, match="weight on each edge"):
        mixing_matrix(nx.path_graph(3), "given")
