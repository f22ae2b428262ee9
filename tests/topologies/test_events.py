"""Events of nodes that do not wait, against times that are added up one by one."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.errors import TopologyError
from topologies.links.events import Computations, Versions, averaged_in_turn

N = 6


def table(seed, rows=80):
    """Seconds of computations that differ from node to node and from time to time."""
    draw = np.random.default_rng(seed)
    return np.exp(draw.normal(size=N) + 0.3 * draw.normal(size=(rows, N)))


def test_rounds_have_all_computations_in_order_and_no_node_twice():
    seconds = table(0)
    going = Computations.start(N, lambda p, nodes: seconds[p - 1, nodes])
    ends, found, last = np.cumsum(seconds, axis=0), [[] for _ in range(N)], 0.0
    for _ in range(60):
        finished = going.round()
        assert len(finished.nodes) == len(set(finished.nodes.tolist())) > 0
        assert (np.diff([last, *finished.times]) >= 0).all()
        last = finished.times[-1]
        for node, time in zip(finished.nodes, finished.times, strict=True):
            found[node].append(time)
        # A round ends only where some node is the first to end twice.
        assert (going.ends[finished.nodes] >= last).all()
    for node in range(N):
        assert found[node] == pytest.approx(ends[: len(found[node]), node], rel=1e-12)
        assert len(found[node]) == (ends[:, node] <= last).sum()


def test_equal_times_are_rounds_of_all():
    going = Computations.start(N, lambda p, nodes: np.full(len(nodes), 0.1))
    assert [going.round().nodes.tolist() for _ in range(9)] == 9 * [list(range(N))]


def test_computations_that_take_no_time_are_refused():
    with pytest.raises(TopologyError, match=r"node 2.*0 seconds"):
        Computations.start(N, lambda p, nodes: 1.0 * (nodes != 2))


def test_a_full_set_of_slots_gives_room_when_a_newer_version_has_arrived():
    kept = Versions(np.array([[1.0, 2.0, 3.0]]), np.array([[1, 2, 3]]))
    node = np.zeros(1, int)
    assert kept.room(node, np.array([0.5]), np.array([2.4])) == [-1]
    assert kept.room(node, np.array([0.5]), np.array([2.5])) == [0]
    assert Versions.empty(1, 2).room(node, np.array([9.0]), np.array([0.1])) == [0]


def test_averages_in_turn_keep_the_mean_and_are_the_paper_s():
    draw = np.random.default_rng(3)
    nodes, partners = np.array([4, 1, 0, 2]), np.array([1, 4, 5, 2])
    touched = np.unique([*nodes, *partners])
    x, u = draw.normal(size=N), draw.normal(size=N)
    values, own = averaged_in_turn(nodes, partners, touched)
    given, after, right_after = np.concatenate([x[touched], (x + u)[nodes]]), x.copy(), []
    for i, j in zip(nodes, partners, strict=True):
        after[i] = after[j] = (after[i] + after[j]) / 2
        after[i] += u[i]
        right_after.append(after[i])
    assert values @ given == pytest.approx(after[touched], rel=1e-14)
    assert own @ given == pytest.approx(right_after, rel=1e-14)
    assert after.mean() == pytest.approx(x.mean() + u[nodes].sum() / N)
