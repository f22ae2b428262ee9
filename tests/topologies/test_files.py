import itertools

import networkx as nx
import numpy as np
import pytest

from topologies import TopologyError, build_graph, mixing_matrix
from topologies.__main__ import write_matrix
from topologies.graphs.build import edge_array
from topologies.graphs.files import graph_section, read_matrix
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


def test_the_weight_of_a_self_loop_is_the_self_weight(tmp_path):
    path = tmp_path / "w.edges"
    path.write_text("0 1 0.5\n0 0 0.5\n1 2 0.25\n1 1 0.25\n2 2 0.75\n")
    right = mixing_matrix(build_graph("edge_list", path=str(path)), "given")
    assert right.self_weights.tolist() == [0.5, 0.25, 0.75]
    path.write_text("0 1 0.6\n0 0 0.9\n1 1 0.4\n")
    graph = build_graph("edge_list", path=str(path))
    with pytest.raises(TopologyError, match=r"node 0 on line 2, its weights sum to 1\.5,"):
        mixing_matrix(graph, "given")
    assert mixing_matrix(graph, "uniform").to_dense().tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("suffix", ["graphml", "python", "edges"])
def test_self_loops_without_lines(suffix, tmp_path):
    """In GraphML, in a graph of Python, and in edges written out."""

    def weights_of(loop):
        graph = nx.Graph([(0, 1, {"weight": 0.6}), (0, 0, {"weight": loop})])
        section = graph_section(graph)
        if suffix == "graphml":
            nx.write_graphml(graph, tmp_path / "w.graphml")
            section = {"name": "graphml", "path": str(tmp_path / "w.graphml")}
        elif suffix == "edges":
            section["edges"] = f"0-1:0.6 0-0:{loop}"
        return mixing_matrix(build_graph(section.pop("name"), **section), "given")

    assert weights_of(0.4).weights.tolist() == [0.6]
    with pytest.raises(TopologyError, match=r"self-weight 0\.9 of node 0, its weights sum to 1\.5"):
        weights_of(0.9)


def test_doubled_edges_must_agree(tmp_path):
    path = tmp_path / "w.edges"
    path.write_text("0 1 0.5\n1 2 0.25\n1 0 0.5\n0 1\n")
    assert build_graph("edge_list", path=str(path)).size("weight") == 0.75
    path.write_text("0 1 0.5\n1 2 0.25\n\n1 0 0.4\n")
    with pytest.raises(TopologyError, match=r"0\.5 and 0\.4, on lines 1 and 4"):
        build_graph("edge_list", path=str(path))
    twice = nx.MultiGraph([(0, 1, {"weight": 0.5}), (1, 0, {"weight": 0.4})])
    path = tmp_path / "w.graphml"
    nx.write_graphml(twice, path)
    with pytest.raises(TopologyError, match=r"two values of weight .* 0\.5 and 0\.4"):
        build_graph("graphml", path=str(path))
    with pytest.raises(TopologyError, match=r"two values of weight"):
        graph_section(twice)
    with pytest.raises(TopologyError, match=r"two values of weight"):
        build_graph("edges", nodes=2, edges="0-1:0.5 1-0:0.4")


@pytest.mark.parametrize("line", ["0 1 0.5 0.5", "0 1 1_0", "0 1 nan", "0 1 0x1p-1"])
def test_no_word_of_a_line_is_passed_over(line, tmp_path):
    path = tmp_path / "w.edges"
    path.write_text(f"0 2\n{line}\n")
    with pytest.raises(TopologyError, match="line 2 "):
        build_graph("edge_list", path=str(path))


def test_weights_that_are_words_are_refused(tmp_path):
    nx.write_graphml(nx.Graph([(0, 1, {"weight": "heavy"})]), tmp_path / "w.graphml")
    with pytest.raises(TopologyError, match="heavy"):
        mixing_matrix(build_graph("graphml", path=str(tmp_path / "w.graphml")), "given")


@pytest.mark.parametrize("suffix", [".csv", ".edges", ".graphml"])
def test_a_byte_order_mark_is_no_part_of_a_file(suffix, tmp_path):
    path = tmp_path / f"w{suffix}"
    family = {".csv": "matrix", ".edges": "edge_list", ".graphml": "graphml"}[suffix]
    write_matrix(mixing_matrix(nx.path_graph(4), "metropolis_hastings"), path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().removeprefix(b"4\n"))
    assert edge_array(build_graph(family, path=str(path))).tolist() == [[0, 1], [1, 2], [2, 3]]


def test_text_labels_are_in_natural_order(tmp_path):
    names = ["1", "01", "n2", "n02", "n2b", "n10", "n10a", "x"]
    path = tmp_path / "w.edges"
    path.write_text("".join(f"{i} {j}\n" for i, j in itertools.pairwise(names)))
    order = ["01", "1", "n02", "n2", "n2b", "n10", "n10a", "x"]
    steps = [sorted(map(order.index, step)) for step in itertools.pairwise(names)]
    assert edge_array(build_graph("edge_list", path=str(path))).tolist() == sorted(steps)
    assert graph_section(nx.Graph([("n1", "n10"), ("n10", "n2")]))["edges"] == "0-2 1-2"
