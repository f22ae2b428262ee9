import itertools
import json

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies import TopologyError
from topologies.links.network import Network, network_on, read_network
from topologies.links.overlays import (
    OVERLAYS,
    cycle_time,
    delays,
    design,
    maximum_cycle_mean,
    ring,
    star,
)


def network(n, seed=0, bandwidth=1e9, access=np.inf, compute=0.01):
    points = np.random.default_rng(seed).random((n, 2))
    latency = 0.05 * np.linalg.norm(points[:, None] - points, axis=2)
    rates = np.full(n, float(access))
    return Network(latency, np.full((n, n), bandwidth), rates, rates, np.full(n, compute))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_karp_finds_the_largest_cycle_mean(n, seed):
    random = np.random.default_rng(seed)
    table = random.random((n, n))
    table[random.random((n, n)) < 0.4] = np.inf
    means = [-np.inf]
    for size in range(1, n + 1):
        for cycle in itertools.permutations(range(n), size):
            arcs = [table[a, b] for a, b in itertools.pairwise([*cycle, cycle[0]])]
            if np.isfinite(arcs).all():
                means.append(np.mean(arcs))
    assert maximum_cycle_mean(table) == pytest.approx(max(means))


def test_delays_share_the_access():
    net = Network(
        np.full((3, 3), 0.1),
        np.full((3, 3), 1e6),
        np.array([1e6, 1e3, 1e6]),
        np.array([1e6, 1e6, 1e3]),
        np.array([0.2, 0.3, 0.4]),
    )
    table = delays(nx.DiGraph([(0, 1), (0, 2), (1, 2)]), net, message_bits=1000, local_steps=2)
    assert table[0, 1] == pytest.approx(2 * 0.2 + 0.1 + 1000 / 5e5)
    assert table[0, 2] == pytest.approx(2 * 0.2 + 0.1 + 1000 / 500)
    assert table[1, 2] == pytest.approx(2 * 0.3 + 0.1 + 1000 / 500)
    assert table[1, 1] == pytest.approx(0.6)
    assert table[2, 0] == np.inf


def test_cycle_times_by_hand():
    net = network(4, compute=0.5, bandwidth=1e3)
    tour = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0)])
    steps = [net.latency[i, j] + 1.5 for i, j in tour.edges]
    assert cycle_time(tour, net, message_bits=1000) == pytest.approx(np.mean(steps))
    pair = nx.DiGraph([(0, 1), (1, 0)])
    assert cycle_time(pair, network(2, compute=0.5), message_bits=0) == pytest.approx(
        0.5 + network(2).latency[0, 1]
    )
    hub = star(net, message_bits=1000)
    centre = hub.graph["server"]
    farthest = max(net.latency[centre])
    assert cycle_time(hub, net, message_bits=1000) == pytest.approx(0.5 + 2 * (farthest + 1))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 12])
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_is_strongly_connected(name, n):
    overlay = design(name, network(n), message_bits=1e6)
    assert sorted(overlay) == list(range(n))
    assert nx.is_strongly_connected(overlay)
    assert cycle_time(overlay, network(n), message_bits=1e6) >= 0.01
    expected = {"ring": n if n > 2 else 2 * (n - 1)}.get(name, 2 * (n - 1))
    assert overlay.number_of_edges() == expected


def test_slow_access_favours_small_degrees():
    slow = network(15, access=1e7)
    times = {
        name: cycle_time(design(name, slow, message_bits=1e7), slow, message_bits=1e7)
        for name in OVERLAYS
    }
    assert times["ring"] < times["delta_mbst"] <= times["mst"] < times["star"]


def test_the_spanning_tree_is_best_among_trees_on_fast_access():
    net = network(6)
    best = cycle_time(design("mst", net, message_bits=1e3), net, message_bits=1e3)
    for tree in nx.nonisomorphic_trees(6):
        both = tree.to_directed()
        assert cycle_time(both, net, message_bits=1e3) >= best - 1e-12


def test_the_ring_takes_the_faster_direction():
    net = network(8)
    tour = ring(net, message_bits=1e6)
    assert set(dict(tour.out_degree).values()) == {1}
    assert cycle_time(tour, net, message_bits=1e6) <= cycle_time(
        tour.reverse(), net, message_bits=1e6
    )


def test_an_underlay_is_routed_by_latency():
    underlay = nx.Graph()
    underlay.add_node("a", upload=5.0, compute=0.25)
    underlay.add_edge("a", "b", latency=1.0, bandwidth=10.0)
    underlay.add_edge("b", "c", latency=1.0, bandwidth=20.0)
    underlay.add_edge("a", "c", latency=3.0, bandwidth=99.0)
    net = network_on(underlay)
    assert net.latency[0].tolist() == [0, 1, 2]
    assert net.bandwidth[0, 1:].tolist() == [10, 10]
    assert (net.upload[0], net.upload[1], net.compute[0]) == (5, np.inf, 0.25)


def test_networks_from_files(tmp_path):
    table = tmp_path / "delays.csv"
    table.write_text("0,1,2\n1,0,3\n2,3,0\n")
    assert read_network(table).latency[2, 1] == 3
    underlay = nx.path_graph(3)
    nx.set_edge_attributes(underlay, 0.5, "latency")
    nx.write_graphml(underlay, tmp_path / "links.graphml")
    assert read_network(tmp_path / "links.graphml").latency[0, 2] == 1
    nx.write_graphml(nx.empty_graph(2), tmp_path / "apart.graphml")
    table.write_text("0,-1\n1,0\n")
    (tmp_path / "wide.csv").write_text("0,1\n")
    (tmp_path / "words.csv").write_text("a,b\n")
    for name, words in {
        "delays.csv": "latency is -1",
        "wide.csv": "not n x n",
        "words.csv": "is not a table of numbers",
        "apart.graphml": "not connected",
        "none.csv": "cannot read",
        "none.txt": "must end in",
    }.items():
        with pytest.raises(TopologyError, match=words):
            read_network(tmp_path / name)
    with pytest.raises(TopologyError, match="did you mean 'star'"):
        design("stars", network(3), message_bits=1)
    assert json.dumps(list(OVERLAYS))


ODD = st.sampled_from([0.0, 1e-320, 1.0, 1e9, 1e280, 1e295, 1e307, 1.7e308])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(latency=ODD, compute=ODD, bandwidth=ODD, access=ODD, size=ODD, steps=st.integers(1, 2**63))
def test_any_delays_give_finite_cycle_times_or_a_sentence(
    latency, compute, bandwidth, access, size, steps
):
    n = 4
    rates = np.full(n, access or np.inf)
    between = np.full((n, n), bandwidth or np.inf)
    links = Network(np.full((n, n), latency), between, rates, rates, np.full(n, compute))
    cost = {"message_bits": size, "local_steps": steps}
    for name in OVERLAYS:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            try:
                seconds = cycle_time(design(name, links, **cost), links, **cost)
            except TopologyError as error:
                assert "above 1e+290 seconds" in str(error)
                with np.errstate(over="ignore"):
                    slowest = steps * compute + latency + n * size / min(rates[0], between[0, 0])
                assert not slowest < 1e289
                continue
        assert 0 <= seconds < np.inf
