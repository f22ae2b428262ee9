import math

import networkx as nx
import numpy as np
import pytest

from topologies import (
    DropEdges,
    LocalRounds,
    MixingMatrix,
    Static,
    build_graph,
    build_schedule,
    communication,
    consensus_rate,
    describe,
    effective_neighbours,
    gossip,
    metropolis_hastings,
    mixing_matrix,
    mixing_time,
    slem,
)
from topologies.schedules.circulants import base_k, equitopo, one_peer_exponential
from topologies.schedules.sequences import Drawn


@pytest.mark.parametrize(("n", "p"), [(6, 0.953), (12, 0.956), (25, 0.963), (33, 0.999), (16, 1.0)])
def test_the_rate_of_one_peer_exponential(n, p):
    rate = consensus_rate(one_peer_exponential(n))
    assert rate.tau == math.ceil(math.log2(n))
    assert rate.p == pytest.approx(p, abs=6e-4)
    assert rate.standard_error == 0


@pytest.mark.parametrize("n", [16, 64])
def test_a_single_round_of_one_peer_exponential_hardly_averages(n):
    # W = (I + P) / 2 for the cyclic shift P has the singular values |cos(pi k / n)|.
    single = consensus_rate(one_peer_exponential(n).matrix(1))
    assert single.p == pytest.approx(math.sin(math.pi / n) ** 2, abs=1e-12)
    assert consensus_rate(one_peer_exponential(n)).p == pytest.approx(1, abs=1e-15)


def test_the_rate_of_a_finite_time_schedule_is_one():
    assert consensus_rate(base_k(15)).p == pytest.approx(1, abs=1e-15)
    assert mixing_time(base_k(15)) == base_k(15).period


def test_thinning_stretches_tau_only():
    matrix = metropolis_hastings(nx.cycle_graph(6))
    rate = consensus_rate(LocalRounds(Static(matrix), 4))
    assert (rate.p, rate.tau) == (consensus_rate(matrix).p, 4)
    assert rate.contraction == pytest.approx(slem(matrix) ** 0.25)
    assert mixing_time(LocalRounds(Static(matrix), 4)) == 4 * mixing_time(matrix)


def test_the_closed_form_of_equitopo_agrees_with_its_draws():
    schedule = equitopo(9, 0)
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
    periodic = consensus_rate(DropEdges(base_k(6), 0.2, 0), samples=50)
    assert periodic.tau == base_k(6).period


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
    assert effective_neighbours(base_k(8, peers=7)) == pytest.approx(8)
    assert 1 < effective_neighbours(one_peer_exponential(16)) < 16
    assert 1 < effective_neighbours(equitopo(16, 0)) < 16


def test_costs():
    ring = mixing_matrix(build_graph("ring", 6), "metropolis_hastings")
    cost = communication(ring, message_bytes=10, accuracy=1e-2)
    assert (cost.messages, cost.most_messages, cost.bytes) == (12, 2, 120)
    assert cost.rounds == mixing_time(ring)
    assert cost.bytes_to_accuracy == 120 * cost.rounds
    peer = communication(one_peer_exponential(16), message_bytes=1)
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
    schedule = one_peer_exponential(16)
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
    alone = describe(None, one_peer_exponential(8), schedule="one_peer_exponential")
    assert (alone["period"], alone["tau"], alone["consensus_rate"]) == (3, 3, 1)
    assert (alone["connected"], alone["symmetric"], alone["doubly_stochastic"]) == (
        True,
        False,
        True,
    )
    assert (alone["active_edges"], alone["most_messages"]) == (8, 1)
    assert len(alone["sha256"]) == 64
