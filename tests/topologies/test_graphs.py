import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies import FAMILIES, TopologyError, build_graph, check_graph_parameters, parse_graph

GENERATED = [
    name
    for name, family in FAMILIES.items()
    if not any(parameter.required for parameter in family.parameters.values())
]
SIZED = {
    "torus",
    "hypercube",
    "random_regular",
    "small_world",
    "barbell",
    "karate",
    "davis",
    "florentine",
}


@settings(deadline=None)
@given(st.sampled_from(GENERATED), st.integers(1, 33), st.integers(0, 5))
def test_every_family_gives_a_plain_connected_graph_or_refuses_the_size(name, n, seed):
    try:
        graph = build_graph(name, n, seed, **({"p": 0.5} if name == "erdos_renyi" else {}))
    except TopologyError as error:
        assert name in str(error)
        assert name in SIZED
        return
    assert list(graph) == list(range(n))
    assert nx.is_connected(graph)
    assert nx.number_of_selfloops(graph) == 0
    assert graph.graph["family"] == name
    assert graph.graph["tries"] >= 1
    assert check_graph_parameters(name, n, graph.graph["params"])


def test_the_first_erdos_renyi_draw_is_the_one_of_networkx():
    graph = build_graph("erdos_renyi", 20, 1234, p=0.5)
    assert set(graph.edges) == set(nx.binomial_graph(20, 0.5, seed=1234).edges)
    assert graph.number_of_edges() == 102
    assert graph.graph == {
        "family": "erdos_renyi",
        "params": {"p": 0.5},
        "seed": 1234,
        "tries": 1,
        "on_disconnected": "resample",
    }


def disconnected_seed(n, p):
    return next(s for s in range(1000) if not nx.is_connected(nx.binomial_graph(n, p, seed=s)))


def test_a_disconnected_draw_is_drawn_again_from_the_same_generator():
    seed = disconnected_seed(10, 0.25)
    graph = build_graph("erdos_renyi", 10, seed, p=0.25)
    assert nx.is_connected(graph)
    assert graph.graph["tries"] > 1
    assert set(graph.edges) == set(build_graph("erdos_renyi", 10, seed, p=0.25).edges)


def test_a_disconnected_draw_can_be_refused_kept_or_augmented():
    seed = disconnected_seed(10, 0.25)
    with pytest.raises(TopologyError, match="disconnected"):
        build_graph("erdos_renyi", 10, seed, on_disconnected="error", p=0.25)
    with pytest.warns(UserWarning, match="components"):
        kept = build_graph("erdos_renyi", 10, seed, on_disconnected="keep", p=0.25)
    assert set(kept.edges) == set(nx.binomial_graph(10, 0.25, seed=seed).edges)
    joined = build_graph("erdos_renyi", 10, seed, on_disconnected="augment", p=0.25)
    assert nx.is_connected(joined)
    components = nx.number_connected_components(kept)
    assert joined.graph["augmented"] == components - 1
    assert set(kept.edges) < set(joined.edges)


def test_p_zero_must_be_asked_for():
    with pytest.raises(TopologyError, match="keep"):
        build_graph("erdos_renyi", 5, 0, p=0)
    with pytest.warns(UserWarning, match="disconnected"):
        assert build_graph("erdos_renyi", 5, 0, on_disconnected="keep", p=0).number_of_edges() == 0
    assert build_graph("erdos_renyi", 1, 0, p=0).number_of_nodes() == 1


def test_a_seed_is_recorded_where_none_was_given():
    graph = build_graph("random_regular", 12, degree=3)
    again = build_graph("random_regular", 12, graph.graph["seed"], degree=3)
    assert set(graph.edges) == set(again.edges)
    assert build_graph("ring", 5).graph["seed"] is None


@pytest.mark.parametrize(
    "name", ["ring", "path", "complete", "star", "exponential", "torus", "hypercube"]
)
def test_one_node_has_no_edge(name):
    assert build_graph(name, 1).number_of_edges() == 0


def test_shapes():
    assert dict(build_graph("star", 6).degree) == {0: 5, **dict.fromkeys(range(1, 6), 1)}
    assert set(dict(build_graph("torus", rows=2, cols=5).degree).values()) == {3}
    torus = build_graph("torus", rows=3, cols=4)
    assert set(torus[0]) == {1, 3, 4, 8}
    assert build_graph("torus", 12).number_of_edges() == torus.number_of_edges() == 24
    cube = build_graph("hypercube", 16)
    assert all(bin(i ^ j).count("1") == 1 for i, j in cube.edges)
    assert build_graph("hypercube", dimension=3).number_of_nodes() == 8
    assert set(build_graph("exponential", 9)[0]) == {1, 2, 4, 8, 7, 5}
    assert set(dict(build_graph("random_regular", 10, 3, degree=3).degree).values()) == {3}
    barbell = build_graph("barbell", 9)
    assert (barbell.number_of_nodes(), barbell.number_of_edges()) == (9, 14)


@pytest.mark.parametrize(
    ("name", "n", "params", "words"),
    [
        ("erdos_reny", 5, {}, "'erdos_reny'.*'erdos_renyi'"),
        ("erdos_renyi", 5, {"P": 0.5}, r"'erdos_renyi\.P'.*\bp\b"),
        ("erdos_renyi", 5, {"p": 1.5}, r"\bp\b.*1\.5"),
        (
            "erdos_renyi",
            5,
            {"on_disconnected": "redraw"},
            "on_disconnected.*'redraw'.*resample, error, keep, augment",
        ),
        ("ring", 0, {}, r"ring.*\bn\b.*\b0\b"),
        ("torus", 8, {"rows": 3, "cols": 3}, r"torus.*\bn\b.*\b8\b.*\b9\b"),
        ("hypercube", 12, {}, r"hypercube.*\b12\b.*\b8\b.*\b16\b"),
        ("random_regular", 5, {"degree": 3}, r"degree.*\b3\b.*\bn\b.*\b5\b"),
    ],
)
def test_bad_input_is_named_by_both_the_check_and_the_builder(name, n, params, words):
    with pytest.raises(TopologyError, match=words):
        check_graph_parameters(name, n, params)
    with pytest.raises(TopologyError, match=words):
        build_graph(name, n, **params)


def test_specifications():
    assert parse_graph("erdos_renyi:n=100,p=0.5") == (
        "erdos_renyi",
        {"p": 0.5, "n": 100, "on_disconnected": "resample"},
    )
    name, arguments = parse_graph("erdos_renyi:n=8,seed=3,on_disconnected=keep,p=0.1")
    assert arguments["seed"] == 3
    assert arguments["on_disconnected"] == "keep"
    name, arguments = parse_graph("torus:rows=2,cols=3")
    assert build_graph(name, **arguments).number_of_nodes() == 6


def test_edge_list_files(tmp_path):
    file = tmp_path / "g.edges"
    file.write_text("# a comment\n1 2\n2 3 0.5\n3 1 # closing\n\n")
    graph = build_graph("edge_list", path=str(file))
    assert set(graph.edges) == {(0, 1), (1, 2), (0, 2)}
    with pytest.warns(UserWarning, match="disconnected"):
        wide = build_graph("edge_list", 5, path=str(file), on_disconnected="keep")
    assert wide.number_of_nodes() == 5
    assert set(wide.edges) == {(1, 2), (2, 3), (1, 3)}
    with pytest.raises(TopologyError, match=r"\bn\b.*\b2\b.*\b3 nodes"):
        build_graph("edge_list", 2, path=str(file))
    with pytest.raises(TopologyError, match=r"names 3 nodes.*is 5.*n = 3"):
        build_graph("edge_list", 5, path=str(file))


def test_graphml_files(tmp_path):
    file = tmp_path / "g.graphml"
    nx.write_graphml(nx.relabel_nodes(nx.path_graph(12), str), file)
    assert set(build_graph("graphml", path=str(file)).edges) == set(nx.path_graph(12).edges)
    nx.write_graphml(nx.path_graph(3, create_using=nx.DiGraph), file)
    with pytest.raises(TopologyError, match="directed"):
        build_graph("graphml", path=str(file))
    file.write_text("no xml")
    with pytest.raises(TopologyError, match=r"g\.graphml'.*graphml"):
        build_graph("graphml", path=str(file))


def wheel(n, spokes, seed=None):
    graph = nx.cycle_graph(n)
    graph.add_edges_from((0, int(i)) for i in np.arange(2, 2 + spokes))
    return graph


def digraph(n):
    return nx.path_graph(n, create_using=nx.DiGraph)


def test_a_users_own_family():
    graph = build_graph(f"{__name__}:wheel", 8, 5, spokes=2)
    assert graph.number_of_edges() == 10
    assert graph.graph["params"] == {"spokes": 2}
    assert graph.graph["seed"] == 5
    with pytest.raises(TopologyError, match="undirected"):
        build_graph(f"{__name__}:digraph", 4)


def test_as_many_draws_are_connected_as_there_are_connected_graphs():
    # 728 of the 1024 labelled graphs on five nodes are connected (OEIS A001187).
    first = [build_graph("erdos_renyi", 5, seed, p=0.5).graph["tries"] == 1 for seed in range(1000)]
    share = 728 / 1024
    assert abs(np.mean(first) - share) < 4 * np.sqrt(share * (1 - share) / 1000)


@pytest.mark.parametrize(("name", "nodes", "edges"), [("karate", 34, 78), ("davis", 32, 89)])
def test_social_graphs_have_their_own_size(name, nodes, edges):
    for n in (None, nodes):
        graph = build_graph(name, n)
        assert (len(graph), graph.number_of_edges()) == (nodes, edges)
    assert not any("weight" in attributes for _, _, attributes in graph.edges(data=True))
    with pytest.raises(TopologyError, match=rf"{name}.*\bn\b.*\b10\b.*\b{nodes}\b"):
        build_graph(name, 10)
    assert parse_graph(name)[1] == {"on_disconnected": "resample"}


def test_florentine_marriages():
    graph = build_graph("florentine")
    assert (len(graph), graph.number_of_edges()) == (15, 20)
    assert max(degree for _, degree in graph.degree) == 6  # the Medici


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5))
def test_a_tree_has_few_children_and_little_depth(n, branching):
    graph = build_graph("tree", n, branching=branching)
    assert nx.is_tree(graph)
    below = [sum(j > i for j in graph[i]) for i in graph]
    assert max(below) <= branching
    assert sum(0 < children < branching for children in below) <= 1


def test_geometric_edges_are_the_near_pairs():
    graph = build_graph("geometric", 40, seed=3, radius=0.35)
    place = np.array([[graph.nodes[i]["x"], graph.nodes[i]["y"]] for i in range(40)])
    apart = np.linalg.norm(place[:, None] - place, axis=-1)
    near = {(i, j) for i in range(40) for j in range(i + 1, 40) if apart[i, j] <= 0.35}
    assert {(min(edge), max(edge)) for edge in graph.edges} == near
    for i, j, distance in graph.edges(data="distance"):
        assert distance == pytest.approx(apart[i, j], abs=1e-15)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.sampled_from(["ring", "complete"]))
def test_cliques_are_joined_by_single_edges(n, size, between):
    graph = build_graph("cliques", n, size=size, between=between)
    groups = np.array_split(np.arange(n), -(-n // size))
    within = sum(len(group) * (len(group) - 1) // 2 for group in groups)
    k = len(groups)
    links = k * (k - 1) // 2 if between == "complete" or k <= 3 else k
    assert graph.number_of_edges() == within + links
    assert all(len(group) <= size for group in groups)
