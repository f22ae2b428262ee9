"""Clients that choose whom they mix with, against programs in numpy: DPFL, Morph, FedFomo, L2C."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from engine_runs import prepared
from gossip_exchange import exchange_of
from quadratics import SEED

from mpifed.federation.clients import Draws

N, P = 6, 4
DRAW = np.random.default_rng(2)
TARGETS = np.where(np.arange(N) < 3, 1.0, -1.0)[:, None] + 0.2 * DRAW.normal(size=(N, P))
SAMPLES = np.array([3, 1, 4, 1, 5, 9])


class Quadratics:
    """L_i(w) = |w - t_i|^2 / 2."""

    def losses(self, i, models):
        return np.square(models - TARGETS[i]).sum(1) / 2

    def gradient(self, i, model):
        return model - TARGETS[i]


class Played:
    """Rounds of a correction: ``rounds`` has x before, z after local steps, and x after mixing."""

    def __init__(self, correction, rounds, topology="complete"):
        exchange = exchange_of(correction, topology, n=N)
        exchange.federation = dataclasses.replace(exchange.federation, n_train=SAMPLES)
        x = TARGETS + 0.3 * np.random.default_rng(3).normal(size=(N, P))
        memory = exchange.remember([torch.from_numpy(x)], N, torch.float64)
        self.rounds, self.memories, self.floats, self.received = [], [memory], [0], []
        for k in range(1, rounds + 1):
            z = x + 0.4 * (TARGETS - x) + 0.05 * np.random.default_rng(k).normal(size=x.shape)
            channel = exchange.at(k, np.ones(N, bool), memory)
            channel.held_out, channel.layers = Quadratics(), (slice(0, 1), slice(1, 4))
            rows, before = torch.from_numpy(z), torch.from_numpy(x)
            after = channel.average(rows, torch.ones(N).double(), before).numpy()
            self.rounds.append((x, z, after))
            x, memory = after, channel.memory
            self.memories.append(memory)
            self.floats.append(exchange.ledger.up_floats)
            self.received.append(np.concatenate(exchange.received))

    def memory(self, k):
        return self.memories[k].corrections.numpy().reshape(N, -1, N)


def loss(i, w):
    return np.square(w - TARGETS[i]).sum() / 2


def test_dpfl_is_the_randomised_greedy_step_within_the_pool_of_its_first_round():
    played, pools = Played({"name": "dpfl", "budget": 2, "start": 2}, 5), {}
    assert np.array_equal(*played.rounds[0][1:])
    for k, (_, z, after) in enumerate(played.rounds[1:], 2):
        for i in range(N):
            stream = Draws(SEED, k).stream("choice of neighbours", i)
            among = pools.get(i, [j for j in range(N) if j != i])

            def mean(some, z=z):
                return np.average(z[some], axis=0, weights=SAMPLES[some])

            x, y = [i], [i, *among]
            for j in stream.permutation(np.array(among)) if among else []:
                a = max(0.0, loss(i, mean(x)) - loss(i, mean([*x, j])))
                less = [other for other in y if other != j]
                b = max(0.0, loss(i, mean(y)) - loss(i, mean(less)))
                if stream.random() < (a / (a + b) if a + b else 1):
                    x.append(j)
                else:
                    y = less
                if len(x) == 3:
                    break
            pools.setdefault(i, sorted(x[1:]))
            assert after[i] == pytest.approx(mean(sorted(x)), abs=1e-12)
            weights = played.memory(k)[i, -2]
            assert set(np.flatnonzero(weights)) == set(x[1:])
    # Nobody mixes with the other half, and after round 2 only the pool sends.
    assert not played.memory(5)[:3, -1, 3:].any() and not played.memory(5)[3:, -1, :3].any()
    later = sum(map(len, pools.values()))
    assert 0 < later <= 2 * N
    assert np.diff(played.floats).tolist() == [0, P * N * (N - 1), *[P * later] * 3]
    assert [len(arcs) for arcs in played.received] == [0, N * (N - 1), *[later] * 3]


def test_fomo_moves_along_what_lowers_the_loss():
    played, affinity = Played({"name": "fomo", "models": N - 1}, 3), np.zeros((N, N))
    for k, (x, z, after) in enumerate(played.rounds, 1):
        for i in range(N):
            ways = z - x[i]
            w = np.array([loss(i, x[i]) - loss(i, other) for other in z])
            w /= np.linalg.norm(ways, axis=1)
            affinity[i] += np.where(np.arange(N) == i, 0, w)
            good = np.maximum(w, 0)
            expected = x[i] + good @ ways / good.sum() if good.any() else x[i]
            assert after[i] == pytest.approx(expected, abs=1e-12)
        assert played.memory(k)[:, 0] == pytest.approx(affinity, abs=1e-12)
    few = Played({"name": "fomo", "models": 2, "epsilon": 0.0}, 2)
    for i, gains in enumerate(few.memory(1)[:, 0]):
        asked = few.received[1][few.received[1][:, 0] == i, 1]
        assert len(asked) == 2 and gains[asked].min() >= np.sort(np.delete(gains, i))[-2]


def test_l2c_descends_along_its_weights_and_asks_fewer_in_the_end():
    played = Played({"name": "l2c", "lr": 0.5, "rounds": 2, "peers": 2}, 4)
    for k, (x, z, after) in enumerate(played.rounds[:2]):
        logits, moved = played.memory(k)[:, 0], played.memory(k + 1)[:, 0]
        for i in range(N):

            def mixed(a, i=i, x=x, z=z):
                w = np.exp(a) / np.exp(a).sum()
                return x[i] + w @ (z - x)

            assert after[i] == pytest.approx(mixed(logits[i]), abs=1e-12)
            steps = np.eye(N) * 1e-5
            slope = [
                (loss(i, mixed(logits[i] + h)) - loss(i, mixed(logits[i] - h))) / 2e-5
                for h in steps
            ]
            assert moved[i] == pytest.approx(logits[i] - 0.5 * np.array(slope), abs=1e-8)
    assert [len(arcs) for arcs in played.received] == [N * (N - 1)] * 2 + [2 * N] * 2
    for i, logits in enumerate(played.memory(2)[:, 0]):
        asked = played.received[2][played.received[2][:, 0] == i, 1]
        assert sorted(logits[asked]) == sorted(np.delete(logits, i))[-2:]


def test_morph_exchanges_the_most_similar_for_the_least_similar_one_known():
    """beta is so large that nothing is left to chance; on a ring all are known after two rounds."""
    played = Played({"name": "morph", "every": 3, "sharpness": 1e9}, 9, "ring")

    def similarity(a, b):
        parts = [(a[:1], b[:1]), (a[1:], b[1:])]
        return np.mean([p @ q / np.linalg.norm(p) / np.linalg.norm(q) for p, q in parts])

    asked = [{(i - 1) % N, (i + 1) % N} for i in range(N)]
    s, known = np.zeros((N, N)), np.zeros((N, N))
    for i in range(N):
        known[i, list(asked[i])] = 1
    changed = 0
    for k, (_, z, after) in enumerate(played.rounds, 1):
        if k in (4, 7):
            for i in range(N):
                inside = sorted(asked[i])
                outside = [j for j in range(N) if known[i, j] and j not in (i, *inside)]
                mean = s[i][known[i] > 1].mean()
                at = np.where(known[i] > 1, s[i], mean)
                if outside:
                    asked[i].add(min(outside, key=lambda j: at[j]))
                    asked[i].remove(max(inside, key=lambda j: at[j]))
                    changed += 1
        noted, knew = s.copy(), known.copy()
        for i in range(N):
            mine = sorted(asked[i])
            assert after[i] == pytest.approx(z[[i, *mine]].mean(axis=0), abs=1e-12)
            for j in mine:
                s[i, j], known[i, j] = similarity(z[i], z[j]), 3
            for m in set(range(N)) - {i}:
                by = [j for j in mine if knew[j, m] == 3]
                if known[i, m] != 3 and by:
                    s[i, m], known[i, m] = np.mean([s[i, j] * noted[j, m] for j in by]), 2
                elif not known[i, m] and any(knew[j, m] for j in mine):
                    known[i, m] = 1
        assert played.memory(k)[:, 0] == pytest.approx(s, abs=1e-9)
        assert (played.memory(k)[:, 1] == known).all()
    assert changed == 2 * N
    assert np.diff(played.floats).tolist() == [2 * N * (P + 2 * N)] * 9


def test_losses_and_gradients_are_of_validation_samples():
    gossip = {"name": "gossip", "topology": "complete", "correction": "l2c"}
    more = {"dtype": "float64", "evaluation": {"validation_fraction": 0.25}}
    engine = prepared("fedavg", gossip, **more)
    clients = engine.everyone
    channel = engine.setup.exchange.at(1, np.ones(4, bool))
    engine.setup.hold_out(channel, clients)
    held_out = channel.held_out
    w, val = np.random.default_rng(0).normal(size=7), clients.shards.val
    for place in range(4):
        part = val.rows_of(place)
        x, y = np.pad(val.x[part], [(0, 0), (0, 1)], constant_values=1), val.y[part].numpy()
        risk = np.mean(np.logaddexp(0, x @ w) - y * (x @ w))
        slope = x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y)
        assert held_out.losses(place, np.stack([0 * w, w])) == pytest.approx([np.log(2), risk])
        assert held_out.gradient(place, w) == pytest.approx(slope, rel=1e-10)
