"""Files that are none, and sizes that cannot be: one sentence each, before anything is made."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpifed.testing import run_command
from topologies import TopologyError, build_graph, parse_graph

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
        with pytest.raises(TopologyError, match="regular file"):
            build_graph("edge_list", path=str(tmp_path / name))
    with pytest.raises(TopologyError, match="null"):
        build_graph("edge_list", path="a\0b")


def test_a_file_larger_than_memory_is_refused_unread(tmp_path):
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 42)
    with pytest.raises(TopologyError, match=r"sparse.*TB\b"):
        build_graph("edge_list", path=str(tmp_path / "sparse"))


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
    with pytest.raises(TopologyError, match=rf"{name}.*(TB|PB|EB)\b"):
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
        graph = build_graph("edge_list", path=str(path))
    except TopologyError:
        return
    assert sorted(graph) == list(range(len(graph)))


def throughput(path, capsys):
    """What the command says of a network; None where it is refused in a sentence."""
    capsys.readouterr()
    code = run_command(["topologies", "throughput", path, "--overlays", "star", "--json"])
    out, err = capsys.readouterr()
    if code:
        assert (code, out, err.count("\n")) == (2, "", 1)
        return None
    return json.loads(out)


CELLS = st.sampled_from(["0", "1", "0.5", "-1", "inf", "nan", "1e999", "", "x", "١"])
TABLES = st.lists(st.lists(CELLS, max_size=3).map(",".join), max_size=3).map("\n".join)


@EXAMPLES
@given(text=TABLES)
def test_any_table_is_a_network_or_a_sentence(text, tmp_path, capsys):
    path = tmp_path / "delays.csv"
    path.write_text(text)
    records = throughput(path, capsys)
    assert records is None or all(np.isfinite(record["cycle_time"]) for record in records)


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
def test_any_attribute_of_a_network_is_a_number_or_refused(node, edge, tmp_path, capsys):
    path = tmp_path / "links.graphml"
    path.write_text(GRAPHML.format(node=node, edge=edge))
    records = throughput(path, capsys)
    if records is None:
        assert (node, edge) != ("0.5", "0.5")
    else:
        assert all(np.isfinite(record["cycle_time"]) for record in records)
