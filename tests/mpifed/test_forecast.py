"""Forecasts of rounds on other numbers of ranks: ``--plan``."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from on_ranks import SMALL

import mpifed
from mpifed.config.configuration import resolve
from mpifed.config.experiments import apply_overrides, read_experiment
from mpifed.errors import InputError
from mpifed.launch import main
from mpifed.mpi.communicator import world
from mpifed.mpi.played import Operation, Played
from mpifed.training import forecast as forecasts
from mpifed.training import played_rounds
from mpifed.training.build import make
from mpifed.training.clock import Clock
from mpifed.training.engine import Engine
from mpifed.training.forecast import forecast
from mpifed.training.network import Network, ping_pong, wall_seconds
from mpifed.training.plan_words import Plan, read_plan
from mpifed.training.played_rounds import Measured
from mpifed.training.samples import samples_of
from mpifed.training.spare import first_per_core, hosting_on
from mpifed.watchdog.launcher import is_alone

FAST = Network(latency=1e-6, overhead=1e-6, bandwidth=1e10)
NETWORK = {"latency": 2e-6, "overhead": 1e-6, "bandwidth": 1e9}


def configuration(**overrides):
    return resolve(apply_overrides(read_experiment("synthetic-fedem"), {**SMALL, **overrides}))


@pytest.mark.parametrize(("ranks", "steps"), [(2, 1), (3, 2), (4, 2), (1000, 10)])
def test_a_small_sum_takes_a_message_for_every_doubling_of_the_ranks(ranks, steps):
    empty = Operation("reduce", 0, 0)
    assert FAST.seconds(empty, ranks, 1) == pytest.approx(steps * 3e-6)


def test_a_large_sum_moves_every_byte_twice():
    network = Network(0, 0, 1e9)
    whole = Operation("reduce", 10**9, 10**9)
    assert network.seconds(whole, 1000, 1) == pytest.approx(2 * 0.999)
    assert network.seconds(Operation("gather", 10, 10**9), 1000, 1) == pytest.approx(1.0)
    assert network.seconds(Operation("neighbours", 5 * 10**8, 10**9, 3), 9, 1) == pytest.approx(1.0)


@given(st.integers(0, 10**9), st.integers(2, 10**5), st.integers(1, 128))
def test_sums_by_node_cross_the_network_between_nodes_alone(size, ranks, per_node):
    network = Network(1e-6, 0, 1e9)
    one = network.seconds(Operation("node sum", size, size), ranks, ranks)
    many = network.seconds(Operation("node sum", size, size), ranks, per_node)
    assert one == pytest.approx(3e-6 * np.ceil(np.log2(ranks)) + 2 * size / 1e9)
    nodes = -(-ranks // per_node)
    inside = 3e-6 * (np.ceil(np.log2(per_node)) if per_node > 1 else 0) + 2 * size / 1e9
    between = network.seconds(Operation("reduce", size, size), nodes, 1)
    assert many == pytest.approx(inside + between)


def test_one_rank_waits_for_nobody():
    operations = [Operation("reduce", 8, 8), Operation("neighbours", 8, 8, 2)]
    assert wall_seconds(FAST, operations, 1, 1) == 0 == FAST.cpu_seconds(operations[0], 1)


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_a_played_rank_asks_for_the_bytes_of_the_plan(exchange):
    made = configuration(exchange=exchange, clients=12)
    engine, rank = played_rounds.played(made, 3, 3)
    assert (
        engine.setup.federation.hosted.tolist()
        == np.flatnonzero(engine.setup.federation.owner == 0).tolist()
    )
    operations = played_rounds.measured(engine, rank).operations[-1]
    numbers = engine.setup.algorithm.payload()
    if exchange == "server":
        largest = max(one.sent for one in operations)
        assert largest == 8 * (numbers + 2)  # two more for the sum of the clients' weights
    else:
        route = engine.setup.exchange.routing.route(1, np.ones(12, bool), 4)
        rows = sum(len(wanted) for wanted in route.send[1:])
        moved = sum(one.sent for one in operations if one.kind in ("neighbours", "gather"))
        assert moved in (rows * 4 * numbers, len(route.mine) * 4 * numbers)


def test_a_played_rank_computes_what_a_lone_one_does():
    made = configuration(clients=4)
    engine, _ = played_rounds.played(made, 1, 1)
    from mpifed.mpi.communicator import Alone

    setup = make(made, Alone(), made.rounds)
    other = Engine(setup, samples_of(setup), Clock())
    other.prepare()
    for one in (engine, other):
        one.advance()
    assert engine.digest() == other.digest()
    assert torch.get_num_threads() >= 1


def test_more_ranks_have_fewer_clients_and_longer_waits(monkeypatch):
    monkeypatch.setattr(played_rounds, "ROUNDS", 1)
    few, many = (forecast(configuration(clients=40), ranks, 8, 8, FAST) for ranks in (2, 40))
    assert few.hosted > many.hosted == 1
    assert many.network > few.network > 0
    assert many.cpu(many.total) == pytest.approx(40 * many.work)
    assert many.total == many.compute + many.network


def test_a_played_rank_sends_and_waits_as_many_do():
    rank = Played(6, 2)
    rank.send(np.arange(5), 3)  # as rank 0 does with samples that it has read for others
    rank.barrier()
    found = [(one.kind, one.sent, one.messages) for one in rank.operations]
    assert found == [("neighbours", 40, 1), ("reduce", 0, 0)]


def rounds_of(*operations):
    return Measured(0.5, 0.5, [list(operations)], [], 1.0, 1)


def test_ranks_that_share_cores_take_turns_and_look_for_messages(monkeypatch):
    monkeypatch.setattr(forecasts, "measured", lambda *_: rounds_of(Operation("reduce", 8, 8)))
    monkeypatch.setattr(forecasts, "cost_of_a_look", lambda: 1e-5)
    one = forecast(configuration(clients=8), 8, 8, 2, FAST)
    assert one.compute >= 4 * one.work - 1e-3
    # Five looks before the pause is 3 ms long, and 1000 in the 3 s beside its own work.
    assert one.cpu(one.work + 3) == pytest.approx(8 * (one.work + 1005 * 1e-5))


def test_ranks_that_share_cores_poll_for_large_messages(monkeypatch):
    monkeypatch.setattr(forecasts, "cost_of_a_look", lambda: 1e-5)
    for size, polled in ((1 << 10, 0), (1 << 20, 4)):
        operations = [Operation("reduce", 8, 8), Operation("reduce", size, size)]
        monkeypatch.setattr(forecasts, "measured", lambda *_, given=operations: rounds_of(*given))
        one = forecast(configuration(clients=8), 8, 4, 2, FAST)
        assert one.polled == polled
        sleeping = 8 * (one.work + (2 * 5 + 1000) * 1e-5)
        idle = max(0, 4 * (one.work + 3) - sleeping)
        expected = sleeping + (forecasts.BUSY_SHARE * idle if polled else 0)
        assert one.cpu(one.work + 3) == pytest.approx(expected)


@given(
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(1, 30),
    st.sampled_from(["ranks", "cores"]),
)
def test_ranks_that_would_host_are_those_that_do(ranks, per_node, cores, threads, clients, hosts):
    made = resolve({"clients": clients, "hosts": hosts, "threads": threads})
    nodes = [rank // per_node for rank in range(ranks)]
    usable = [frozenset(range(cores))] * ranks
    found = first_per_core(nodes, usable, threads) if hosts == "cores" else range(ranks)
    if ranks > 1:
        assert hosting_on(made, ranks, per_node, cores)[0] == len([*found][:clients])
    assert hosting_on(made, 1, per_node, cores)[0] == 1


def test_clients_are_hosted_by_a_rank_for_each_core(monkeypatch):
    monkeypatch.setattr(played_rounds, "ROUNDS", 1)
    some = configuration(clients=40, hosts="cores")
    one, every = forecast(some, 16, 16, 2, FAST), forecast(some, 2, 2, 2, FAST)
    assert (one.ranks, one.hosting, one.hosted) == (16, 2, every.hosted)
    assert one.waits == every.waits == 0
    # Fourteen ranks look for the end of the run every 0.1 s.
    assert one.cpu(1.0) == pytest.approx(2 * one.work + 14 * 10 * one.look)
    assert one.look > 0 == every.look


def test_ranks_above_the_number_of_clients_sleep(monkeypatch):
    monkeypatch.setattr(played_rounds, "ROUNDS", 1)
    one = forecast(configuration(clients=4), 9, 9, 9, FAST)
    assert (one.hosting, one.hosted) == (4, 1)
    assert one.cpu(1.0) == pytest.approx(4 * one.work + 5 * 10 * one.look)


def test_a_plan_is_read():
    found = read_plan({"ranks": [1, 4], "cores": 2, **NETWORK})
    assert found == Plan((1, 4), None, 2, Network(2e-6, 1e-6, 1e9))
    assert read_plan({"ranks": 3}) == Plan((3,))
    # what YAML 1.1 reads as text, as everywhere on the command line
    assert read_plan({"ranks": 3, **NETWORK, "latency": "2e-6"}).network == found.network


def test_a_site_gives_the_network_and_words_overrule_it(tmp_path):
    site = tmp_path / "site.yaml"
    site.write_text("latency: 3.0e-6\noverhead: 0\nbandwidth: 1.0e+9\ncores: 64\n")
    found = read_plan({"ranks": 2, "site": str(site), "latency": 1e-6})
    assert found == Plan((2,), None, 64, Network(1e-6, 0, 1e9))


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({}, "ranks is missing; allowed: an integer from 1"),
        ({"ranks": 0}, "ranks is 0; allowed"),
        ({"ranks": True}, "ranks is True; allowed"),
        ({"ranks": []}, "ranks is"),
        ({"ranks": 2, "cores": 0}, "cores is 0; allowed: an integer from 1"),
        ({"ranks": 2, "latency": 1e-6}, "gives latency but not overhead, bandwidth"),
        ({"ranks": 2, **NETWORK, "bandwidth": 0}, "bandwidth is 0; allowed: a number above 0"),
        ({"ranks": 2, **NETWORK, "latency": -1}, "latency is -1; allowed: a number from 0"),
        ({"ranks": 2, "speed": 1}, "has the key speed; allowed: bandwidth, cores"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(given_, message):
    with pytest.raises(InputError, match=message):
        read_plan(given_)


def words(*more):
    return [*(f"{key}={value}" for key, value in SMALL.items()), "--plan", *more]


def test_the_command_shows_a_line_for_each_number_of_ranks(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = ("latency=2.0e-6", "overhead=1.0e-6", "bandwidth=1.0e+9")
    assert main([*words("ranks=[1,3]", *network, "clients=9")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("network     latency 2e-06 s, overhead 1e-06 s, 1e+09 bytes")
    assert lines[2].split()[:4] == ["ranks", "hosting", "most", "clients/rank"]
    (one, _, nine), (three, hosting, most) = (line.split()[:3] for line in lines[3:])
    assert (one, nine, three, hosting) == ("1", "9", "3", "3") and 3 <= int(most) <= 7
    assert lines[3].split()[-1] == "MB"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("launcher", [{}, {"PMI_RANK": "0", "PMI_SIZE": "1"}])
def test_one_rank_cannot_measure_a_network(launcher, tmp_path):
    known = {name: text for name, text in os.environ.items() if "PMI" not in name}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words("ranks=4")],
        env={**known, "PYTHONPATH": str(Path(mpifed.__file__).parents[1]), **launcher},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "--plan needs latency, overhead and bandwidth (or site)" in done.stderr
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


WITHOUT_TORCH = """
import sys
from mpifed.launch import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""


def test_ranks_that_are_given_twice_are_planned_once():
    assert read_plan({"ranks": [4, 1, 4, 2, 1]}).ranks == (4, 1, 2)


def test_a_key_that_is_given_twice_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words("ranks=2", "ranks=3", "latency=1")) == 2
    assert (
        capsys.readouterr().err == "mpifed: --plan gives ranks twice, '2' and '3'; give it once\n"
    )


def test_ranks_of_a_job_may_measure(monkeypatch):
    for name in os.environ:
        if "PMI" in name or "OMPI" in name or "SLURM" in name:
            monkeypatch.delenv(name)
    assert is_alone()
    monkeypatch.setenv("PMI_RANK", "0")
    assert not is_alone()  # nothing is said of their number
    monkeypatch.setenv("PMI_SIZE", "2")
    assert not is_alone()
    monkeypatch.setenv("PMI_SIZE", "1")
    assert is_alone()


@pytest.mark.mpi
def test_two_ranks_measure_their_network():
    communicator = world()
    if communicator.size < 2:
        return
    found = ping_pong(communicator)
    assert found.overhead > 0 and found.latency >= 0 and found.bandwidth > 1e6
    every = communicator.gather_object(dataclasses.astuple(found)) or [dataclasses.astuple(found)]
    assert len({*every}) == 1


@pytest.mark.parametrize("kind", ["reduce", "node sum", "broadcast", "gather"])
def test_a_played_rank_notes_what_it_is_asked_for(kind):
    rank = Played(6, 2)
    values = np.arange(5)
    made = {
        "reduce": lambda: rank.sum(values),
        "node sum": lambda: rank.node_sums(rank.nodes()).begin(values[None])()[0],
        "broadcast": lambda: rank.broadcast(values),
        "gather": lambda: rank.gather_rows(values[:, None], [5] + 5 * [2])[:5, 0],
    }[kind]()
    assert np.array_equal(made, values)
    assert [(one.kind, one.sent) for one in rank.operations] == [(kind, 40)]
    assert rank.nodes().tolist() == [0, 0, 1, 1, 2, 2]
