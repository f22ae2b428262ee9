"""CHOCO-Gossip with a dense W in one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed.communicator import Alone
from mpifed.exchange.choco import contracted, gossip_step, theoretical_rate, theoretical_step
from mpifed.exchange.compression import build
from mpifed.exchange.gossip import Gossip
from mpifed.federation import Draws, Federation

N, SIZE = 4, 10
IDS = np.arange(N)
COMPRESSORS = [
    {"name": "none"},
    {"name": "top_k", "k": 3},
    {"name": "rand_k", "k": 3},
    {"name": "quantise", "bits": 4},
    {"name": "quantise", "levels": 1, "norm": "l2"},
    {"name": "natural"},
    {"name": "bernoulli", "p": 0.5},
    {"name": "composition", "inner": {"name": "top_k", "k": 3}, "outer": {"name": "natural"}},
]


def ring(n):
    w = np.eye(n) / 3
    for i in range(n):
        w[i, (i + 1) % n] += 1 / 3
        w[i, i - 1] += 1 / 3
    return w


def constants(w):
    """rho and beta by the eigenvalues of a symmetric W."""
    values = np.linalg.eigvalsh(w)
    return 1 - np.sort(np.abs(values))[-2], np.max(1 - values)


def random_start(seed=0, n=N):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, SIZE)) * 3 + 1)


def gossip(section, w, rounds, seed=0, step_size=None):
    """The values, and the theorem's error before every round."""
    compressor = build(section)
    gap, spread = constants(w)
    delta = compressor.contraction(SIZE)
    step = theoretical_step(gap, spread, delta) if step_size is None else step_size
    matrix = torch.from_numpy(w)
    values, replicas, errors = random_start(n=len(w)), torch.zeros(len(w), SIZE).double(), []
    mean = values.mean(dim=0)
    for k in range(rounds):
        draws = Draws(seed, k + 1)
        sent = contracted(compressor, values - replicas, draws, np.arange(len(w)))
        off = ((values - mean) ** 2).sum() + ((values - replicas - sent) ** 2).sum()
        errors.append(float(off))
        values, replicas = gossip_step(values, replicas, sent, lambda x: matrix @ x, step)
    return values, np.array(errors), theoretical_rate(gap, delta)


@pytest.mark.parametrize("section", COMPRESSORS, ids=lambda s: "-".join(map(str, s.values())))
def test_consensus_on_the_mean_at_the_theoretical_step(section):
    start = random_start()
    values, errors, rate = gossip(section, ring(N), 2000)
    assert errors[-1] < 1e-6 * errors[0]
    # The bound for the expectation; these runs are far below it.
    assert (errors <= 1.001 * errors[0] * rate ** np.arange(len(errors)))[50:].all()
    assert torch.allclose(values.mean(dim=0), start.mean(dim=0), atol=1e-12)
    assert torch.allclose(values, start.mean(dim=0).expand(N, -1), atol=0.02)


def test_a_deterministic_compressor_is_within_the_bound_in_every_round():
    _, errors, rate = gossip({"name": "top_k", "k": 3}, ring(N), 400)
    assert (errors[1:] <= rate * errors[:-1] * (1 + 1e-12)).all()


def test_identity_and_step_one_are_plain_gossip():
    w, start = torch.from_numpy(ring(N)), random_start()
    values, _, _ = gossip("none", ring(N), 7, step_size=1.0)
    assert torch.allclose(values, torch.linalg.matrix_power(w, 7) @ start, atol=1e-14)


def test_compressed_values_without_replicas_do_not_reach_consensus():
    # What replicas are for: the same messages mixed as they arrive keep an error.
    compressor, w = build({"name": "rand_k", "k": 3}), torch.from_numpy(ring(N))
    values = random_start()
    for k in range(2000):
        arrived = compressor(values, Draws(0, k + 1), IDS)
        values = values + 0.02 * (w @ arrived - arrived)
    assert ((values - values.mean(dim=0)) ** 2).sum() > 1e-2


def test_the_theoretical_step_contracts_as_theorem_2_says():
    # With A = sum ||x - mean||^2, B = sum ||x - x̂||^2 and Young's inequality for a and b:
    #   A' <= (1 + a) (1 - rho g)^2 A + (1 + 1 / a) g^2 beta^2 B
    #   B' <= (1 - delta) ((1 + b) (1 + g beta)^2 B + (1 + 1 / b) g^2 beta^2 A)
    for gap in np.linspace(0.01, 1, 12):
        for delta in np.linspace(0.01, 1, 12):
            for spread in np.linspace(gap, 2, 8):
                g = theoretical_step(gap, spread, delta)
                a, b, cross = g * gap / 2, delta / 2, (g * spread) ** 2
                of_a = (1 + a) * (1 - gap * g) ** 2 + (1 - delta) * (1 + 1 / b) * cross
                of_b = (1 + 1 / a) * cross + (1 - delta) * (1 + b) * (1 + g * spread) ** 2
                assert max(of_a, of_b) <= theoretical_rate(gap, delta)


def channel_of(compression, rows, **options):
    """A gossip exchange over a ring of ten that compresses, and its memory."""
    ids = np.arange(10)
    where = Federation(Alone(), 0 * ids, ids < 0, ids + 1)
    named = {
        "topology": "ring",
        "weights": "metropolis_hastings",
        "schedule": "static",
        **options,
    }
    stored = Gossip.prepare(where.communicator, 10, 0, named)
    exchange = Gossip(where, 0, stored, build(compression), **named)
    return exchange, exchange.remember([rows], 10, rows.dtype)


def averaged(exchange, memory, x, rounds):
    everyone = np.ones(10, bool)
    for k in range(1, 1 + rounds):
        channel = exchange.at(k, everyone, memory)
        x, memory = channel.average(x, torch.ones(10), x), channel.memory
    return x


def test_the_gossip_exchange_without_loss_is_plain_gossip():
    x = torch.randn(10, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exchange, memory = channel_of("identity", x, consensus_step=1.0)
    w = torch.from_numpy(exchange.schedule.matrix(1).to_dense())
    expected = torch.einsum("ab,bcd->acd", torch.linalg.matrix_power(w, 5), x)
    assert torch.allclose(averaged(exchange, memory, x, 5), expected, atol=1e-13)
    assert exchange.ledger.up_bits == exchange.ledger.down_bits == 5 * 20 * 21 * 64


@pytest.mark.parametrize(
    ("compression", "bits"),
    [({"name": "top_k", "k": 3}, 3 * (64 + 32)), ({"name": "rand_k", "k": 3}, 3 * 64)],
)
def test_the_gossip_exchange_reaches_a_consensus_through_lossy_messages(compression, bits):
    x = torch.randn(10, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exchange, memory = channel_of(compression, x, consensus_step=0.2)
    found = averaged(exchange, memory, x, 800)
    assert torch.allclose(found, x.mean(0).expand(10, -1), atol=1e-4)
    assert torch.allclose(found.mean(0), x.mean(0), atol=1e-12)
    assert exchange.ledger.up_bits == 800 * 20 * bits
