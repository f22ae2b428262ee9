import itertools

import networkx as nx
import numpy as np
import pytest
import yaml

import mpifed
import topologies
from mpifed.errors import InputError
from mpifed.testing import run_command
from topologies import (
    MixingMatrix,
    TopologyError,
    build_graph,
    build_schedule,
    edge_array,
    mixing_matrix,
    parse_graph,
)


def export(graph, path, *words):
    return run_command(["topologies", "export", graph, *words, "--output", path])


@pytest.mark.parametrize(
    ("suffix", "family"),
    [
        (".npz", "matrix"),
        (".csv", "matrix"),
        (".npy", "matrix"),
        (".edges", "edge_list"),
        (".graphml", "graphml"),
    ],
)
def test_a_matrix_comes_back_from_every_format(tmp_path, suffix, family):
    matrix = mixing_matrix(build_graph("erdos_renyi", 12, 1, p=0.5))
    file = tmp_path / f"w{suffix}"
    assert export("erdos_renyi:n=12,p=0.5", file, "--seed", "1") == 0
    again = mixing_matrix(build_graph(family, 12, path=str(file)), "given")
    if suffix in (".csv", ".npy"):  # which have no edges of weight zero
        assert again.to_dense() == pytest.approx(matrix.to_dense(), abs=1e-15)
    else:
        assert again == matrix


def test_directed_matrices_are_no_graphs(tmp_path):
    matrix = build_schedule("one_peer_exponential", 5).matrix(2)
    matrix.save(tmp_path / "w.npz")
    assert MixingMatrix.load(tmp_path / "w.npz") == matrix
    np.savetxt(tmp_path / "w.csv", matrix.to_dense(), delimiter=",")
    for name in ("w.npz", "w.csv"):
        with pytest.raises(TopologyError, match="directed"):
            build_graph("matrix", path=str(tmp_path / name))


def test_bad_matrices_are_refused_with_the_report(tmp_path):
    file = tmp_path / "w.csv"
    file.write_text("0.5,0.4\n0.4,0.5\n")
    with pytest.raises(TopologyError, match=r"w\.csv.*rows.*0\.1"):
        build_graph("matrix", path=str(file))
    file.write_text("one,two\n")
    with pytest.raises(TopologyError, match=r"w\.csv.*table"):
        build_graph("matrix", path=str(file))
    np.savetxt(file, np.eye(3), delimiter=",")
    with pytest.raises(TopologyError, match=r"\bn\b.*\b2\b.*w\.csv"):
        build_graph("matrix", 2, path=str(file))


def test_weights_of_a_file(tmp_path):
    file = tmp_path / "w.edges"
    file.write_text("0 1 0.5\n1 2 0.25\n")
    matrix = mixing_matrix(build_graph("edge_list", path=str(file)), "given")
    assert matrix.self_weights.tolist() == [0.5, 0.25, 0.75]
    file.write_text("0 1 0.75\n1 2 0.5\n")
    with pytest.raises(TopologyError, match=r"negative.*0\.25"):
        mixing_matrix(build_graph("edge_list", path=str(file)), "given")
    file.write_text("0 1 0.75\n1 2\n")
    with pytest.raises(TopologyError, match=r"weight.*\b1\b.*\b2\b"):
        mixing_matrix(build_graph("edge_list", path=str(file)), "given")
    file.write_text("0 1 heavy\n")
    with pytest.raises(TopologyError, match=r"line 1\b.*'0 1 heavy'"):
        build_graph("edge_list", path=str(file))
    with pytest.raises(TopologyError, match=r"weight.*\b0\b.*\b1\b.*edge_list.*graphml.*matrix"):
        mixing_matrix(nx.path_graph(3), "given")


def test_the_weight_of_a_self_loop_is_the_self_weight(tmp_path):
    path = tmp_path / "w.edges"
    path.write_text("0 1 0.5\n0 0 0.5\n1 2 0.25\n1 1 0.25\n2 2 0.75\n")
    right = mixing_matrix(build_graph("edge_list", path=str(path)), "given")
    assert right.self_weights.tolist() == [0.5, 0.25, 0.75]
    path.write_text("0 1 0.6\n0 0 0.9\n1 1 0.4\n")
    graph = build_graph("edge_list", path=str(path))
    with pytest.raises(TopologyError, match=r"0\.9.*node 0\b.*line 2\b.*1\.5"):
        mixing_matrix(graph, "given")
    assert mixing_matrix(graph, "uniform").to_dense().tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("suffix", ["graphml", "edges"])
def test_self_loops_without_lines(suffix, tmp_path):
    """In GraphML, and in edges written out, as a graph of Python is stored."""

    def weights_of(loop):
        graph = nx.Graph([(0, 1, {"weight": 0.6}), (0, 0, {"weight": loop})])
        section = {"name": "edges", "nodes": 2, "edges": f"0-1:0.6 0-0:{loop}"}
        if suffix == "graphml":
            nx.write_graphml(graph, tmp_path / "w.graphml")
            section = {"name": "graphml", "path": str(tmp_path / "w.graphml")}
        return mixing_matrix(build_graph(section.pop("name"), **section), "given")

    assert weights_of(0.4).weights.tolist() == [0.6]
    with pytest.raises(TopologyError, match=r"0\.9.*node 0\b.*1\.5"):
        weights_of(0.9)


def test_doubled_edges_must_agree(tmp_path):
    path = tmp_path / "w.edges"
    path.write_text("0 1 0.5\n1 2 0.25\n1 0 0.5\n0 1\n")
    assert build_graph("edge_list", path=str(path)).size("weight") == 0.75
    path.write_text("0 1 0.5\n1 2 0.25\n\n1 0 0.4\n")
    with pytest.raises(TopologyError, match=r"w\.edges.*weight.*0\.5.*0\.4.*\b1\b.*\b4\b"):
        build_graph("edge_list", path=str(path))
    twice = nx.MultiGraph([(0, 1, {"weight": 0.5}), (1, 0, {"weight": 0.4})])
    path = tmp_path / "w.graphml"
    nx.write_graphml(twice, path)
    with pytest.raises(TopologyError, match=r"w\.graphml.*weight.*0\.5.*0\.4"):
        build_graph("graphml", path=str(path))
    with pytest.raises(InputError, match=r"weight.*0\.5.*0\.4"):
        mpifed.run("synthetic-fedem", topology=twice, clients=2, output=tmp_path / "run")
    with pytest.raises(TopologyError, match=r"weight.*0\.5.*0\.4"):
        build_graph("edges", nodes=2, edges="0-1:0.5 1-0:0.4")


@pytest.mark.parametrize("line", ["0 1 0.5 0.5", "0 1 1_0", "0 1 nan", "0 1 0x1p-1"])
def test_no_word_of_a_line_is_passed_over(line, tmp_path):
    path = tmp_path / "w.edges"
    path.write_text(f"0 2\n{line}\n")
    with pytest.raises(TopologyError, match=r"line 2\b.*w\.edges"):
        build_graph("edge_list", path=str(path))


def test_weights_that_are_words_are_refused(tmp_path):
    nx.write_graphml(nx.Graph([(0, 1, {"weight": "heavy"})]), tmp_path / "w.graphml")
    with pytest.raises(TopologyError, match="heavy"):
        mixing_matrix(build_graph("graphml", path=str(tmp_path / "w.graphml")), "given")


@pytest.mark.parametrize("suffix", [".csv", ".edges", ".graphml"])
def test_a_byte_order_mark_is_no_part_of_a_file(suffix, tmp_path):
    path = tmp_path / f"w{suffix}"
    family = {".csv": "matrix", ".edges": "edge_list", ".graphml": "graphml"}[suffix]
    assert export("path:n=4", path, "--weights", "metropolis_hastings") == 0
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().removeprefix(b"4\n"))
    assert edge_array(build_graph(family, path=str(path))).tolist() == [[0, 1], [1, 2], [2, 3]]


def test_text_labels_are_in_natural_order(tmp_path):
    names = ["1", "01", "n2", "n02", "n2b", "n10", "n10a", "x"]
    path = tmp_path / "w.edges"
    path.write_text("".join(f"{i} {j}\n" for i, j in itertools.pairwise(names)))
    order = ["01", "1", "n02", "n2", "n2b", "n10", "n10a", "x"]
    steps = [sorted(map(order.index, step)) for step in itertools.pairwise(names)]
    assert edge_array(build_graph("edge_list", path=str(path))).tolist() == sorted(steps)
    graph = nx.Graph([("n1", "n10"), ("n10", "n2")])
    options = {"clients": 3, "rounds": 1, "data.n_test": 5, "output": tmp_path / "run"}
    result = mpifed.run("synthetic-fedem", topology=graph, **options)
    stored = yaml.safe_load((result.directory / "config.yaml").read_text())
    assert stored["exchange"]["topology"]["edges"] == "0-2 1-2"


def test_an_adjacency_matrix_is_a_graph_in_every_form(tmp_path):
    ring = nx.cycle_graph(6)
    array = nx.to_numpy_array(ring, dtype=int)
    rows = [",".join(map(str, row)) for row in array.tolist()]
    texts = {
        "plain": rows,
        "names": ["a,b,c,d,e,f", *rows],
        "index": [
            ",a,b,c,d,e,f",
            *(f"{name},{row}" for name, row in zip("abcdef", rows, strict=True)),
        ],
        "pandas": [",0,1,2,3,4,5", *(f"{k},{row}" for k, row in enumerate(rows))],
    }
    for name, lines in texts.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    np.save(tmp_path / "array.npy", array)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 5
    for path in paths:
        read = build_graph("matrix", path=str(path))
        assert nx.utils.graphs_equal(nx.Graph(read.edges), nx.Graph(ring.edges)), path
        assert parse_graph(str(path))[0] == "matrix"


def test_a_directed_adjacency_matrix_is_refused_by_its_arc(tmp_path):
    array = np.zeros((3, 3))
    array[0, 1] = array[0, 2] = array[1, 2] = array[2, 1] = array[2, 0] = 1
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(TopologyError, match="between 0 and 1"):
        build_graph("matrix", path=str(tmp_path / "a.npy"))


def test_edge_lists_of_networkx_are_read_with_their_weights(tmp_path):
    graph = nx.Graph([(0, 1, {"weight": 0.25}), (1, 2, {"weight": 0.5, "colour": "red"}), (2, 0)])
    nx.write_edgelist(graph, tmp_path / "g.edgelist")
    read = build_graph("edge_list", path=str(tmp_path / "g.edgelist"))
    weights = {tuple(sorted(ends)): w for *ends, w in read.edges(data="weight")}
    assert weights == {(0, 1): 0.25, (1, 2): 0.5, (0, 2): None}


def test_an_exported_array_is_the_matrix(tmp_path):
    words = ["export", "torus:rows=3,cols=4", "--output", tmp_path / "w.npy"]
    assert run_command(["topologies", *words]) == 0
    w = mixing_matrix(build_graph("torus", rows=3, cols=4), "fmmc")
    assert np.abs(np.load(tmp_path / "w.npy") - w.to_dense()).max() < 1e-15


def test_measures_take_arrays():
    w = mixing_matrix(build_graph("ring", 8), "metropolis_hastings")
    for measure in (topologies.slem, topologies.mixing_time, topologies.effective_neighbours):
        assert measure(w.to_dense()) == pytest.approx(measure(w), rel=1e-12)
    assert topologies.consensus_rate(w.to_dense()).p == pytest.approx(1 - topologies.slem(w) ** 2)
    assert topologies.communication(w.to_dense()).messages == 16
    assert topologies.stationary_distribution(w.to_dense()) == pytest.approx(np.full(8, 1 / 8))


@pytest.mark.parametrize("key", ["topology", "exchange.topology"])
def test_a_run_takes_the_path_of_a_graph(tmp_path, key):
    nx.write_edgelist(nx.cycle_graph(4), tmp_path / "ring.txt", data=False)
    words = {key: str(tmp_path / "ring.txt"), "exchange.weights": "metropolis_hastings"}
    if key != "topology":
        words["exchange"] = "gossip"
    options = {"clients": 4, "rounds": 1, "data.n_test": 5, "data.dimension": 3}
    result = mpifed.run("synthetic-fedem", output=tmp_path / "run", **options, **words)
    config = yaml.safe_load((result.directory / "config.yaml").read_text())
    assert config["exchange"]["topology"]["name"] == "edge_list"
