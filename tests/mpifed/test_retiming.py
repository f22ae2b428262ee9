"""Finished runs on another network: the same column as of a run that was trained there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import rows, summary_of
from on_ranks import SMALL, folder_of
from on_ranks import run as run_on

import mpifed
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone, world
from mpifed.report.groups import group_runs
from mpifed.report.runs import find_runs
from mpifed.retime import main
from mpifed.training.retiming import is_retimed, retime, write
from mpifed.training.verification import verify

GOSSIP = {"exchange": "gossip", "exchange.weights": "metropolis_hastings"}
HERE = {"network": {"latency": 0.25, "bandwidth": 1e6}, "compute.seconds": 0.125}
THERE = {"network.latency": 0.01, "network.bandwidth": 3e4, "network.upload": 7e4}
CASES = {
    "ring of participants": {
        **GOSSIP,
        "exchange.topology": "ring",
        "compute": {"name": "lognormal", "seconds": 0.1, "client_sigma": 1, "round_sigma": 0.5},
        "participation": 0.6,
    },
    "fastest mixing, tracked": {
        **GOSSIP,
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


@pytest.mark.parametrize("case", CASES)
def test_it_says_what_training_there_says(tmp_path, case):
    options = CASES[case]
    here = trained(tmp_path / "here", **options)
    there = trained(tmp_path / "there", **(options | {"network": {}} | THERE))
    found = retime(here.directory, THERE)
    assert found.seconds.tolist() == there.metrics["simulated_seconds"].tolist()
    assert found.seconds[-1] != here.metrics["simulated_seconds"][-1] or case == "nothing sent"
    assert found.exact
    assert found.error == 0


def test_a_run_without_a_clock_gets_one(tmp_path):
    none = {"network": {}, "compute.seconds": 0.0}
    here = trained(tmp_path / "here", **none, **GOSSIP)
    there = trained(tmp_path / "there", **(none | THERE | {"compute.seconds": 0.5}), **GOSSIP)
    found = retime(here.directory, THERE | {"compute.seconds": 0.5})
    assert found.seconds.tolist() == there.metrics["simulated_seconds"].tolist()
    assert (found.before, found.error) == (None, None)
    write(found, tmp_path / "made")
    assert list(rows(tmp_path / "made")[0]) == list(rows(there.directory)[0])


@pytest.mark.parametrize("every", [1, 4])
def test_bits_that_vary_are_exact_where_each_round_has_a_row(tmp_path, every):
    options = {"compression": {"name": "bernoulli", "p": 0.5}, "rounds": 8}
    options["evaluation.every"] = every
    here = trained(tmp_path / "here", **options)
    there = trained(tmp_path / "there", **(options | {"network": {}} | THERE))
    found = retime(here.directory, THERE)
    apart = np.abs(found.seconds - there.metrics["simulated_seconds"]).max()
    assert found.exact == (every == 1)
    assert (apart == 0) == (every == 1)
    assert ("means" in found.remark) == (every == 4)


def test_what_is_written_is_a_run_of_that_network(tmp_path, capsys):
    trained(tmp_path / "runs" / "seed=3", **GOSSIP)
    words = [str(tmp_path / "runs"), *(f"{key}={value}" for key, value in THERE.items())]
    assert main(words) == 0
    assert "bits of each round are exact" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    for _ in range(2):  # a repeated command replaces what it has written
        assert main([*words, "--output", str(tmp_path / "slow")]) == 0
    made = tmp_path / "slow" / "seed=3"
    assert is_retimed(made) and not (made / "checkpoints").exists()
    there = trained(tmp_path / "there", **({"network": {}} | THERE), **GOSSIP)
    assert rows(made) == rows(there.directory)
    assert (made / "config.yaml").read_text() == (there.directory / "config.yaml").read_text()
    assert summary_of(made)["simulated_seconds"] == summary_of(there.directory)["simulated_seconds"]
    groups, notes = group_runs(find_runs([tmp_path / "runs", tmp_path / "slow"]))
    assert (len(groups), notes) == (2, [])
    assert retime(made, {"network": HERE["network"]}).error == 0
    assert verify(made, None, Alone(), lambda line: None).differences == []


@pytest.mark.parametrize(
    ("options", "overrides", "words"),
    [
        ({**GOSSIP, "exchange.asynchrony": "wait_free"}, THERE, "did not wait"),
        ({"compute": {"name": "measured"}, "compute.seconds": 0.0}, THERE, "is 'measured', which"),
        ({"on_divergence": "drop"}, THERE, "is 'drop', so it is not recorded"),
        ({}, {"local.lr": 1.0}, "local.lr cannot be changed without training"),
        ({}, {"network": {}, "compute": {}}, "no seconds to tell"),
        ({}, {"network.latency": -1}, "network.latency is -1"),
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
    assert "no other network is named" in said
    assert "no run is named" in said
    assert "exists and was not written by this command" in said
    assert "is finished" in said
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_one_process_of_several_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "1")
    assert main([str(tmp_path / "no run"), "network.latency=1"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.mpi
def test_runs_of_any_number_of_ranks_are_retimed(tmp_path):
    folder, options = folder_of(tmp_path), {**SMALL, **HERE, **CASES["ring of participants"]}
    run_on("synthetic-fedem", options, folder / "many", world())
    if world().rank == 0:
        run_on("synthetic-fedem", options | {"network": {}} | THERE, folder / "there", Alone())
        seconds = [float(row["simulated_seconds"]) for row in rows(folder / "there")]
        assert retime(folder / "many", THERE).seconds.tolist() == seconds
    world().barrier()
