"""The clock of the simulated federation."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from commands import rows, summary_of
from on_ranks import SMALL, folder_of, run_on_all, same_after_a_resume, unlike_one_rank
from on_ranks import run as run_alone

import mpifed
from mpifed.errors import InputError
from mpifed.federation.options import ComputeOptions, NetworkOptions
from mpifed.mpi.communicator import Alone, world
from mpifed.report.figure import FigureRequest, series
from mpifed.report.groups import group_runs
from mpifed.report.runs import find_runs
from mpifed.results.results import read_summary
from mpifed.retime import main
from mpifed.training.retiming import retime, write
from mpifed.training.simulated_time import read_links, step_seconds
from mpifed.training.verification import verify
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
    links = {"network.bandwidth": 1e6, "network.link": "per_path", "network.upload": 2e6}
    result = run(tmp_path, **GOSSIP, **{"exchange.topology": "complete"}, **links)
    size = bits_of_a_message(result, N * (N - 1))
    seconds = STEPS * 0.125 + 0.25 + size / min(1e6, 2e6 / (N - 1))
    expected = seconds * result.metrics["round"]
    assert result.metrics["simulated_seconds"] == pytest.approx(expected, rel=1e-12)
    assert result.summary["simulated_seconds"] == result.metrics["simulated_seconds"][-1]


@pytest.mark.parametrize(
    ("topology", "busiest"), [("ring", 2), ("star", N - 1), ("complete", N - 1)]
)
@pytest.mark.parametrize("link", ["shared", "per_path"])
def test_a_clients_link_is_shared_by_its_messages(tmp_path, topology, busiest, link):
    links = {"network.bandwidth": 1e4, "network.link": link}
    result = run(tmp_path, **GOSSIP, **{"exchange.topology": topology}, **links)
    arcs = 2 * (N if topology == "ring" else N - 1) if topology != "complete" else N * (N - 1)
    way = bits_of_a_message(result, arcs) * (busiest if link == "shared" else 1) / 1e4
    seconds = ROUNDS * (STEPS * 0.125 + 0.25 + way)
    assert result.metrics["simulated_seconds"][-1] == pytest.approx(seconds, rel=1e-12)


def test_a_server_waits_for_the_way_there_and_back(tmp_path):
    result = run(tmp_path, **{"network.bandwidth": 1e6, "compression": "rand_k"})
    ends = result.metrics["down_bits"][-1], result.metrics["up_bits"][-1]
    down, up = (bits / ROUNDS / N for bits in ends)
    assert up < down / 2
    seconds = ROUNDS * (STEPS * 0.125 + 2 * 0.25 + (down + up) / 1e6)
    assert result.metrics["simulated_seconds"][-1] == pytest.approx(seconds, rel=1e-12)
    shared = retime(result.directory, {"network.server_bandwidth": 2e6}).seconds[-1]
    seconds = ROUNDS * (STEPS * 0.125 + 2 * 0.25 + (down + up) / (2e6 / N))
    assert shared == pytest.approx(seconds, rel=1e-12)


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


def test_a_figure_is_drawn_over_the_clock(tmp_path):
    for latency in (0.25, 1.0):
        run(tmp_path / f"{latency}", **{"network.latency": latency})
    lines = series(find_runs([tmp_path]), FigureRequest("test_accuracy", "simulated_seconds"))
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
        expected = found["up_bits"] / N / 1e6
        assert found["simulated_seconds"] == pytest.approx(expected, rel=1e-9)


# Finished runs on another network: the same column as of a run that was trained there.


GOSSIP_RETIMING = {"exchange": "gossip", "exchange.weights": "metropolis_hastings"}
HERE = {"network": {"latency": 0.25, "bandwidth": 1e6}, "compute.seconds": 0.125}
THERE = {"network.latency": 0.01, "network.bandwidth": 3e4, "network.upload": 7e4}
CASES_RETIMING = {
    "ring of participants": {
        **GOSSIP_RETIMING,
        "exchange.topology": "ring",
        "compute": {"name": "lognormal", "seconds": 0.1, "client_sigma": 1, "round_sigma": 0.5},
        "participation": 0.6,
    },
    "fastest mixing, tracked": {
        **GOSSIP_RETIMING,
        "exchange.topology": {"name": "erdos_renyi", "p": 0.5},
        "exchange.weights": "fmmc",
        "exchange.correction": "tracking",
        "algorithm": "fedavg",
    },
    "another graph in each round": {
        "exchange": {"name": "gossip", "schedule": {"name": "epidemic", "sends": 2}}
    },
    "server with stragglers": {
        "participation": {"name": "stragglers", "rate": 0.4, "late": "partial"},
        "compression": "rand_k",
    },
    "nothing sent": {"algorithm": "local"},
}


def trained(output: Path, **overrides):
    return mpifed.run("synthetic-fedem", output=output, **{**SMALL, **HERE, **overrides})


@pytest.mark.parametrize("case", CASES_RETIMING)
def test_it_says_what_training_there_says(tmp_path, case):
    options = CASES_RETIMING[case]
    here = trained(tmp_path / "here", **options)
    there = trained(tmp_path / "there", **(options | {"network": {}} | THERE))
    found = retime(here.directory, THERE)
    assert found.seconds.tolist() == there.metrics["simulated_seconds"].tolist()
    assert found.seconds[-1] != here.metrics["simulated_seconds"][-1] or case == "nothing sent"


def test_a_run_without_a_clock_gets_one(tmp_path):
    none = {"network": {}, "compute.seconds": 0.0}
    here = trained(tmp_path / "here", **none, **GOSSIP_RETIMING)
    there = trained(
        tmp_path / "there", **(none | THERE | {"compute.seconds": 0.5}), **GOSSIP_RETIMING
    )
    found = retime(here.directory, THERE | {"compute.seconds": 0.5})
    assert found.seconds.tolist() == there.metrics["simulated_seconds"].tolist()
    write(found, tmp_path / "made")
    assert list(rows(tmp_path / "made")[0]) == list(rows(there.directory)[0])


@pytest.mark.parametrize("every", [1, 4])
def test_bits_that_vary_are_exact_where_each_round_has_a_row(tmp_path, every):
    options = {"compression": {"name": "bernoulli", "p": 0.5}, "rounds": 8, "data.seed": 0}
    options["evaluation.every"] = every
    here = trained(tmp_path / "here", **options)
    there = trained(tmp_path / "there", **(options | {"network": {}} | THERE))
    found = retime(here.directory, THERE)
    apart = np.abs(found.seconds - there.metrics["simulated_seconds"]).max()
    assert (apart == 0) == (every == 1)


def test_what_is_written_is_a_run_of_that_network(tmp_path, capsys):
    trained(tmp_path / "runs" / "seed=3", **GOSSIP_RETIMING)
    words = [str(tmp_path / "runs"), *(f"{key}={value}" for key, value in THERE.items())]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "seed=3: " in said and "s (network.link=shared)" in said
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    for _ in range(2):  # a repeated command replaces what it has written
        assert main([*words, "--output", str(tmp_path / "slow")]) == 0
    made = tmp_path / "slow" / "seed=3"
    assert "retimed" in read_summary(made / "summary.json") and not (made / "checkpoints").exists()
    there = trained(tmp_path / "there", **({"network": {}} | THERE), **GOSSIP_RETIMING)
    assert rows(made) == rows(there.directory)
    assert (made / "config.yaml").read_text() == (there.directory / "config.yaml").read_text()
    assert summary_of(made)["simulated_seconds"] == summary_of(there.directory)["simulated_seconds"]
    groups, notes = group_runs(find_runs([tmp_path / "runs", tmp_path / "slow"]))
    assert (len(groups), notes) == (2, [])
    again = retime(made, {"compute.seconds": 0.125}).seconds[-1]
    assert again == summary_of(made)["simulated_seconds"]
    assert verify(made, None, Alone(), lambda line: None).differences == []


@pytest.mark.parametrize(
    ("options", "overrides", "words"),
    [
        ({**GOSSIP_RETIMING, "exchange.asynchrony": "wait_free"}, THERE, "exchange.asynchrony"),
        (
            {"compute": {"name": "measured"}, "compute.seconds": 0.0},
            THERE,
            "compute.name.*'measured'",
        ),
        ({"on_divergence": "drop"}, THERE, "on_divergence.*'drop'"),
        ({}, {"local.lr": 1.0}, "local.lr.*network, compute"),
        ({}, {"network": {}, "compute": {}}, "network .*compute .*seconds"),
        ({}, {"network.latency": -1}, "network.latency.* -1.* 0"),
    ],
)
def test_what_cannot_be_replayed_is_refused(tmp_path, options, overrides, words):
    made = trained(tmp_path / "run", **({"rounds": 1} | options))
    with pytest.raises(InputError, match=words):
        retime(made.directory, overrides)


def test_measured_times_can_be_replaced(tmp_path):
    compute = {"compute": {"name": "measured"}, "compute.seconds": 0.0}
    here = trained(tmp_path / "here", **compute)
    there = trained(tmp_path / "there")
    constant = {"name": "constant", "seconds": 0.125}
    found = retime(here.directory, {"compute": constant})
    assert found.seconds.tolist() == there.metrics["simulated_seconds"].tolist()


def test_a_wrong_command_writes_nothing(tmp_path, capsys):
    run = trained(tmp_path / "run", rounds=1).directory
    output = ["--output", str(tmp_path / "out")]
    assert main([str(run)]) == 2
    assert main(["network.latency=1"]) == 2
    assert main([str(run), "network.latency=x", *output]) == 2
    assert main([str(run), "network.latency=1", "--output", str(tmp_path)]) == 2
    (run / "DONE").unlink()
    assert main([str(run), "network.latency=1", *output]) == 2
    said = capsys.readouterr().err
    assert said.count("--help") == 2
    assert re.search(f"--output.*{tmp_path}", said)
    assert re.search(f"RUN .*{run}'.*DONE", said)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_one_process_of_several_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert main([str(tmp_path / "no run"), "network.latency=1"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.mpi
def test_runs_of_any_number_of_ranks_are_retimed(tmp_path):
    folder, options = (
        folder_of(tmp_path),
        {**SMALL, **HERE, **CASES_RETIMING["ring of participants"]},
    )
    run_on_all("synthetic-fedem", options, folder / "many")
    if world().rank == 0:
        run_alone("synthetic-fedem", options | {"network": {}} | THERE, folder / "there")
        seconds = [float(row["simulated_seconds"]) for row in rows(folder / "there")]
        assert retime(folder / "many", THERE).seconds.tolist() == seconds
    world().barrier()
