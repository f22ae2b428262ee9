import math

import networkx as nx
import numpy as np
import pytest

from topologies import (
    MixingMatrix,
    build_graph,
    consensus_rate,
    describe,
    diameter,
    effective_neighbours,
    mixing_matrix,
    mixing_time,
    slem,
)
from topologies.analysis import consensus


def metropolis(name, n, **params):
    return mixing_matrix(build_graph(name, n, **params), "metropolis_hastings")


@pytest.mark.parametrize(
    ("name", "modulus", "rate", "rounds", "neighbours", "hops"),
    [
        ("ring", 0.9968, 0.0064, 1433, 6.6, 32),
        ("torus", 0.8828, 0.2206, 37, 19.1, 8),
        ("star", 0.9844, 0.0310, 293, 1.3, 2),
        ("hypercube", 0.7143, 0.4898, 14, 29.2, 6),
    ],
)
def test_known_values_at_64_nodes(name, modulus, rate, rounds, neighbours, hops):
    matrix = metropolis(name, 64)
    assert slem(matrix) == pytest.approx(modulus, abs=1e-4)
    assert consensus_rate(matrix).p == pytest.approx(rate, abs=1e-4)
    assert mixing_time(matrix, 1e-2) == rounds
    assert effective_neighbours(matrix, 0.9) == pytest.approx(neighbours, abs=0.06)
    assert diameter(build_graph(name, 64)) == hops


def test_extremes():
    alone = MixingMatrix(1, np.zeros((0, 2)), [])
    assert (slem(alone), consensus_rate(alone).p, mixing_time(alone)) == (0, 1, 0)
    silent = MixingMatrix(4, np.zeros((0, 2)), [])
    assert (slem(silent), consensus_rate(silent).p, mixing_time(silent)) == (1, 0, math.inf)
    assert effective_neighbours(silent) == pytest.approx(1)
    complete = metropolis("complete", 9)
    assert (slem(complete), mixing_time(complete)) == (0, 1)
    assert effective_neighbours(complete) == pytest.approx(9)
    swap = MixingMatrix(2, [(0, 1)], [1.0])
    assert slem(swap) == 1
    assert diameter(nx.empty_graph(3)) == math.inf


def test_a_directed_matrix_is_measured_by_its_norm():
    shift = MixingMatrix(4, [(i, (i - 1) % 4) for i in range(4)], np.full(4, 0.5), symmetric=False)
    assert slem(shift) == pytest.approx(np.linalg.norm(shift.to_dense() - 0.25, 2))


@pytest.mark.parametrize("directed", [False, True])
def test_lanczos_agrees_with_the_dense_computation(monkeypatch, directed):
    matrix = metropolis("torus", 100)
    if directed:
        edges = [(i, (i - k) % 50) for i in range(50) for k in (1, 7)]
        matrix = MixingMatrix(50, edges, np.full(100, 0.3), symmetric=False)
    expected = slem(matrix)
    monkeypatch.setattr(consensus, "DENSE_NODES", 10)
    assert slem(matrix) == pytest.approx(expected, abs=1e-10)


def test_the_description_is_complete():
    graph = build_graph("erdos_renyi", 20, 1234, p=0.5)
    record = describe(graph, mixing_matrix(graph))
    for key in [
        "family",
        "n",
        "seed",
        "tries",
        "connected",
        "edges",
        "active_edges",
        "degree_min",
        "degree_mean",
        "degree_max",
        "diameter",
        "weights",
        "slem",
        "spectral_gap",
        "consensus_rate",
        "period",
        "mixing_time",
        "effective_neighbours",
        "min_self_weight",
        "lower_bound",
        "certified_gap",
        "seconds",
        "sha256",
    ]:
        assert record[key] is not None, key
    assert record["slem"] == pytest.approx(0.3504, abs=1e-4)
    assert (record["edges"], record["connected"], record["degree_mean"]) == (102, True, 10.2)
    assert record["zero_self_weights"] == (mixing_matrix(graph).self_weights < 1e-7).sum()


@pytest.mark.filterwarnings("ignore:fmmc on this bipartite graph")
def test_two_sides_that_swap_never_mix():
    matrix = mixing_matrix(nx.cycle_graph(4), "fmmc", self_loops=False)
    assert mixing_time(matrix) == math.inf
    assert describe(nx.cycle_graph(4), matrix)["bytes_to_accuracy"] is None
