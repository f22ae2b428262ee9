"""Files that are none, and sizes that cannot be: one sentence each, before anything is made."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topologies.errors import TopologyError
from topologies.graphs.build import parse_graph
from topologies.graphs.files import edge_list
from topologies.links.network import read_network
from topologies.regular_files import open_regular, read_bytes

EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(tmp_path / name)
    with pytest.raises(OSError, match="null"):
        read_bytes("a\0b")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes"):
        read_bytes(tmp_path / "file", 4)


def test_a_file_larger_than_memory_is_refused_unread(tmp_path):
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 42)
    with pytest.raises(OSError, match=r"4\.4 TB of memory"):
        read_bytes(tmp_path / "sparse")


@pytest.mark.parametrize(
    "graph",
    [
        "ring:n=1000000000000",
        "torus:rows=10000000,cols=10000000",
        "erdos_renyi:n=1000000000000,p=0.5",
    ],
)
def test_graphs_larger_than_memory_are_refused_by_name(graph):
    name = graph.split(":")[0]
    with pytest.raises(TopologyError, match=rf"{name}.*(TB|PB|EB) of memory"):
        parse_graph(graph)


def test_numbers_that_only_python_reads_are_refused():
    for text in ("١٢", "1_0", "9" * 5000, "1e400"):
        with pytest.raises(TopologyError):
            parse_graph(f"ring:n={text}")


WORDS = st.sampled_from(
    ["0", "1", "2", "-1", "--5", "١٢", "9" * 5000, "nan", "1e999", "#", ",", "x"]
)
LINES = st.lists(st.lists(WORDS, max_size=4).map(" ".join), max_size=6).map("\n".join)


@EXAMPLES
@given(text=st.one_of(LINES, st.text(max_size=40)))
def test_any_edge_list_is_a_graph_or_a_sentence(text, tmp_path):
    path = tmp_path / "g.edges"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        graph = edge_list(path=str(path))
    except TopologyError:
        return
    assert sorted(graph) == list(range(len(graph)))


CELLS = st.sampled_from(["0", "1", "0.5", "-1", "inf", "nan", "1e999", "", "x", "١"])
TABLES = st.lists(st.lists(CELLS, max_size=3).map(",".join), max_size=3).map("\n".join)


@EXAMPLES
@given(text=TABLES)
def test_any_table_is_a_network_or_a_sentence(text, tmp_path):
    path = tmp_path / "delays.csv"
    path.write_text(text)
    try:
        network = read_network(path)
    except TopologyError:
        return
    assert np.isfinite(network.latency).all()
    assert network.latency.shape == (network.n, network.n)


VALUES = st.sampled_from(["0.5", "-1", "inf", "nan", "x", "1e999", ""])
GRAPHML = (
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    '<key id="a" for="edge" attr.name="latency" attr.type="string"/>'
    '<key id="b" for="node" attr.name="compute" attr.type="string"/>'
    '<graph edgedefault="undirected"><node id="1"><data key="b">{node}</data></node>'
    '<node id="2"/><edge source="1" target="2"><data key="a">{edge}</data></edge></graph></graphml>'
)


@EXAMPLES
@given(node=VALUES, edge=VALUES)
def test_any_attribute_of_a_network_is_a_number_or_refused(node, edge, tmp_path):
    path = tmp_path / "links.graphml"
    path.write_text(GRAPHML.format(node=node, edge=edge))
    try:
        network = read_network(path)
    except TopologyError:
        assert (node, edge) != ("0.5", "0.5")
        return
    assert np.isfinite(network.latency).all() and np.isfinite(network.compute).all()
