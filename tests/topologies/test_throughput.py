"""Networks of links: cycle times of overlays, rounds at a server, and files of networks."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies import TopologyError, build_graph, build_schedule
from topologies.links.network import (
    Links,
    Network,
    after_gossip,
    at_sites,
    great_circle,
    latency_over,
    network_on,
    one_site,
    read_network,
    server_round,
)
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
        "delays.csv": "latency.*-1",
        "wide.csv": r"\(1, 2\).*n x n",
        "words.csv": "table",
        "apart.graphml": "connected",
        "none.csv": r"none\.csv",
        "none.txt": r"none\.txt.*\.csv.*\.graphml",
    }.items():
        with pytest.raises(TopologyError, match=words):
            read_network(tmp_path / name)


def network_of_timing(n, seed):
    random = np.random.default_rng(seed)
    latency = 0.05 * random.random((n, n))
    np.fill_diagonal(latency, 0)
    bandwidth = 1e6 * (1 + random.random((n, n)))
    rates = 1e6 * (1 + random.random((2, n)))
    return Network(latency, bandwidth, *rates, 0.1 * random.random(n))


def starts(overlay, net, bits, steps, rounds):
    """The starts of all rounds of an overlay, by the clock: (rounds + 1, n)."""
    links, work = Links(net, np.arange(net.n)), steps * net.compute
    senders, receivers = np.array(list(overlay.edges)).reshape(-1, 2).T
    travel = links.travel(receivers, senders, bits)
    found = [np.zeros(net.n)]
    for _ in range(rounds):
        found.append(after_gossip(found[-1], work, receivers, senders, travel))
    return np.array(found)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10**6), st.sampled_from(["mst", "delta_mbst", "ring"]))
def test_the_clock_of_an_overlay_grows_by_its_cycle_time(n, seed, name):
    net = network_of_timing(n, seed)
    overlay = design(name, net, message_bits=1e5, local_steps=2)
    rounds = starts(overlay, net, 1e5, 2, 2000)
    # A node may follow a slightly faster cycle for long, but no node falls behind by more than
    # a path takes.
    grown = (rounds[2000] - rounds[1000]) / 1000
    assert grown == pytest.approx(cycle_time(overlay, net, message_bits=1e5, local_steps=2), 2e-3)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10**6))
def test_a_round_at_a_server_is_the_cycle_of_its_star(n, seed):
    net = network_of_timing(n, seed)
    overlay = design("star", net, message_bits=1e5, local_steps=3)
    links, everyone = Links(net, np.arange(n)), np.arange(n)
    server = overlay.graph["server"]
    seconds = server_round(links, everyone, 3 * net.compute, 1e5, 1e5, server)
    assert seconds == pytest.approx(cycle_time(overlay, net, message_bits=1e5, local_steps=3), 1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_rounds_are_the_longest_walks(n, seed):
    random = np.random.default_rng(seed)
    arcs = [(i, j) for i in range(n) for j in range(n) if i != j and random.random() < 0.4]
    senders, receivers = np.array(arcs, dtype=int).reshape(-1, 2).T
    work, travel = random.random((3, n)), random.random(len(arcs))
    start = np.zeros(n)
    for k in range(3):
        start = after_gossip(start, work[k], receivers, senders, travel)
    step = {(i, i): 0.0 for i in range(n)} | dict(zip(arcs, travel, strict=True))
    for end in range(n):
        walks = itertools.product(range(n), repeat=3)
        lengths = [
            sum(work[k, i] + step[i, j] for k, (i, j) in enumerate(itertools.pairwise([*w, end])))
            for w in walks
            if all(hop in step for hop in itertools.pairwise([*w, end]))
        ]
        assert start[end] == pytest.approx(max(lengths), 1e-12)


def test_designs_are_topologies_of_a_run(tmp_path):
    latency = network_of_timing(7, 4).latency
    np.savetxt(tmp_path / "links.csv", latency, delimiter=",")
    path = str(tmp_path / "links.csv")
    net = read_network(path)
    for name in ("mst", "delta_mbst"):
        graph = build_graph(name, path=path)
        assert nx.is_tree(graph)
        overlay = design(name, net, message_bits=8 * 4e6)
        assert {frozenset(edge) for edge in graph.edges} == {
            frozenset(arc) for arc in overlay.edges
        }
        with pytest.raises(TopologyError, match=rf"{name}.*\bn\b.*\b9\b.*\b7 nodes"):
            build_graph(name, 9, path=path)
    matrix = build_schedule("tour", 7, path=path).matrix(1)
    arcs = {(j, i) for i, j in matrix.edges.tolist()}
    assert arcs == set(design("ring", net, message_bits=8 * 4e6).edges)
    assert (matrix.weights == 0.5).all() and matrix.doubly_stochastic
    with pytest.raises(TopologyError, match=r"tour.*\bn\b.*\b9\b.*\b7 nodes"):
        build_schedule("tour", 9, path=path)


def test_a_server_outside_reaches_all_alike():
    links = one_site(4, latency=0.1, bandwidth=1e6, upload=1e5)
    seconds = server_round(links, np.array([0, 2]), np.array([1.0, 2.0]), 1e6, 1e5, None)
    assert seconds == pytest.approx(2 + 0.1 + 1 + 0.1 + 1)
    assert server_round(links, np.array([], int), np.array([]), 1, 1, None) == 0


def test_access_links_are_shared():
    links = one_site(3, upload=1e3, download=1e6)
    one = links.travel(np.array([1]), np.array([0]), 1e3)
    two = links.travel(np.array([1, 2]), np.array([0, 0]), 1e3)
    assert one.tolist() == [1.0]
    assert two.tolist() == [2.0, 2.0]


def test_clients_are_spread_over_sites():
    sites = at_sites(network_of_timing(3, 0), 7)
    assert sites.site.tolist() == [0, 0, 0, 1, 1, 2, 2]
    with pytest.raises(TopologyError, match=r"3 sites.*2 clients"):
        at_sites(network_of_timing(3, 0), 2)


GML = """graph [
  node [ id 0 label "Zurich" Latitude 47.37 Longitude 8.55 ]
  node [ id 1 label "Geneva" Latitude 46.2 Longitude 6.14 ]
  node [ id 7 label "Zurich" ]
  edge [ source 0 target 1 ]
  edge [ source 1 target 7 distance 200.0 ]
]"""


def test_a_map_with_coordinates_has_latencies(tmp_path):
    (tmp_path / "map.gml").write_text(GML)
    net = read_network(tmp_path / "map.gml")
    apart = great_circle((47.37, 8.55), (46.2, 6.14))
    assert apart == pytest.approx(225, abs=3)
    assert net.latency[0, 1] == pytest.approx(0.0085e-3 * apart + 0.004)
    assert net.latency[0, 2] == pytest.approx(latency_over(apart) + latency_over(200))
    assert np.isinf(net.bandwidth).all()


def test_graphml_with_coordinates_keeps_given_latencies(tmp_path):
    graph = nx.Graph([(0, 1), (1, 2)])
    for node, longitude in enumerate((0, 10, 20)):
        graph.nodes[node].update(latitude=0, longitude=longitude)
    graph.edges[0, 1]["latency"] = 0.5
    nx.write_graphml(graph, tmp_path / "map.graphml")
    net = read_network(tmp_path / "map.graphml")
    assert net.latency[0, 1] == 0.5
    assert net.latency[1, 2] == pytest.approx(latency_over(6371 * math.radians(10)))
