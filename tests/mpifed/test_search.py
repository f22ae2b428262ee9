"""The search for local optima as it is seen from outside: lines of the log, requests to stop."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from commands import call, command, of_rank, rows, started
from convex import Run, logistic

from mpifed.algorithms.flix.flix import Flix
from mpifed.errors import AgreedInputError, AgreedStop, InputError, StopRequested
from mpifed.local import optima
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Alone, world
from mpifed.watchdog.stop_requests import raise_if_stop_requested, stop_requests_from

ENDLESS = {"l2": 0.1, "local_tolerance": 1e-300, "local_iterations": 10**9}
SMALL = (
    "synthetic-fedem",
    "clients=5",
    "rounds=2",
    "dtype=float64",
    "data.n_test=10",
    "data.dimension=6",
    "algorithm=flix",
    "algorithm.l2=0",
    "algorithm.local_tolerance=1e-300",
)
BEGINS_AGAIN = "stopped before round 1: there is no checkpoint yet, and the next start begins again"


@pytest.mark.parametrize("solver", ["gd", "lbfgs", "newton", "published_code"])
def test_every_solver_stops_at_the_iteration_after_a_request(solver):
    asked = []

    def stop_requested():
        asked.append(len(asked))
        return len(asked) == 3

    # Newton's method ends by itself where only rounding is left, the others never.
    with stop_requests_from(stop_requested), pytest.raises(AgreedStop):
        Run(Flix, logistic(), local_solver=solver, **ENDLESS)
    assert len(asked) == 3
    raise_if_stop_requested()  # outside nobody asks


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_run_stops_amid_the_search_and_begins_it_again(number, tmp_path, capfd, monkeypatch):
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    words = [*SMALL, "algorithm.local_iterations=300", "--output"]
    monkeypatch.setattr(optima, "EVERY", 0.0)
    with monkeypatch.context() as patched:
        tell = optima.log.info
        patched.setattr(optima.log, "info", lambda line: (os.kill(os.getpid(), number), tell(line)))
        done = call([*words, cut], capfd)
    assert done.code == 75
    assert done.out.splitlines()[-1] == BEGINS_AGAIN
    assert not cut.exists()
    assert not done.err
    assert call([*words, cut, "--resume"], capfd).code == 0
    assert call([*words, whole], capfd).code == 0
    assert rows(cut) == rows(whole)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["all ranks", "one rank"])
def test_two_ranks_stop_amid_the_search(to, tmp_path):
    target = tmp_path / "run"
    endless = ["algorithm.name=user_components:Talks", "algorithm.local_iterations=1000000000"]
    words = command(2, *SMALL, *endless, "--output", target)
    with started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert "local optima: " in process.stdout.readline()
        for rank in (0, 1) if to == "all ranks" else (1,):
            os.kill(of_rank(rank, target), signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert BEGINS_AGAIN in (out if to == "all ranks" else err)
    assert not target.exists()


@pytest.mark.mpi
def test_ranks_agree_to_stop_and_bad_input_comes_first():
    communicator = world()
    last = communicator.rank == communicator.size - 1

    def stops():
        if last:
            raise StopRequested

    def refuses():
        if communicator.rank == 0:
            raise InputError("too small")
        stops()

    with pytest.raises(AgreedStop):
        agree(communicator, stops)
    sentence = "too small" if communicator.size == 1 else "rank 0: too small"
    with pytest.raises(AgreedInputError, match=sentence):
        agree(communicator, refuses)
    assert agree(communicator, lambda: communicator.rank) == communicator.rank


def test_one_process_agrees_with_itself():
    def stops():
        raise StopRequested

    with pytest.raises(AgreedStop):
        agree(Alone(), stops)
