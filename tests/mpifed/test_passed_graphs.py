"""Graphs, weights and schedules that a Python program passes to ``mpifed.run``."""

from __future__ import annotations

import subprocess
import sys

import mistaken_modules as modules
import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import yaml
from on_ranks import SMALL

import mpifed
import topologies
from mpifed import message
from mpifed.errors import InputError

N = SMALL["clients"]
W = topologies.mixing_matrix(nx.cycle_graph(N), "metropolis_hastings").to_dense()
SHIFT = np.eye(N) / 2 + np.roll(np.eye(N), 1, axis=0) / 2


def in_turn(n, round, share=0.5):
    """A pair of neighbours in each round, another one in the next."""
    matrix = np.eye(n)
    pair = [round % n, (round + 1) % n]
    matrix[np.ix_(pair, pair)] = [[1 - share, share], [share, 1 - share]]
    return matrix


def graphs_in_turn(n, round):
    return nx.path_graph(n) if round % 2 else nx.cycle_graph(n)


def failing(n, round):
    return [][round]


def not_square(n, round):
    return np.ones((n, 2)) / 2


def mass_lost(n, round):
    return np.eye(n) / 2


def own_graph(n):
    return nx.star_graph(n - 1)


class Halves(message.Compressor):
    """Numbers of 16 bits."""

    is_unbiased = False

    def contraction(self, size):
        return 1 - 2.0**-16

    def bits(self, size, itemsize, draws, ids, purpose="compression"):
        return np.full(len(ids), 16 * size)

    def __call__(self, rows, draws, ids, purpose="compression"):
        return rows.bfloat16().to(rows.dtype)


def run(tmp_path, name="run", **given):
    options = {**SMALL, "rounds": 2, "local.lr": 0.05, **given}
    return mpifed.run("synthetic-fedem", output=tmp_path / name, **options)


def digest(result):
    return result.summary["state_digest"]


def test_a_networkx_graph_is_a_topology(tmp_path):
    labelled = nx.relabel_nodes(nx.cycle_graph(N), dict(enumerate("abcdefg")))
    rule = {"weights": "metropolis_hastings"}
    passed = run(tmp_path, "passed", topology=labelled, **rule)
    named = run(tmp_path, "named", topology="ring", **rule)
    assert digest(passed) == digest(named)
    stored = yaml.safe_load((tmp_path / "passed" / "config.yaml").read_text())
    assert stored["exchange"]["topology"]["edges"] == "0-1 0-6 1-2 2-3 3-4 4-5 5-6"
    again = mpifed.run(tmp_path / "passed" / "config.yaml", output=tmp_path / "again")
    assert digest(again) == digest(passed)


@pytest.mark.parametrize(
    "weights", [W, scipy.sparse.csr_array(W), topologies.MixingMatrix.from_sparse(W)], ids=type
)
def test_an_array_is_the_mixing_matrix(tmp_path, weights):
    passed = run(tmp_path, "passed", weights=weights)
    named = run(tmp_path, "named", topology="ring", weights="metropolis_hastings")
    assert digest(passed) == digest(named)


def test_a_directed_array_is_a_schedule_of_one_round(tmp_path):
    passed = run(tmp_path, "passed", weights=SHIFT)
    (tmp_path / "rounds").mkdir()
    topologies.MixingMatrix.from_sparse(SHIFT).save(tmp_path / "rounds" / "w.npz")
    periodic = {"name": "periodic", "path": str(tmp_path / "rounds")}
    assert digest(passed) == digest(run(tmp_path, "named", schedule=periodic))


def test_schedules_are_lists_objects_or_functions_of_the_round(tmp_path):
    schedule = topologies.build_schedule("one_peer_exponential", N)
    matrices = [schedule.matrix(k).to_dense() for k in (1, 2, 3)]
    named = digest(run(tmp_path, "named", schedule="one_peer_exponential"))
    assert digest(run(tmp_path, "object", schedule=schedule)) == named
    assert digest(run(tmp_path, "list", schedule=matrices)) == named
    pairs = [in_turn(N, k) for k in (1, 2)]
    called = run(tmp_path, "function", schedule=in_turn)
    assert digest(called) == digest(run(tmp_path, "pairs", schedule=pairs))
    option = run(tmp_path, "option", schedule={"name": in_turn, "share": 0.25})
    assert digest(option) != digest(called)


def test_files_and_functions_are_topologies(tmp_path):
    nx.write_graphml(nx.star_graph(N - 1), tmp_path / "star.graphml")
    rule = {"weights": "metropolis_hastings"}
    named = digest(run(tmp_path, "named", topology="star", **rule))
    assert digest(run(tmp_path, "file", topology=tmp_path / "star.graphml", **rule)) == named
    assert digest(run(tmp_path, "function", topology=own_graph, **rule)) == named


def test_a_function_may_return_graphs(tmp_path):
    schedule = topologies.build_schedule(f"{__name__}:graphs_in_turn", 5)
    assert schedule.matrix(1) == topologies.metropolis_hastings(nx.path_graph(5))
    assert schedule.matrix(4) == topologies.metropolis_hastings(nx.cycle_graph(5))
    assert topologies.consensus_rate(schedule, samples=4).p > 0


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"topology": nx.DiGraph([(0, 1)])}, ("topology", "directed")),
        ({"topology": nx.empty_graph(N)}, ("exchange", "disconnected")),
        ({"weights": np.eye(N) / 2}, ("weights", "rows", "sum")),
        ({"weights": W, "topology": "ring"}, ("weights", "topology")),
        ({"schedule": [W, np.eye(3)]}, ("schedule", "one size")),
        ({"schedule": not_square}, ("not_square", "round 1", "(7, 2)")),
        ({"schedule": mass_lost}, ("mass_lost", "round 1", "rows", "0.5")),
    ],
)
def test_what_is_none_of_these_is_refused_before_training(tmp_path, given, names):
    with pytest.raises(InputError) as refused:
        run(tmp_path, **given)
    assert all(name in str(refused.value) for name in names), refused.value
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_texts_of_rounds_keep_every_bit(tmp_path):
    random = np.random.default_rng(0)
    for number, matrix in enumerate((W, SHIFT, in_turn(N, 3, random.random()))):
        passed = topologies.MixingMatrix.from_sparse(matrix)
        run(tmp_path, str(number), schedule=[passed, passed], rounds=1)
        stored = yaml.safe_load((tmp_path / str(number) / "config.yaml").read_text())
        section = stored["exchange"]["schedule"]
        again = topologies.build_schedule(section.pop("name"), N, **section)
        assert again.matrix(2) == passed
    mixed = topologies.build_schedule("matrices", 4, nodes=4, rounds="0-1:0.5 2>3:0.5 3>2:0.5")
    assert mixed.matrix(1).to_dense().tolist() == np.kron(np.eye(2), np.full((2, 2), 0.5)).tolist()
    with pytest.raises(topologies.TopologyError, match=r"'0-1'.* 0-1:0\.5"):
        topologies.build_schedule("matrices", 2, nodes=2, rounds="0-1")
    one_way = topologies.build_schedule("matrices", 2, nodes=2, rounds="0>1:0.5")
    assert one_way.matrix(1).to_dense().tolist() == [[1, 0], [0.5, 0.5]]
    assert not one_way.doubly_stochastic


ARCS = nx.DiGraph([*((i, (i + 1) % N) for i in range(N)), (0, N // 2)])
LISTENS = nx.to_numpy_array(ARCS, sorted(ARCS)).T + np.eye(N)
LISTENS /= LISTENS.sum(1, keepdims=True)


def directed(n, round):
    """A user's function of a directed matrix whose columns do not sum to one."""
    return LISTENS


@pytest.mark.parametrize("way", ["graph", "array", "csv", "npy", "npz", "function"])
def test_a_directed_matrix_is_given_in_any_way(tmp_path, way):
    file = tmp_path / f"w.{way}"
    if way == "csv":
        np.savetxt(file, LISTENS, delimiter=",")
    elif way == "npy":
        np.save(file, LISTENS)
    elif way == "npz":
        topologies.MixingMatrix.from_sparse(LISTENS).save(file)
    given = {
        "graph": {"schedule": [ARCS]},
        "array": {"weights": LISTENS},
        "function": {"schedule": directed},
    }.get(way, {"schedule": {"name": "periodic", "path": str(file)}})
    found = run(tmp_path, **given, **{"exchange.correction": "push_sum"})
    wanted = run(tmp_path / "again", schedule=[LISTENS], **{"exchange.correction": "push_sum"})
    assert found.summary["state_digest"] == wanted.summary["state_digest"]


# Functions, classes and other objects that a Python program passes to ``mpifed.run``.


SMALL_PASSING_OBJECTS = {"clients": 3, "rounds": 1}


def test_functions_and_classes_stand_for_their_names(tmp_path):
    objects = {"algorithm": "fedavg", "model": modules.Net, "compression": Halves}
    names = {
        **{"algorithm": "fedavg", "model": "mistaken_modules:Net"},
        "compression": "test_passed_graphs:Halves",
    }
    for words, folder in ((objects, "objects"), (names, "names")):
        mpifed.run("digits-fedem", output=tmp_path / folder, **SMALL_PASSING_OBJECTS, **words)
    one, other = (
        (tmp_path / folder / "config.yaml").read_text() for folder in ("objects", "names")
    )
    assert one == other and "mistaken_modules:Net" in one


def test_an_option_beside_a_function(tmp_path):
    model = {"name": modules.lazy_in_double}
    result = mpifed.run(
        "digits-fedem", output=tmp_path / "run", **SMALL_PASSING_OBJECTS, model=model
    )
    assert result.status == "finished"


PROGRAM = """
from torch import nn
import mpifed

def net(data, *, width: int = 8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

result = mpifed.run("digits-fedem", output="run", clients=3, rounds=1, model=net)
assert mpifed.load("run").components[0][1].weight.shape == (8, 64)
"""


@pytest.mark.slow
def test_a_program_may_pass_its_own_function(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, "program.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "__main__:net" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: mpifed.run(output=b"x"), ("output ", "path")),
        (lambda: mpifed.run(resume=5), ("resume ", " 5", "path")),
        (lambda: mpifed.load(5), ("run ", " 5", "path")),
        (lambda: mpifed.load("a\0b"), ("run ", "path")),
    ],
)
def test_what_is_no_path_is_refused(call, names):
    with pytest.raises(InputError) as refused:
        call()
    assert all(name in str(refused.value) for name in names), refused.value


def test_weights_by_size_are_those_of_the_clients_samples(tmp_path):
    by_size = {"topology": "ring", "weights": "by_size", "algorithm": "fedavg"}
    with pytest.raises(
        InputError, match=r"gossip_step_scale.*'normalised'.*exchange\.weights.*'by_size'"
    ):
        run(tmp_path, **by_size)
    result = run(tmp_path, **by_size, **{"algorithm.gossip_step_scale": "none"})
    sizes = [float(n) for n in result.clients["n_train"]]
    given = {**by_size, "weights": {"name": "by_size", "sizes": sizes}}
    again = run(tmp_path, "again", **given, **{"algorithm.gossip_step_scale": "none"})
    assert digest(again) == digest(result) and len(set(sizes)) > 1
    assert "warning" not in (tmp_path / "run" / "log.txt").read_text()
