import os

import networkx as nx
import numpy as np
import pytest

from topologies import TopologyError, build_graph, mixing_matrix
from topologies.__main__ import main, write_matrix
from topologies.graphs.files import read_matrix
from topologies.inputs import replacing
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
    with pytest.raises(TopologyError, match=r"line 1 .* has 'heavy'"):
        build_graph("edge_list", path=str(file))
    with pytest.raises(TopologyError, match="weight on each edge"):
        mixing_matrix(nx.path_graph(3), "given")


WRITTEN = [
    ["export", "ring:n=4", "--output", "w.npz"],
    ["compare", "ring:n=4", "--csv", "t.csv"],
    ["gossip", "ring:n=4", "--rounds", "2", "--csv", "g.csv"],
]


@pytest.mark.parametrize("words", WRITTEN, ids=" ".join)
def test_nothing_but_a_regular_file_is_replaced(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    precious, target = tmp_path / "precious", tmp_path / words[-1]
    precious.write_text("kept")
    for plant in (
        lambda: target.symlink_to(precious),
        lambda: target.symlink_to("nowhere"),
        lambda: os.mkfifo(target),
        lambda: (target.mkdir(), (target / "file").touch()),
    ):
        plant()
        assert main(words) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert target.name in line and line.startswith("topologies: ")
        if target.is_dir():
            (target / "file").unlink()
            target.rmdir()
        else:
            target.unlink()
    assert precious.read_text() == "kept"
    # What was there, and what a killed process has left, is replaced; nothing else remains.
    if target.suffix:
        target.write_text("old")
        (tmp_path / f".{target.name}.partial").symlink_to(precious)
    assert main(words) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["precious", target.name])
    assert precious.read_text() == "kept" and not target.is_symlink()
    assert target.is_dir() or target.read_bytes() != b"old"


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path):
    path = tmp_path / "w.npz"
    path.write_text("old")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"half of the n")
        raise KeyError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
