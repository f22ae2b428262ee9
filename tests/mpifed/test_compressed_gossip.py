"""Training over gossip of compressed messages, as a user runs it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from commands import call, rows

from mpifed.exchange import choco
from mpifed.exchange.choco import (
    contracted,
    gossip_step,
    optimal_step,
    shrinkage,
    theoretical_step,
)
from mpifed.exchange.compression import build
from mpifed.exchange.gossip import Gossip
from mpifed.federation.clients import Draws
from mpifed.federation.federation import Federation
from mpifed.mpi.communicator import Alone

FLIX = (
    "synthetic-fedem",
    "clients=10",
    "rounds=200",
    "dtype=float64",
    "data.n_test=10",
    "data.dimension=6",
    "evaluation.every=200",
    "exchange=gossip",
    "algorithm=flix",
    "algorithm.flix_alpha=0.5",
    "algorithm.l2=0.1",
    "algorithm.start=zeros",
    "algorithm.local_iterations=200",
    "--quiet",
)
TOP_K = ("compression=top_k", "compression.k=1")


def theoretical_rate(gap: float, delta: float) -> float:
    """Return 1 - rho^2 delta / 82, the factor of the error in a round (Theorem 2)."""
    return 1 - gap**2 * delta / 82


def ends(words, target, capfd):
    """The objective's gap and the distance from consensus after the last round, and the log."""
    done = call([*FLIX, *words, "--output", target], capfd)
    assert done.code == 0, done.err
    last = rows(target)[-1]
    log = (target / "log.txt").read_text()
    return float(last["objective_gap"]), float(last["consensus_distance"]), log


@pytest.mark.slow
def test_with_the_default_step_little_is_lost_to_quantised_messages(tmp_path, capfd):
    gap, distance, log = ends([], tmp_path / "plain", capfd)
    assert "consensus step" not in log
    lossy_gap, lossy_distance, log = ends(["compression=quantise"], tmp_path / "lossy", capfd)
    assert lossy_gap <= 3 * gap and lossy_distance <= 3 * distance
    assert "consensus step" in log and "warning" not in log
    paper = ["compression=quantise", "exchange.consensus_step=paper"]
    cautious_gap, cautious_distance, log = ends(paper, tmp_path / "paper", capfd)
    assert cautious_gap > 3 * gap and cautious_distance > 3 * distance
    assert re.search("consensus step .*paper", log)


def test_a_step_too_small_for_the_rounds_is_warned_of(tmp_path, capfd):
    words = [*FLIX, *TOP_K, "--output", tmp_path / "run"]
    warning = "warning: .* 200 rounds"
    for more in ([], ["exchange.consensus_step=paper"], ["exchange.consensus_step=1e-9"]):
        dry = call([*words, *more, "--dry-run"], capfd)
        assert dry.code == 0, dry.err
        assert re.search(f"{warning}.*exchange.consensus_step", dry.out)
    for more in ("rounds=1000000", "exchange.consensus_step=0.5"):
        dry = call([*words, more, "--dry-run"], capfd)
        assert "consensus step" in dry.out and "warning" not in dry.out
    assert re.search(warning, ends(TOP_K, tmp_path / "run", capfd)[2])


@pytest.mark.parametrize("option", ["drop_nodes=0.2", "drop_edges=0.3", "local_rounds=2"])
def test_replicas_need_every_message_of_every_round(option, tmp_path, capfd):
    schedule = ["exchange.schedule.name=static", f"exchange.schedule.{option}"]
    words = [*FLIX, *schedule, "--output", tmp_path / "run", "--dry-run"]
    assert call(words, capfd).code == 0
    done = call([*words, *TOP_K], capfd)
    assert done.code == 2
    assert f"exchange.schedule.{option.replace('=', ' is ')}" in done.err


# CHOCO-Gossip with a dense W in one process.


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


def directed(n):
    """W = I / 2 + P / 4 + P^2 / 4 for a cyclic shift P, not symmetric."""
    shift = np.roll(np.eye(n), 1, axis=1)
    return np.eye(n) / 2 + shift / 4 + shift @ shift / 4


def constants(w):
    """rho and beta by the eigenvalues of a normal W."""
    values = np.linalg.eigvals(w)
    return 1 - np.sort(np.abs(values))[-2], np.max(np.abs(1 - values))


def coefficients(step, gap, spread, delta):
    """What a round makes of (||X - mean||, ||X - replicas||), at most; (..., 2, 2)."""
    s, moved = np.sqrt(1 - delta), np.asarray(step) * spread
    rows = [[1 - step * gap, moved], [s * moved, s * (1 + moved)]]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


def radius(step, *known):
    """The spectral radius of ``coefficients``, for every step."""
    return np.abs(np.linalg.eigvals(coefficients(step, *known))).max(axis=-1)


def grid():
    """rho, beta and delta all over their ranges."""
    for gap in (1e-6, 0.01, 0.2, 0.5, 1.0):
        for spread in np.linspace(gap, 2, 6):
            for delta in (1e-6, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999999, 1.0):
                yield gap, spread, delta


def random_start(seed=0, n=N):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, SIZE)) * 3 + 1)


def gossip(section, w, rounds, seed=0, step_size=None):
    """The values, and before every round ||X - mean|| and ||X - replicas||."""
    compressor, step = build(section), step_size
    if step is None:
        step = theoretical_step(*constants(w), compressor.contraction(SIZE))
    matrix = torch.from_numpy(w)
    values, replicas, errors = random_start(n=len(w)), torch.zeros(len(w), SIZE).double(), []
    for k in range(rounds):
        draws = Draws(seed, k + 1)
        sent = contracted(compressor, values - replicas, draws, np.arange(len(w)))
        off = values - values.mean(dim=0), values - replicas - sent
        errors.append([float(part.norm()) for part in off])
        values, replicas = gossip_step(values, replicas, sent, lambda x: matrix @ x, step)
    return values, np.array(errors)


def rate_of_theorem_2(section, w):
    return theoretical_rate(constants(w)[0], build(section).contraction(SIZE))


@pytest.mark.parametrize("section", COMPRESSORS, ids=lambda s: "-".join(map(str, s.values())))
def test_consensus_on_the_mean_at_the_theoretical_step(section):
    start = random_start()
    values, found = gossip(section, ring(N), 2000)
    errors, rate = (found**2).sum(axis=1), rate_of_theorem_2(section, ring(N))
    assert errors[-1] < 1e-6 * errors[0]
    # The bound for the expectation; these runs are far below it.
    assert (errors <= 1.001 * errors[0] * rate ** np.arange(len(errors)))[50:].all()
    assert torch.allclose(values.mean(dim=0), start.mean(dim=0), atol=1e-12)
    assert torch.allclose(values, start.mean(dim=0).expand(N, -1), atol=0.02)


def test_a_deterministic_compressor_is_within_the_bound_in_every_round():
    section = {"name": "top_k", "k": 3}
    errors = (gossip(section, ring(N), 400)[1] ** 2).sum(axis=1)
    assert (errors[1:] <= rate_of_theorem_2(section, ring(N)) * errors[:-1] * (1 + 1e-12)).all()


@pytest.mark.parametrize("w", [ring(4), ring(9), directed(5)], ids=["ring", "long ring", "arcs"])
@pytest.mark.parametrize("section", COMPRESSORS, ids=lambda s: "-".join(map(str, s.values())))
def test_at_the_optimal_step_errors_fall_as_the_recursion_says(section, w):
    known = *choco.constants(w), build(section).contraction(SIZE)
    step, s = optimal_step(*known), np.sqrt(1 - known[2])
    values, found = gossip(section, w, 300, step_size=step)
    a, e = found.T
    if section["name"] == "top_k":
        assert (found[1:] <= (found[:-1] @ coefficients(step, *known).T) * (1 + 1e-9)).all()
    if s == 0:
        assert not e.any()
    errors = np.hypot(a, e / np.sqrt(s)) if s else a
    # The bound for the expectation; these runs are far below it.
    bound = 1.001 * errors[0] * (1 - shrinkage(step, *known)) ** np.arange(len(errors))
    assert (errors <= bound + 1e-12)[10:].all()
    assert torch.allclose(values.mean(dim=0), random_start(n=len(w)).mean(dim=0), atol=1e-12)


@pytest.mark.parametrize("w", [ring(4), ring(7), directed(6)], ids=["even", "odd", "arcs"])
def test_rho_and_beta_are_those_of_the_eigenvalues(w):
    assert np.allclose(choco.constants(w), constants(w), atol=1e-14)


def test_no_step_on_a_grid_contracts_more_than_the_optimal_one():
    steps = np.linspace(1e-3, 1, 1000)
    for known in grid():
        best = optimal_step(*known)
        assert 0 < best <= 1
        tried = np.concatenate([steps, best * np.linspace(0.5, 1.5, 101)])
        found = radius(best, *known)
        assert found <= radius(tried[tried <= 1], *known).min() + 1e-12
        assert np.isclose(1 - shrinkage(best, *known), found, rtol=0, atol=1e-12)
        assert shrinkage(best, *known) > 0


def test_beyond_the_last_contracting_step_no_bound_is_known():
    gap, spread, delta = 0.3, 1.4, 0.2
    s = np.sqrt(1 - delta)
    last = gap * (1 - s) / (s * spread * (gap + spread))
    for factor, contracts in ((0.999, True), (1.001, False), (10, False)):
        known = factor * last, gap, spread, delta
        assert (shrinkage(*known) > 0) == contracts
        assert np.isclose(1 - shrinkage(*known), radius(*known), rtol=0, atol=1e-12)


def test_without_loss_the_optimal_step_is_plain_gossip():
    for gap, spread, _ in grid():
        assert optimal_step(gap, spread, 1.0) == 1.0
        assert np.isclose(shrinkage(1.0, gap, spread, 1.0), gap, rtol=1e-12)


def test_the_recursion_is_never_behind_theorem_2():
    for gap, spread, delta in grid():
        step = theoretical_step(gap, spread, delta)
        assert (1 - shrinkage(step, gap, spread, delta)) ** 2 <= theoretical_rate(gap, delta)
        assert step <= optimal_step(gap, spread, delta)


def test_the_forecast_counts_the_rounds_that_halve():
    known = 0.3, 1.4, 0.2
    step = optimal_step(*known)
    factor = radius(step, *known) ** 2
    halving = int(np.ceil(np.log(0.5) / np.log(factor)))
    (said,) = choco.forecast(step, "here", known, 10 * halving)
    assert re.search(rf"consensus step {step:.3g}\b.* here\b.* {halving:,} rounds", said)
    assert f"{factor:.6g}" in said
    again, warned = choco.forecast(step, "here", known, 10 * halving - 10)
    assert again == said
    assert warned.startswith("warning: ") and "exchange.consensus_step" in warned
    # Above the optimal step a bad bound says little, so nothing is warned of.
    assert len(choco.forecast(1.0, "here", known, 10)) == 1
    assert choco.forecast(1.0, "here", (0.5, 1.5, 1.0), 20)[0].endswith("in 1 round")


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


def test_the_gossip_exchange_takes_the_step_that_is_asked_for():
    x, section = torch.zeros(10, 9), {"name": "top_k", "k": 3}
    exchange, _ = channel_of(section, x)
    known = *constants(exchange.schedule.matrix(1).to_dense()), 3 / 9
    assert np.isclose(exchange.choco_step(9), optimal_step(*known), rtol=1e-12)
    paper, _ = channel_of(section, x, consensus_step="paper")
    assert np.isclose(paper.choco_step(9), theoretical_step(*known), rtol=1e-12)
    assert channel_of(section, x, consensus_step=0.7)[0].choco_step(9) == 0.7
    assert channel_of({"name": "top_k", "k": 9}, x)[0].choco_step(9) == 1


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
