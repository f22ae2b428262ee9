"""Gossip without waiting: versions by a simulation of every event, closed forms, runs, refusals."""

from __future__ import annotations

import heapq
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_runs import engine_of, prepared, stored_of
from on_ranks import same_after_a_resume, unlike_one_rank
from small_runs import PLAIN, mixes_as_given

from mpifed.checkpoint import files as checkpoint
from mpifed.components.tables import ALGORITHMS
from mpifed.config.configuration import resolve, to_mapping
from mpifed.errors import InputError
from mpifed.exchange.asynchrony import FRESH, Timetable, partners_of
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.mixing_options import completed_options
from mpifed.federation.clients import Draws
from mpifed.federation.federation import Federation
from mpifed.mpi.communicator import Alone
from mpifed.state import shared_tensors
from mpifed.training import evaluation, exchanging
from topologies.links.events import Computations, Versions
from topologies.links.network import one_site

N, D, SEED = 6, 3, 5
TARGETS = np.random.default_rng(2).normal(size=(N, D)) * 3


def seconds_of(table):
    return lambda p, nodes: table[(p - 1) % len(table), nodes]


def lognormal(seed, client_sigma=0.8, rows=4000):
    draw = np.random.default_rng(seed)
    return np.exp(client_sigma * draw.normal(size=N) + 0.4 * draw.normal(size=(rows, N)))


class Quadratics:
    """Descent on h (x - c_i)^2 / 2 by full gradients, one step a computation."""

    def __init__(self, mixes, table, latency=0.0, slots=2, eta=0.1, topology="ring", absent=0.0):
        given = {"topology": topology, "weights": "metropolis_hastings", "schedule": "static"}
        more = {"consensus_step": None}
        more |= {"asynchrony": mixes, "kept_versions": slots}
        options = completed_options({**given, **more}, N)
        stored = Gossip.prepare(Alone(), N, SEED, options)
        federation = Federation(Alone(), np.zeros(N, int), np.zeros(N, bool), np.ones(N, int))
        self.exchange = Gossip(federation, SEED, stored, **options)
        self.w = self.exchange.schedule.matrix(1).to_dense()
        going = Computations.start(N, seconds_of(table))
        versions = Versions.empty(N, slots if mixes == "wait_free" else 0)
        timetable = Timetable(mixes, one_site(N, latency), 0.0, SEED, going, versions)
        self.timetable = self.exchange.timetable = timetable
        self.eta, self.absent, self.round = eta, absent, 0
        self.x = torch.from_numpy(np.random.default_rng(9).normal(size=(N, D)))
        self.memory = self.exchange.remember([self.x], N, torch.float64)

    def present(self, round):
        return np.random.default_rng(round).random(N) >= self.absent

    def go(self):
        """A round. Returns who took part, when, and the plan."""
        self.round += 1
        active = self.exchange.participants(self.round, self.present(self.round))
        rows = torch.from_numpy(np.flatnonzero(active))
        channel = self.exchange.at(self.round, active, self.memory)
        kept = self.timetable.versions.number.copy()
        before = self.x[rows]
        moved = before - self.eta * (before - torch.from_numpy(TARGETS)[rows])
        ones = torch.ones(len(rows), dtype=torch.float64)
        self.x = self.x.index_copy(0, rows, channel.average(moved, ones, before=before))
        return SimpleNamespace(
            plan=channel.combination, kept=kept, finished=self.timetable.finished
        )


def every_event(table, latency, slots, w, eta, x, horizon, absent=lambda node, p: False):
    """SWIFT, one event after the other: mailboxes of (arrival, version, value) for every arc."""
    x, queue = x.copy(), [(table[0, i], i, 1) for i in range(N)]
    heapq.heapify(queue)
    mail = {(j, i): [] for j in range(N) for i in range(N) if i != j and w[j, i]}
    sent = [[] for _ in range(N)]
    read, ended, stale = {}, np.zeros(N, int), []
    while queue and queue[0][0] <= horizon:
        at = queue[0][0]
        now = []
        while queue and queue[0][0] == at:
            now.append(heapq.heappop(queue)[1:])
        moved = {}
        for i, p in now:  # all send before any reads
            ended[i] = p
            heapq.heappush(queue, (at + table[p % len(table), i], i, p + 1))
            if absent(i, p):
                continue
            moved[i] = x[i] - eta * (x[i] - TARGETS[i])
            if sum(s + latency > at for s in sent[i]) < slots - 1:
                sent[i].append(at)
                for j in range(N):
                    if (j, i) in mail:
                        mail[j, i].append((at + latency, p, moved[i]))
        for j, p in now:
            if j not in moved:
                continue
            x[j], rest = 0, 1.0
            for i in range(N):
                here = [letter for letter in mail.get((j, i), []) if letter[0] <= at]
                if here:
                    x[j] += w[j, i] * here[-1][2]
                    rest -= w[j, i]
                    read[j, p, i] = here[-1][1]
                    stale.append(ended[i] - here[-1][1])
            x[j] += rest * moved[j]
    return x, read, stale


@pytest.mark.parametrize(("latency", "slots"), [(0.0, 2), (0.3, 2), (2.0, 2), (2.0, 5)], ids=str)
def test_versions_are_those_of_a_simulation_of_every_event(latency, slots):
    table = lognormal(1)
    problem = Quadratics("wait_free", table, latency, slots)
    start, read, oldest = problem.x.numpy().copy(), {}, 0
    for _ in range(60):
        one = problem.go()
        plan, counts = one.plan, problem.timetable.computations.counts
        used = plan.weights.tocoo()
        for row, column in zip(used.row, used.col, strict=True):
            j, i, slot = plan.receiver[row], plan.sender[column], plan.slot[column]
            if i != j:
                read[j, counts[j], i] = counts[i] if slot == FRESH else one.kept[i, slot]
                oldest = max(oldest, counts[i] - read[j, counts[j], i])
    expected, all_read, stale = every_event(
        table, latency, slots, problem.w, problem.eta, start, problem.timetable.seconds
    )
    assert read == all_read
    assert problem.x.numpy() == pytest.approx(expected, abs=1e-12)
    assert oldest > 0 or latency == 0
    assert problem.timetable.staleness.tolist() == [sum(stale), len(stale), max(stale)]
    assert (max(stale) > 0) == (latency > 0)


def test_who_is_absent_neither_computes_nor_sends():
    table = lognormal(4)
    problem = Quadratics("wait_free", table, 0.2, absent=0.4)
    start, gone = problem.x.numpy().copy(), set()
    for _ in range(40):
        problem.go()
        away = ~problem.present(problem.round)[problem.timetable.finished.nodes]
        nodes = problem.timetable.finished.nodes[away]
        gone |= {(i, problem.timetable.computations.counts[i]) for i in nodes.tolist()}
    assert gone
    expected, _, stale = every_event(
        table,
        0.2,
        2,
        problem.w,
        problem.eta,
        start,
        problem.timetable.seconds,
        lambda i, p: (i, p) in gone,
    )
    assert problem.timetable.staleness.tolist() == [sum(stale), len(stale), max(stale)]
    assert problem.x.numpy() == pytest.approx(expected, abs=1e-12)


def test_equal_times_and_a_latency_are_gossip_with_a_delay():
    """x^(k+1) = diag(W) y^k + (W - diag(W)) y^(k-2) with y = x + u, for l between one and two
    computations.
    """
    problem = Quadratics("wait_free", np.ones((1, N)), latency=1.5, slots=3)
    own, sent, x = np.diag(np.diag(problem.w)), [], problem.x.numpy().copy()
    for k in range(12):
        problem.go()
        sent.append(x - problem.eta * (x - TARGETS))
        x = own @ sent[k] + (problem.w - own) @ sent[k - 2] if k >= 2 else sent[k]
        assert problem.x.numpy() == pytest.approx(x, abs=1e-12)
    # All that is mixed from the third computation on is of the last but one: two behind.
    assert problem.timetable.staleness.tolist() == [2 * 10 * 2 * N, 10 * 2 * N, 2]


def test_pairs_are_averaged_one_after_the_other():
    table = lognormal(2)
    problem = Quadratics("pairwise", table, absent=0.2)
    started = problem.x.numpy().copy()
    live, counts = started.copy(), np.zeros(N, int)
    changed, stale = np.zeros(N, int), []
    w = problem.exchange.routing.weights(1)
    for _ in range(40):
        problem.go()
        present = problem.present(problem.round)
        for i in problem.timetable.finished.nodes:
            counts[i] += 1
            if not present[i]:
                continue
            update = -problem.eta * (started[i] - TARGETS[i])
            (j,) = partners_of(w, np.array([i]), counts[i : i + 1], SEED)
            assert w[i, j] and j != i
            stale.append(changed[i])
            changed[i] = 0
            if present[j]:
                changed[j] += 1
                live[i] = live[j] = (live[i] + live[j]) / 2
            live[i] += update
            started[i] = live[i]
    assert problem.x.numpy() == pytest.approx(started, abs=1e-12)
    assert problem.memory.kept[:, 0].numpy() == pytest.approx(live, abs=1e-12)
    assert problem.timetable.staleness.tolist() == [sum(stale), len(stale), max(stale)]
    assert max(stale) > 1


@pytest.mark.slow
@pytest.mark.parametrize("mixes", ["wait_free", "pairwise"])
def test_the_limit_counts_updates_as_it_says(mixes):
    """All alike without waiting; by frequency in pairs. The mean over rounds removes the noise."""
    table = lognormal(3, client_sigma=0.7)
    problem = Quadratics(mixes, table, eta=0.02, topology="complete")
    seconds, mean, rounds = table.mean(0), 0.0, 2000
    for _ in range(1000):
        problem.go()
    for _ in range(rounds):
        problem.go()
        mean = mean + problem.x.numpy().mean(0) / rounds
    shares = {"wait_free": np.full(N, 1 / N), "pairwise": (1 / seconds) / (1 / seconds).sum()}
    found = {name: np.abs(mean - share @ TARGETS).max() for name, share in shares.items()}
    other = ({*shares} - {mixes}).pop()
    assert found[mixes] < 0.15 < 0.1 * found[other]  # what is left is noise of the order of events


def gossip(mixes, **more):
    graph = {"topology": "ring", "weights": "metropolis_hastings"}
    return {"name": "gossip", **graph, "asynchrony": mixes, **more}


UNLIKE = {
    "network": {"latency": 0.05, "bandwidth": 1e5},
    "compute": {"name": "lognormal", "seconds": 0.1, "client_sigma": 0.8, "round_sigma": 0.3},
    "rounds": 6,
}
EQUAL = {"compute": {"seconds": 0.1}, "local": {"steps": 3, "batch_size": 16}}
METHODS = [name for name in ALGORITHMS if mixes_as_given(name) and name not in ("local", "sa_ssmm")]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["fedavg", "fedem"])
def test_equal_times_without_latency_are_synchronous_to_the_bit(name, dtype):
    found = []
    for mixes in ("none", "wait_free"):
        engine = prepared(name, gossip(mixes), **EQUAL, dtype=dtype)
        for _ in range(3):
            engine.advance()
        ledger = engine.setup.exchange.ledger
        found.append((engine.state.algorithm, engine.simulated.seconds, vars(ledger)))
    (one, *rest), (other, *others) = found
    assert rest == others and rest[0] == pytest.approx(3 * 3 * 0.1)
    for mine, theirs in zip(vars(one).values(), vars(other).values(), strict=True):
        assert not isinstance(mine, torch.Tensor) or torch.equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("mixes", ["wait_free", "pairwise"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_that_gossips_need_not_wait(name, mixes):
    refused = ("fedbn", "fedmm", "fedmm_theta") if mixes == "pairwise" else ()
    if name in refused:
        with pytest.raises(InputError, match="asynchrony"):
            engine_of(name, gossip(mixes), **UNLIKE)
        return
    engine = prepared(name, gossip(mixes), **UNLIKE)
    before = engine.state.algorithm
    for _ in range(6):
        engine.advance()
    assert engine.simulated.seconds > 0
    changed = zip(vars(before).values(), vars(engine.state.algorithm).values(), strict=True)
    assert any(isinstance(a, torch.Tensor) and not torch.equal(a, b) for a, b in changed)


@pytest.mark.parametrize("mixes", ["wait_free", "pairwise"])
def test_a_checkpoint_has_all_that_is_under_way(mixes, tmp_path):
    engine = prepared("fedavg", gossip(mixes), **UNLIKE, participation=0.7)
    for _ in range(3):
        engine.advance()
    engine.checkpoint(tmp_path, "round\n", stored_of(engine))
    engine.writer.finish()
    path = checkpoint.path_of(tmp_path / "checkpoints", 3)
    again = engine_of("fedavg", gossip(mixes), **UNLIKE, participation=0.7)
    again.restore(path, checkpoint.read_meta(path))
    for going in (engine, again):
        for _ in range(3):
            going.advance()
    assert again.digest() == engine.digest()
    assert again.simulated.stored().tobytes() == engine.simulated.stored().tobytes()


def test_runs_that_wait_do_not_mention_it():
    plain = resolve({**PLAIN, "exchange": {"name": "gossip"}})
    assert "asynchrony" not in to_mapping(plain)["exchange"]
    asked = resolve({**PLAIN, **EQUAL, "exchange": gossip("wait_free", kept_versions=4)})
    assert to_mapping(asked)["exchange"]["kept_versions"] == 4
    assert to_mapping(resolve(to_mapping(asked))) == to_mapping(asked)


@pytest.mark.parametrize(("latency", "kept"), [(0.0, 2), (0.3, 2), (0.31, 3), (0.9, 4), (50, 100)])
def test_versions_are_kept_for_as_many_computations_as_a_message_travels(latency, kept):
    more = {**EQUAL, "network": {"latency": latency}}  # a computation is three steps of 0.1 s
    exchange = engine_of("fedavg", gossip("wait_free"), **more).setup.exchange
    assert exchange.values_kept == kept
    exchange = engine_of("fedavg", gossip("wait_free", kept_versions=5), **more).setup.exchange
    assert exchange.values_kept == 5


def test_pairs_have_the_time_and_the_values_of_their_last_averages():
    more = {**EQUAL, "network": {"latency": 0.05}}
    engine = prepared("fedavg", gossip("pairwise"), **more)
    for k in range(1, 4):
        engine.advance()
        assert engine.simulated.seconds == pytest.approx(0.3 * k + 0.1 * (k - 1))
    exchange, shared = engine.setup.exchange, shared_tensors(engine.state.algorithm)
    (now,) = exchange.latest(shared, engine.state.memory)
    live = engine.state.memory.kept[:, 0].double()
    assert torch.equal(now.flatten(1).double(), live) and not torch.equal(now, shared[0])
    wanted = float((live - live.mean(0)).square().sum(1).mean())
    found = evaluation.evaluate(engine.setup, engine.shards, engine.state, Draws(0, 3)).distance
    assert found == pytest.approx(wanted, rel=1e-5)


def test_a_dry_run_says_what_is_kept():
    exchange = engine_of("fedavg", gossip("wait_free", kept_versions=3), **EQUAL).setup.exchange
    said = exchanging.describe(exchange, payload=40, itemsize=4)
    assert re.search(r"\b3 values .*\b480 bytes", said[1])


def of_ranks(mixes, **more):
    given = {f"exchange.{key}": value for key, value in gossip(mixes).items()}
    given["exchange"] = given.pop("exchange.name")
    small = {"clients": 7, "rounds": 4, "data.n_test": 20, "data.dimension": 12}
    every = {"evaluation.every": 2, "checkpoint.every": 2, "local.batch_size": 32}
    times = {key: UNLIKE[key] for key in ("network", "compute")}
    return {**small, **every, **given, **times, "participation": 0.8, **more}


CHANGING = {"exchange.schedule": "epidemic", "exchange.topology": None, "exchange.weights": None}
RUNS = {
    "wait_free": of_ranks("wait_free"),
    "versions": of_ranks("wait_free", **{"exchange.kept_versions": 4, "network.latency": 1.0}),
    "changing": of_ranks("wait_free", **CHANGING),
    "pairwise": of_ranks("pairwise"),
    "double": of_ranks("pairwise", dtype="float64"),
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", RUNS)
def test_it_is_the_same_on_these_ranks_as_on_one(case, tmp_path):
    assert unlike_one_rank(RUNS[case], tmp_path) == []


@pytest.mark.mpi
@pytest.mark.parametrize("case", RUNS)
def test_a_resumed_run_is_the_uninterrupted_one_on_other_ranks(case, tmp_path):
    assert same_after_a_resume(RUNS[case], tmp_path, rounds=9)
