"""The clock of the simulated federation."""

from __future__ import annotations

import numpy as np
import pytest
from commands import rows
from on_ranks import SMALL, same_after_a_resume, unlike_one_rank

import mpifed
from mpifed.config.configuration import resolve
from mpifed.errors import InputError
from mpifed.federation.links import read_links, step_seconds
from mpifed.federation.options import ComputeOptions, NetworkOptions
from mpifed.mpi.communicator import Alone
from mpifed.report.figure import Wanted, series
from mpifed.report.runs import find_runs
from topologies.links.network import read_network
from topologies.links.overlays import cycle_time, design

ROUNDS, STEPS, N = 4, 5, 7
QUICK = {**SMALL, "local.steps": STEPS, "network.latency": 0.25, "compute.seconds": 0.125}
GOSSIP = {"exchange": "gossip", "exchange.weights": "metropolis_hastings"}
NO_TIMES = {"network.latency": 0.0, "compute.seconds": 0.0}
SITES = "0,0.2,0.5\n0.2,0,0.1\n0.5,0.1,0\n"
CASES = {
    "ring": {
        **GOSSIP,
        "exchange.topology": "ring",
        "compute": {"name": "lognormal", "seconds": 0.1, "client_sigma": 1, "round_sigma": 0.5},
        "participation": 0.6,
    },
    "server": {
        "network": {"latency": 0.1, "bandwidth": 1e6, "upload": 1e5},
        "participation": {"name": "stragglers", "rate": 0.4, "late": "partial"},
        "compute.seconds": 0.1,
        "compression": "natural",
    },
}


def run(tmp_path, **overrides):
    made = {"rounds": ROUNDS, **QUICK, **overrides}
    return mpifed.run("synthetic-fedem", output=tmp_path / "run", **made)


def bits_of_a_message(result, messages):
    return result.metrics["up_bits"][-1] / ROUNDS / messages


def test_gossip_on_a_complete_graph_waits_for_all(tmp_path):
    links = {"network.bandwidth": 1e6, "network.upload": 2e6}
    result = run(tmp_path, **GOSSIP, **{"exchange.topology": "complete"}, **links)
    size = bits_of_a_message(result, N * (N - 1))
    seconds = STEPS * 0.125 + 0.25 + size / min(1e6, 2e6 / (N - 1))
    expected = seconds * result.metrics["round"]
    assert result.metrics["simulated_seconds"] == pytest.approx(expected, rel=1e-12)
    assert result.summary["simulated_seconds"] == result.metrics["simulated_seconds"][-1]


def test_a_server_waits_for_the_way_there_and_back(tmp_path):
    result = run(tmp_path, **{"network.bandwidth": 1e6, "compression": "rand_k"})
    ends = result.metrics["down_bits"][-1], result.metrics["up_bits"][-1]
    down, up = (bits / ROUNDS / N for bits in ends)
    assert up < down / 2
    seconds = ROUNDS * (STEPS * 0.125 + 2 * 0.25 + (down + up) / 1e6)
    assert result.metrics["simulated_seconds"][-1] == pytest.approx(seconds, rel=1e-12)


def test_a_method_that_sends_nothing_only_computes(tmp_path):
    result = run(tmp_path, algorithm="local")
    assert result.metrics["simulated_seconds"][-1] == pytest.approx(ROUNDS * STEPS * 0.125)


def test_a_trace_gives_each_client_its_time(tmp_path):
    trace = np.arange(1.0, 1 + 3 * N).reshape(3, N)
    np.savetxt(tmp_path / "trace.csv", trace, delimiter=",")
    compute = {"name": "trace", "path": str(tmp_path / "trace.csv")}
    result = run(tmp_path, **{"compute": compute, "compute.seconds": 0.0, "network.latency": 0.0})
    slowest = [trace[k % 3].max() for k in range(ROUNDS)]
    assert result.metrics["simulated_seconds"][-1] == STEPS * sum(slowest)


def test_what_this_computer_measures_is_kept_by_a_resume(tmp_path):
    compute = {"compute": {"name": "measured"}, "compute.seconds": 0.0, "network.latency": 0.0}
    first = run(tmp_path, **compute)
    seconds = first.metrics["simulated_seconds"]
    assert seconds[1] > 0 and seconds[2] == pytest.approx(2 * seconds[1])
    options = {"output": tmp_path / "run", "resume": True, "rounds": 2 * ROUNDS}
    more = mpifed.run(**options).metrics["simulated_seconds"]
    assert more[-1] == pytest.approx(4 * seconds[1])
    assert more[:3].tolist() == seconds.tolist()


def test_without_a_network_there_is_no_clock(tmp_path):
    result = run(tmp_path, **NO_TIMES)
    assert "simulated_seconds" not in result.metrics
    assert "network" not in (tmp_path / "run" / "config.yaml").read_text()


def test_a_clock_changes_no_number_of_the_training(tmp_path):
    timed = run(tmp_path / "timed", **CASES["ring"])
    plain = run(tmp_path / "plain", **(CASES["ring"] | {"network": {}, "compute": {}} | NO_TIMES))
    assert "simulated_seconds" not in plain.metrics
    assert (timed.metrics["state_digest"] == plain.metrics["state_digest"]).all()


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_same_times(tmp_path, case):
    assert same_after_a_resume({**SMALL, **CASES[case]}, tmp_path)
    assert "simulated_seconds" in rows(tmp_path / "whole")[0]


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_times_do_not_depend_on_ranks(tmp_path, case):
    assert unlike_one_rank({**SMALL, **CASES[case]}, tmp_path) == []


@pytest.mark.parametrize("name", ["mst", "delta_mbst", "ring"])
def test_a_designed_overlay_takes_its_cycle_time(tmp_path, name):
    (tmp_path / "sites.csv").write_text(SITES)
    path = str(tmp_path / "sites.csv")
    way = {"topology": {"name": name, "path": path}, "weights": "metropolis_hastings"}
    if name == "ring":
        way = {"schedule": {"name": "tour", "path": path}}
    options = {**NO_TIMES, "clients": 3, "network.path": path, "evaluation.every": 1, "rounds": 30}
    result = run(tmp_path, exchange={"name": "gossip", **way}, **options)
    overlay = design(name, read_network(path), message_bits=8 * 4e6)
    cycle = cycle_time(overlay, read_network(path), message_bits=0)
    seconds = result.metrics["simulated_seconds"]
    assert (seconds[30] - seconds[24]) / 6 == pytest.approx(cycle, rel=1e-9)


def test_lognormal_times_have_their_law():
    options = ComputeOptions(name="lognormal", seconds=2.0, client_sigma=0.6, round_sigma=0.8)
    clients = np.arange(4000)
    links, _ = read_links(NetworkOptions(latency=1.0), 4000, Alone())
    seconds = step_seconds(options, links, clients, 3, Alone())
    logs = np.array([np.log(seconds(k, clients) / 2.0) for k in range(1, 9)])
    assert logs.mean() == pytest.approx(0, abs=0.05)
    assert logs.mean(axis=0).var() == pytest.approx(0.36 + 0.64 / 8, rel=0.1)
    assert (logs - logs.mean(axis=0)).var() == pytest.approx(0.64 * 7 / 8, rel=0.05)
    assert (seconds(5, clients[17:20]) == seconds(5, clients)[17:20]).all()


def test_sites_of_a_file(tmp_path):
    (tmp_path / "sites.csv").write_text(SITES)
    options = NetworkOptions(path=str(tmp_path / "sites.csv"), upload=1e6)
    links, server = read_links(options, 6, Alone())
    assert links.site.tolist() == [0, 0, 1, 1, 2, 2]
    assert server == 1
    there = links.travel(np.array([0, 0, 1]), np.array([1, 4, 5]), 1e6)
    assert there == pytest.approx([1.0, 1.5, 1.5])


@pytest.mark.parametrize(
    ("section", "options", "words"),
    [
        ("network", {"latency": -1}, "network.latency is -1; it must be a number, at least 0"),
        ("network", {"server": 1}, "network.server is 1, a site of a file"),
        ("compute", {"name": "lognormal", "seconds": 1}, "compute.client_sigma or"),
        ("compute", {"name": "trace"}, "compute.path is empty"),
    ],
)
def test_wrong_sections_are_refused(section, options, words):
    with pytest.raises(InputError, match=words):
        resolve({section: options})


def test_a_figure_is_drawn_over_the_clock(tmp_path):
    for latency in (0.25, 1.0):
        run(tmp_path / f"{latency}", **{"network.latency": latency})
    lines = series(find_runs([tmp_path]), Wanted("test_accuracy", "simulated_seconds"))
    assert sorted(line.x[-1] for line in lines) == [
        pytest.approx(ROUNDS * (STEPS * 0.125 + 2 * latency)) for latency in (0.25, 1.0)
    ]


def test_both_messages_of_gradient_tracking_take_their_time(tmp_path):
    links = {"network.bandwidth": 1e6, "network.latency": 0.0, "compute.seconds": 0.0}
    way = {**GOSSIP, "exchange.topology": "complete", "algorithm": "fedavg", **links}
    plain = run(tmp_path / "plain", **way).metrics
    tracked = run(tmp_path / "tracked", **way, **{"exchange.correction": "tracking"}).metrics
    assert tracked["up_bits"][-1] > 1.4 * plain["up_bits"][-1]
    for found in (plain, tracked):
        expected = found["up_bits"] / (N * (N - 1)) / 1e6
        assert found["simulated_seconds"] == pytest.approx(expected, rel=1e-9)
