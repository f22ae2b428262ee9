"""Private gossip: what clients learn of each other, noise that cancels, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import torch
from engine_runs import prepared
from on_ranks import SMALL, unlike_one_rank
from small_runs import CASES

import mpifed
from mpifed.components.registry import find_algorithm
from mpifed.exchange import accounting
from mpifed.exchange.gossip_channel import GossipChannel
from mpifed.exchange.observers import Mixed, epsilons, privacy_losses

NOISE = {"noise_multiplier": 1.0, "clip_norm": 0.5, "delta": 0.01, "where": "local"}
RING = {"name": "gossip", "topology": "ring", "weights": "metropolis_hastings"}
LOOKS = {**NOISE, "observers": "messages", "pairwise_multiplier": 0.7}


def mixed(*steps, active=None):
    everyone = np.ones(len(steps[0]), bool)
    return Mixed([*map(scipy.sparse.csr_array, steps)], everyone if active is None else active)


def watched(rounds, a, sees, z, p, inputs):
    """All that a sees and knows if updates, own noise and secrets of pairs are ``inputs``."""
    n, count, found = len(rounds[0].active), len(rounds), []
    updates, noise = inputs[: 2 * count * n].reshape(2, count, n)
    secrets, x = inputs[2 * count * n :].reshape(count, n, n), np.zeros(n)
    for t, now in enumerate(rounds):
        met = now.steps[0].toarray()
        shared = np.triu(p * secrets[t] * ((met != 0) | (met.T != 0)), 1)
        x = x + now.active * (updates[t] + z * noise[t]) + shared.sum(1) - shared.sum(0)
        found += [updates[t, a], noise[t, a], *shared[a], *shared[:, a]]
        for w in now.steps:
            messages = [x[j] for j in range(n) if w[a, j] and j != a]
            x = w.toarray() @ x
            found += messages if sees == "messages" else [x[a]]
    return np.array(found)


@pytest.mark.parametrize("sees", ["messages", "averages"])
@pytest.mark.parametrize("p", [0.0, 1.5])
def test_what_is_learnt_is_that_of_the_whole_linear_map(sees, p):
    """Four clients, W directed and changing, an absent client, two steps of gossip in a round."""
    path = np.array([[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0.2, 0.3], [0, 0, 0.3, 0.7]])
    directed = np.array([[0.6, 0, 0, 0.4], [0.1, 0.9, 0, 0], [0, 0.2, 0.8, 0], [0, 0, 0.5, 0.5]])
    apart = np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    absent = mixed(apart, active=np.arange(4) != 2)
    rounds = [mixed(path), absent, mixed(directed, path), mixed(path)]
    losses = privacy_losses(rounds, 0.8, p, sees)
    random, free = np.random.default_rng(0), 4 * 4
    for a in range(4):
        units = np.eye(2 * free + 4 * 16)
        whole = np.stack([watched(rounds, a, sees, 0.8, p, one) for one in units]).T
        imitated = np.linalg.pinv(whole[:, free:]) @ whole[:, :free]  # by noise, the least
        for u in set(range(4)) - {a}:
            of_u = imitated[:, u::4]
            assert np.allclose(whole[:, free:] @ of_u, whole[:, u:free:4], atol=1e-9)
            known = of_u.T @ of_u
            times = sum(now.active[u] for now in rounds)
            bound = min(np.abs(known).sum(), times * np.linalg.eigvalsh(known)[-1])
            assert losses[a, u] ** 2 == pytest.approx(4 * bound, rel=1e-7)
            moves = random.standard_normal((300, 4, 3))  # by which the updates of u differ
            moves /= np.linalg.norm(moves, axis=2, keepdims=True)
            reached = np.einsum("btd,ts,bsd->b", moves, known, moves)
            assert max(reached.max(), known.sum()) <= bound * (1 + 1e-9)
    assert np.isnan(losses.diagonal()).all()


def test_a_complete_graph_is_local_noise_and_sums_over_it_are_a_servers():
    """Who gets the sum alone sees the noise of the n - 1 others; R^-1 is what pairs add."""
    n, z, p, delta = 5, 1.3, 2.0, 1e-3
    rounds = [mixed(np.full((n, n), 1 / n))] * 6
    others = ~np.eye(n, dtype=bool)
    local = epsilons(privacy_losses(rounds, z), delta)[others]
    assert local == pytest.approx(accounting.gaussian(z / 2, 6, delta), rel=1e-4)
    sums = epsilons(privacy_losses(rounds, z, sees="averages"), delta)[others]
    assert sums == pytest.approx(accounting.gaussian(z * (n - 1) ** 0.5 / 2, 6, delta), rel=1e-4)
    covariance = z**2 * np.eye(n - 1) + p**2 * ((n - 1) * np.eye(n - 1) - 1)
    paired = privacy_losses(rounds, z, p)[others]
    assert paired == pytest.approx(2 * np.sqrt(6 * np.linalg.inv(covariance)[0, 0]))
    # Noise of pairs cancels in the sum.
    kept = epsilons(privacy_losses(rounds, z, p, "averages"), delta)[others]
    assert kept == pytest.approx(sums)


def test_noise_of_pairs_cancels_and_has_the_stated_deviation():
    quiet = {**NOISE, "noise_multiplier": 1e-9, "pairwise_multiplier": 3.0}
    engine = prepared("fedavg", RING, clients=6, privacy=quiet)
    rows = torch.zeros(6, 20_000, dtype=torch.float64)
    active = np.arange(6) != 5  # of the ring a path is left
    for round in (1, 2):
        channel = engine.setup.exchange.at(round, active)
        noise = channel.transformed(rows[:5], rows[:5]).numpy()
        assert np.abs(noise.sum(axis=0)).max() < 1e-6
        degrees = np.array([1, 2, 2, 2, 1])
        assert noise.std(axis=1) == pytest.approx(1.5 * np.sqrt(degrees), rel=0.05)
        assert np.corrcoef(noise)[0, 1] == pytest.approx(-1 / np.sqrt(2), abs=0.05)


GOSSIPED = [
    name
    for name, exchange in (case.values for case in CASES)
    if exchange == "gossip"
    and find_algorithm(name).aggregates == "mean"
    and find_algorithm(name).communicates
    and name != "scaffnew"
]


@pytest.mark.parametrize("name", GOSSIPED)
def test_every_method_starts_a_round_from_the_averages_of_the_last(name, monkeypatch):
    """Which is what the linear map of an observer assumes."""
    average, seen = GossipChannel.average, []

    def spied(self, rows, weights, before, total_weight=1.0):
        made = average(self, rows, weights, before, total_weight)
        seen.append((before.clone(), made.clone()))
        return made

    monkeypatch.setattr(GossipChannel, "average", spied)
    engine = prepared(name, RING, privacy=LOOKS)
    for _ in range(3):
        engine.advance()
    assert len(seen) == 3
    assert all(torch.equal(one[1], other[0]) for one, other in pairwise(seen))


def test_a_run_has_what_observers_learn(tmp_path):
    given = {**SMALL, "clients": 5, "exchange": RING, "privacy": LOOKS, "participation": 0.8}
    result = mpifed.run("synthetic-fedem", output=tmp_path / "run", **given)
    learnt = result.learnt["epsilon_by_observer"]
    off = learnt[~np.eye(5, dtype=bool)]
    assert learnt.shape == (5, 5) and 0 <= off.min() < off.max() < result.metrics["epsilon"][-1]
    assert result.metrics["epsilon"][-1] == accounting.gaussian(0.5, 4, 0.01)


@pytest.mark.mpi
def test_it_is_the_same_on_these_ranks_as_on_one(tmp_path):
    given = {"exchange": RING, "privacy": LOOKS, "participation": 0.7}
    assert unlike_one_rank({**SMALL, **given}, tmp_path) == []
