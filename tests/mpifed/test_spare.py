"""Ranks without clients take part in what is collective, and change nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest
from commands import (
    TINY,
    checkpoints,
    command,
    launch,
    of_rank,
    rows,
    started,
    summary_of,
    wait_for,
)
from on_ranks import SMALL, folder_of, run_on_all, same_after_a_resume, unlike_one_rank

from mpifed.errors import InputError
from mpifed.testing import world

CORES = {0, 1}


def two_cores(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: CORES)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"exchange": "gossip", "participation": 0.6},
        {"exchange": "gossip", "placement": "partitioned", "exchange.topology": "path"},
        {
            "algorithm": "fedavg",
            "exchange": "gossip",
            "exchange.asynchrony": "wait_free",
            "compute.seconds": 1.0,
        },
    ],
    ids=["server", "gossip", "partitioned", "asynchronous"],
)
def test_a_run_on_the_ranks_that_have_cores_is_that_of_one_rank(more, tmp_path, monkeypatch):
    two_cores(monkeypatch)
    assert unlike_one_rank({**SMALL, "hosts": "cores", **more}, tmp_path) == []


@pytest.mark.mpi
def test_a_run_goes_on_on_the_ranks_that_have_cores(tmp_path, monkeypatch):
    two_cores(monkeypatch)
    assert same_after_a_resume({**SMALL, "hosts": "cores"}, tmp_path)


@pytest.mark.mpi
def test_every_rank_gets_the_result_and_the_summary_counts_all(tmp_path, monkeypatch):
    two_cores(monkeypatch)
    communicator, folder = world(), folder_of(tmp_path)
    result = run_on_all("synthetic-fedem", {**SMALL, "hosts": "cores"}, folder / "run")
    assert (result.status, result.directory) == ("finished", folder / "run")
    assert result.summary["ranks"] == communicator.size
    threads = run_on_all(
        "synthetic-fedem", {**SMALL, "hosts": "cores", "threads": 2}, folder / "threads"
    )
    # As many ranks host clients as there are cores for their threads.
    for name, hosting in (("run", len(CORES)), ("threads", 1)):
        left_out = max(0, communicator.size - hosting)
        said = f"{left_out} of {communicator.size} ranks"
        assert (said in (folder / name / "log.txt").read_text()) is (left_out > 0)
    assert threads.status == "finished"


@pytest.mark.mpi
def test_what_hosting_ranks_refuse_is_refused_on_all(tmp_path, monkeypatch):
    two_cores(monkeypatch)
    overrides = {**SMALL, "hosts": "cores", "data.n_test": -1}
    with pytest.raises(InputError, match=r"data\.n_test.* -1.*at least 1"):
        run_on_all("synthetic-fedem", overrides, folder_of(tmp_path) / "run")
    assert not (folder_of(tmp_path) / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("more", [["clients=2"], ["hosts=cores"]])
def test_commands_of_more_ranks_than_work_end_alike(more, tmp_path):
    """Twice as many ranks as cores: the same rows, exit codes and one message."""
    ranks = 2 * (os.cpu_count() or 1) + 1
    words = [*TINY, *more, "--quiet", "--output"]
    for count in (0, ranks):
        done = launch(count, *words, tmp_path / str(count), seconds=120)
        assert (done.code, done.err) == (0, "")
    assert rows(tmp_path / "0") == rows(tmp_path / str(ranks))
    wrong = [*TINY, *more, "data.n_test=-1", "--output", tmp_path / "no"]
    refused = launch(ranks, *wrong, seconds=120)
    assert refused.code == 2
    (line,) = refused.messages
    assert re.search(r"data\.n_test.* -1.*at least 1", line)


@pytest.mark.slow
def test_a_signal_to_a_spare_rank_stops_the_run(tmp_path):
    ranks, cut = 2 * (os.cpu_count() or 1) + 1, tmp_path / "cut"
    words = [*TINY, "rounds=1000000", "evaluation.every=100", "checkpoint.every=20", "hosts=cores"]
    with started(command(ranks, *words, "--output", cut), stderr=subprocess.PIPE) as process:
        wait_for(cut / "checkpoints" / "round-000020.h5", process)
        os.kill(of_rank(ranks - 1, cut), signal.SIGUSR1)
        code = process.wait(60)
        assert code == 75, process.stderr.read()
    assert checkpoints(cut)[-1] == f"round-{summary_of(cut)['rounds']:06d}.h5"


@pytest.mark.slow
@pytest.mark.parametrize("whose", [0, -1])
def test_a_killed_rank_ends_the_job_whether_it_hosts_or_not(whose, tmp_path):
    ranks, cut = 2 * (os.cpu_count() or 1) + 1, tmp_path / "cut"
    words = [*TINY, "rounds=1000000", "evaluation.every=100", "checkpoint.every=20", "hosts=cores"]
    with started(command(ranks, *words, "--output", cut), stderr=subprocess.PIPE) as process:
        wait_for(cut / "checkpoints" / "round-000020.h5", process)
        os.kill(of_rank(range(ranks)[whose], cut), signal.SIGKILL)
        code = process.wait(60)
        said = process.stderr.read()
    assert code not in (0, 2, 75)
    assert re.search(rf"rank {range(ranks)[whose]} on [^:]*: round \d+: ", said), said
