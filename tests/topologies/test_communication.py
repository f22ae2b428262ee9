"""Consensus rates, communication costs and simulated gossip of matrices and schedules."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest

from topologies import (
    Drawn,
    DropEdges,
    LocalRounds,
    MixingMatrix,
    Static,
    build_graph,
    build_schedule,
    communication,
    consensus_rate,
    describe,
    diameter,
    effective_neighbours,
    gossip,
    metropolis_hastings,
    mixing_matrix,
    mixing_time,
    slem,
)


@pytest.mark.parametrize(("n", "p"), [(6, 0.953), (12, 0.956), (25, 0.963), (33, 0.999), (16, 1.0)])
def test_the_rate_of_one_peer_exponential(n, p):
    rate = consensus_rate(build_schedule("one_peer_exponential", n))
    assert rate.tau == math.ceil(math.log2(n))
    assert rate.p == pytest.approx(p, abs=6e-4)
    assert rate.standard_error == 0


@pytest.mark.parametrize("n", [16, 64])
def test_a_single_round_of_one_peer_exponential_hardly_averages(n):
    # W = (I + P) / 2 for the cyclic shift P has the singular values |cos(pi k / n)|.
    single = consensus_rate(build_schedule("one_peer_exponential", n).matrix(1))
    assert single.p == pytest.approx(math.sin(math.pi / n) ** 2, abs=1e-12)
    assert consensus_rate(build_schedule("one_peer_exponential", n)).p == pytest.approx(
        1, abs=1e-15
    )


def test_the_rate_of_a_finite_time_schedule_is_one():
    assert consensus_rate(build_schedule("base_k", 15)).p == pytest.approx(1, abs=1e-15)
    assert mixing_time(build_schedule("base_k", 15)) == build_schedule("base_k", 15).period


def test_thinning_stretches_tau_only():
    matrix = metropolis_hastings(nx.cycle_graph(6))
    rate = consensus_rate(LocalRounds(Static(matrix), 4))
    assert (rate.p, rate.tau) == (consensus_rate(matrix).p, 4)
    assert rate.contraction == pytest.approx(slem(matrix) ** 0.25)
    assert mixing_time(LocalRounds(Static(matrix), 4)) == 4 * mixing_time(matrix)


def test_the_closed_form_of_equitopo_agrees_with_its_draws():
    schedule = build_schedule("equitopo", 9, seed=0)
    exact = consensus_rate(schedule)
    drawn = Drawn(9, 0, schedule.draw, symmetric=False)
    estimated = consensus_rate(drawn, samples=1000)
    assert exact.standard_error == 0 < estimated.standard_error
    # The largest eigenvalue of an estimate is on average too large, so that p is too small.
    assert exact.p - 0.05 < estimated.p < exact.p + 3 * estimated.standard_error


def test_the_estimated_rate_of_lost_edges_is_below_that_of_none():
    static = Static(mixing_matrix(build_graph("torus", 12), "metropolis_hastings"))
    lossy = consensus_rate(DropEdges(static, 0.5, 0))
    assert 0 < lossy.p < consensus_rate(static).p
    assert consensus_rate(DropEdges(static, 1.0, 0)).p == pytest.approx(0, abs=1e-12)
    periodic = consensus_rate(DropEdges(build_schedule("base_k", 6), 0.2, 0), samples=50)
    assert periodic.tau == build_schedule("base_k", 6).period


def test_random_rounds_contract_where_their_union_is_connected():
    alone = build_schedule("random_matching", graph=nx.disjoint_union(*[nx.path_graph(2)] * 2))
    assert consensus_rate(alone).p == pytest.approx(0, abs=1e-12)
    assert consensus_rate(build_schedule("random_matching", graph=nx.path_graph(4))).p > 0.05


def test_effective_neighbours_of_schedules():
    matrix = metropolis_hastings(nx.cycle_graph(8))
    directed = MixingMatrix(
        8, np.concatenate([matrix.edges, matrix.edges[:, ::-1]]), np.tile(matrix.weights, 2), False
    )
    assert effective_neighbours(directed) == pytest.approx(effective_neighbours(matrix))
    assert effective_neighbours(build_schedule("base_k", 8, peers=7)) == pytest.approx(8)
    assert 1 < effective_neighbours(build_schedule("one_peer_exponential", 16)) < 16
    assert 1 < effective_neighbours(build_schedule("equitopo", 16, seed=0)) < 16


def test_costs():
    ring = mixing_matrix(build_graph("ring", 6), "metropolis_hastings")
    cost = communication(ring, message_bytes=10, accuracy=1e-2)
    assert (cost.messages, cost.most_messages, cost.bytes) == (12, 2, 120)
    assert cost.rounds == mixing_time(ring)
    assert cost.bytes_to_accuracy == 120 * cost.rounds
    peer = communication(build_schedule("one_peer_exponential", 16), message_bytes=1)
    assert (peer.messages, peer.most_messages, peer.bytes_to_accuracy) == (16, 1, 64)
    idle = MixingMatrix(3, np.array([[0, 1], [1, 2]]), np.array([0.5, 0.0]))
    assert communication(idle).messages == 2
    silent = communication(MixingMatrix(3, np.zeros((0, 2)), np.zeros(0)))
    assert (silent.messages, silent.rounds, silent.bytes_to_accuracy) == (0, math.inf, 0)


def test_gossip_contracts_as_promised():
    matrix = mixing_matrix(build_graph("erdos_renyi", 30, 1, p=0.3))
    run = gossip(matrix, 40)
    assert run.distance[0] == 1
    assert (run.distance <= run.predicted * (1 + 1e-9) + 1e-14).all()
    assert run.contraction <= slem(matrix) + 1e-9
    assert run.contraction == pytest.approx(slem(matrix), rel=0.05)
    assert run.drift < 1e-14


def test_gossip_by_rounds_that_are_exact_after_a_period():
    schedule = build_schedule("one_peer_exponential", 16)
    run = gossip(schedule, 12)
    assert run.predicted[3:6] == pytest.approx([1, 0, 0])
    assert run.distance[4] < 1e-14
    assert run.drift < 1e-14


def test_gossip_on_average_keeps_the_promise_of_random_rounds():
    graph = build_graph("small_world", 20, 0)
    schedule = build_schedule("matcha", graph=graph, seed=1, budget=0.5)
    run = gossip(schedule, 100, width=64)
    assert run.contraction <= run.rate.contraction * 1.02


def test_gossip_edge_cases():
    alone = gossip(MixingMatrix(1, np.zeros((0, 2)), np.zeros(0)), 5)
    assert (alone.distance == 0).all()
    silent = gossip(MixingMatrix(4, np.zeros((0, 2)), np.zeros(0)), 5)
    assert (silent.distance == 1).all()
    assert silent.contraction == 1


def test_descriptions_of_schedules():
    graph = build_graph("ring", 8)
    record = describe(graph, build_schedule("matcha", graph=graph), schedule="matcha")
    assert (record["schedule"], record["period"], record["slem"]) == ("matcha", None, None)
    assert record["family"] == "ring"
    alone = describe(
        None, build_schedule("one_peer_exponential", 8), schedule="one_peer_exponential"
    )
    assert (alone["period"], alone["tau"], alone["consensus_rate"]) == (3, 3, 1)
    assert (alone["connected"], alone["symmetric"], alone["doubly_stochastic"]) == (
        True,
        False,
        True,
    )
    assert (alone["active_edges"], alone["most_messages"]) == (8, 1)
    assert len(alone["sha256"]) == 64


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
    assert (consensus_rate(silent).p, mixing_time(silent)) == (0, math.inf)
    assert slem(silent) == pytest.approx(1, abs=1e-15)
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
def test_large_matrices_have_the_modulus_of_their_closed_form(directed):
    n, side = 2025, 45  # more nodes than a dense matrix is made of
    matrix = metropolis("torus", n)
    # A torus with weights 1/5: its eigenvalues are (1 + 2 cos a + 2 cos b) / 5.
    cosines = np.cos(2 * np.pi * np.arange(side) / side)
    values = (1 + 2 * cosines[:, None] + 2 * cosines) / 5
    if directed:
        edges = [(i, (i - k) % n) for i in range(n) for k in (1, 7)]
        matrix = MixingMatrix(n, edges, np.full(2 * n, 0.3), symmetric=False)
        root = np.exp(2j * np.pi * np.arange(n) / n)
        values = 0.4 + 0.3 * root + 0.3 * root**7
    assert slem(matrix) == pytest.approx(np.sort(np.abs(values).ravel())[-2], abs=1e-10)


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


def test_two_sides_that_swap_never_mix():
    matrix = mixing_matrix(nx.cycle_graph(4), "fmmc", self_loops=False)
    assert mixing_time(matrix) == math.inf
    assert describe(nx.cycle_graph(4), matrix)["bytes_to_accuracy"] is None
