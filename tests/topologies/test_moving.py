"""Schedules of few models that move from node to node."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import TopologyError, build_graph, build_schedule

N, M = 12, 4


@pytest.mark.parametrize("over", ["base_k", "one_peer_exponential", "static_exponential", "ring"])
def test_models_mix_on_the_way_from_holder_to_holder(over):
    schedule = build_schedule("teleport", N, active=M, over=over, seed=3)
    x = np.random.default_rng(0).normal(size=N)
    for k in range(1, 7):
        here, there = schedule.holders(k), schedule.holders(k + 1)
        after = schedule.matrix(k).to_dense() @ x
        inner = schedule.inner.matrix(k).to_dense()
        assert after[there] == pytest.approx(inner @ x[here], rel=1e-13)
        others = np.setdiff1d(np.arange(N), there)
        assert (after[others] == x[others]).all()
        assert schedule.taking_part(k).tolist() == sorted({*here.tolist(), *there.tolist()})
        assert after[there].mean() == pytest.approx(x[here].mean(), rel=1e-12)
        x = after


def test_holders_are_distinct_and_every_node_holds_alike():
    schedule = build_schedule("teleport", N, active=M, seed=1)
    held = np.array([schedule.holders(k) for k in range(1, 1201)])
    assert all(len(set(row)) == M for row in held.tolist())
    counts = np.bincount(held.ravel(), minlength=N)
    assert counts == pytest.approx(1200 * M / N, rel=0.2)
    assert (schedule.holders(7) == build_schedule("teleport", N, active=M, seed=1).holders(7)).all()


def test_all_nodes_may_hold_and_one_may():
    every = build_schedule("teleport", 5, active=5)
    assert every.matrix(1).doubly_stochastic
    one = build_schedule("teleport", 5, active=1).matrix(2).to_dense()
    assert sorted(one.ravel().tolist()).count(1.0) == 5
    with pytest.raises(TopologyError, match=r"active.*\b6\b.*\b5 nodes"):
        build_schedule("teleport", 5, active=6)


def test_a_walk_has_the_steps_of_its_weights_and_is_everywhere_alike():
    graph = build_graph("star", 5)
    schedule = build_schedule("random_walk", graph=graph, weights="metropolis_hastings", seed=2)
    w = build_schedule("static", graph=graph, weights="metropolis_hastings").matrix(1).to_dense()
    path = np.array([schedule.holders(k)[0] for k in range(1, 8001)])
    steps = np.zeros((5, 5))
    np.add.at(steps, (path[:-1], path[1:]), 1)
    assert steps / steps.sum(1, keepdims=True) == pytest.approx(w, abs=0.04)
    assert np.bincount(path) / len(path) == pytest.approx(0.2, abs=0.05)
    again = build_schedule("random_walk", graph=graph, weights="metropolis_hastings", seed=2)
    assert again.holders(300) == path[299]
