"""Pictures of the command ``topologies plot``."""

import re

import networkx as nx
import numpy as np
import pytest

from mpifed.testing import run_command
from topologies import MixingMatrix, build_graph, mixing_matrix


def plotted(tmp_path, *words):
    """The texts in a picture, in their order."""
    path = tmp_path / "picture.svg"
    assert run_command(["topologies", "plot", *words, "--output", path]) == 0
    assert path.stat().st_size > 3000
    return re.findall(r"<!-- (.*?) -->|<text[^>]*>(.*?)</text>", path.read_text())


def texts_of(tmp_path, *words):
    return ["".join(text) for text in plotted(tmp_path, *words)]


def test_a_graph_has_the_numbers_of_nodes_and_the_weights_of_edges(tmp_path):
    matrix = mixing_matrix(build_graph("erdos_renyi", 9, 1, p=0.5))
    texts = texts_of(tmp_path, "erdos_renyi:n=9,p=0.5", "--seed", "1")
    assert {*map(str, range(9)), *(f"{weight:.2g}" for weight in matrix.weights)} <= set(texts)
    assert texts_of(tmp_path, "one_peer_exponential:n=5")


@pytest.mark.parametrize("kind", ["graph", "heatmap", "rounds"])
def test_rounds_in_which_some_or_all_are_silent(tmp_path, kind):
    idle = MixingMatrix(3, np.array([[0, 1], [1, 2]]), np.array([0.5, 0.0]))
    for k, matrix in enumerate((MixingMatrix(3, np.zeros((0, 2)), np.zeros(0)), idle)):
        folder = tmp_path / str(k)
        folder.mkdir()
        matrix.save(folder / "w-1.npz")
        assert texts_of(tmp_path, f"periodic:n=3,path={folder}", "--kind", kind, "--rounds", "2")


def test_decay_and_rounds(tmp_path):
    words = ["ring", "base_k:n=9", "--n", "9", "--kind", "decay", "--rounds", "10"]
    texts = texts_of(tmp_path, *words)
    names = [text for text in texts if text.startswith(("ring", "base_k", "promised"))]
    assert names == ["ring · fmmc", "base_k:n=9", "promised by (p, τ)"]
    texts = texts_of(tmp_path, "base_k:n=9", "--kind", "rounds", "--rounds", "6")
    assert sum("round" in text for text in texts) == 6


@pytest.mark.parametrize("kind", ["graph", "heatmap", "spectrum", "decay", "rounds"])
def test_names_are_no_formulas(tmp_path, kind):
    nx.write_edgelist(nx.path_graph(4), tmp_path / "$x^$.edges", data=False)
    path = tmp_path / "$x^$.edges"
    words = [f"edge_list:path={path}", "--kind", kind]
    assert any("$x^$" in text for text in texts_of(tmp_path, *words))


def test_a_comparison_is_drawn(tmp_path):
    words = ["ring", "base_k:n=8", "--n", "8", "--plot", tmp_path / "comparison.svg"]
    assert run_command(["topologies", "compare", *words]) == 0
    assert "ring" in (tmp_path / "comparison.svg").read_text()


def test_gossip_moves_in_a_gif(tmp_path):
    from PIL import Image

    path = tmp_path / "gossip.gif"
    words = ["exponential:n=8", "--output", path, "--rounds", "3"]
    assert run_command(["topologies", "plot", *words]) == 0
    with Image.open(path) as picture:
        assert picture.n_frames == 4
    assert run_command(["topologies", "plot", *words, "--kind", "heatmap"]) == 2
