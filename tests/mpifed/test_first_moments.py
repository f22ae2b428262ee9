"""Ranks that are struck before MPI has begun, and the stall limit from the first moment on."""

from __future__ import annotations

import os
import re
import signal
import socket

import pytest
from commands import HERE, TINY, call, launch

from mpifed.watchdog import heartbeat, rendezvous
from mpifed.watchdog.exit import PATIENCE
from mpifed.watchdog.heartbeat import STALL_LIMIT, Signs
from mpifed.watchdog.launcher import Launch, has_ended, launched, watch_process
from mpifed.watchdog.stillness import WAITING, Stillness
from mpifed.watchdog.stop_requests import raise_if_stop_requested

PATH = f"{HERE / 'early'}:{HERE}"
KILLED = "the process was killed by SIGKILL (out of memory?)"


def struck(early: str, *words, ranks: int = 2, **variables: str):
    """How a job ends of which a rank is struck early."""
    command = words or (*TINY, "--quiet", "--output", "/dev/null/nowhere")
    return launch(ranks, *command, seconds=90, EARLY=early, PYTHONPATH=PATH, **variables)


def the_line(outcome, rank: int) -> str:
    """What was said of the rank, which alone was named."""
    assert outcome.code not in (0, 75), outcome
    (line,) = outcome.messages
    front = f"mpifed: rank {rank} on {socket.gethostname()}: before the first round: "
    assert line.startswith(front), line
    return line.removeprefix(front)


@pytest.mark.parametrize(
    ("early", "rank", "expected"),
    [
        ("die:0:torch", 0, KILLED),
        ("die:1:torch", 1, KILLED),
        pytest.param("die:1:mpi4py.MPI", 1, KILLED, marks=pytest.mark.slow),
        # Amid MPI_Init, where the others already are.
        pytest.param(
            *("be_late:0:mpi4py.MPI,die_in_a_moment:1:mpi4py.MPI", 1),
            "the process was killed by SIGALRM",
            marks=pytest.mark.slow,
        ),
        # Before another rank is anywhere.
        ("die:1:yaml,be_late:0:mpifed.watchdog", 1, KILLED),
        ("fail:1:torch", 1, "ImportError: a library that is not there"),
    ],
)
def test_a_rank_that_is_gone_before_mpi_has_begun_ends_the_job(early, rank, expected):
    assert the_line(struck(early), rank).startswith(expected)


def test_a_guard_that_is_killed_before_mpi_has_begun_ends_the_job():
    assert struck("lose_the_guard:1:torch").code not in (0, 75)


def test_what_every_rank_meets_is_said_once():
    outcome = struck("fail:every:torch")
    assert outcome.code == 1
    assert [line[:30] for line in outcome.messages] == ["mpifed: ImportError: a library"]


def test_bad_words_are_refused_once_by_ranks_that_come_late():
    outcome = struck("be_late:1:mpifed.watchdog", *TINY, "rounds")
    assert outcome.code == 2
    assert len(outcome.messages) == 1


def test_the_stall_limit_holds_from_the_first_moment(tmp_path):
    words = [*TINY, "stall_limit=6", "--quiet", "--output", tmp_path / "run"]
    line = the_line(struck("hang:1:torch", *words), 1)
    assert line == "no step forward for 6 s (stall_limit)"


@pytest.mark.parametrize("where", ["load", "evaluate"])
def test_the_stall_limit_holds_before_round_1(where, tmp_path):
    words = [*TINY, "stall_limit=6", "algorithm=user_components:HangsEarly", "--quiet", "--output"]
    if where == "load":
        words[1:1] = ["data=user_components:HangingData"]
    outcome = launch(2, *words, tmp_path / "run", seconds=90)
    (line,) = outcome.messages
    assert re.match(r"mpifed: rank 1 on \S+( \(clients \d to \d\))?: ", line), line
    assert line.endswith("no step forward for 6 s (stall_limit)")


def test_a_rank_that_computes_is_blamed_before_one_that_waits():
    busy, waits = Stillness(limit=4.0), Stillness(limit=4.0)
    for _ in range(8):
        assert busy.fault(Signs(1, -1, False), 0.5) is None
        assert waits.fault(Signs(1, -1, True), 0.5) is None
    assert busy.fault(Signs(1, -1, False), 0.5) == "no step forward for 4 s (stall_limit)"
    assert busy.fault(Signs(2, -1, False), 0.5) is None
    assert waits.fault(Signs(1, -1, True), WAITING - 1) is None
    assert waits.fault(Signs(1, -1, True), 2.0) == "no other rank answered for 65 s"


def test_the_stall_limit_is_known_before_the_rank_has_said_a_word():
    stillness = Stillness()
    assert stillness.fault(Signs(0, -1, False), STALL_LIMIT) is None
    assert "stall_limit" in stillness.fault(Signs(0, -1, False), 1.0)


def test_the_end_of_a_rank_has_a_limit_of_its_own():
    stillness = Stillness(limit=1.0, ending=True)
    assert stillness.fault(Signs(5, 5, False), PATIENCE) is None
    assert "stall_limit" in stillness.fault(Signs(5, 5, False), 1.5 * PATIENCE)
    never = Stillness(limit=None, ending=True)
    assert never.fault(Signs(5, 5, False), 1e9) is None


def test_what_lasts_before_round_1_shows_steps(tmp_path, capfd, monkeypatch):
    """Making the data, scoring round 0, looking for a stop: 50 clients, three splits each."""
    board, seen = heartbeat.new_board(), []
    monkeypatch.setattr(heartbeat._Own, "board", board)
    monkeypatch.setattr(
        "mpifed.training.engine.at_round", lambda number: seen.append(heartbeat.read(board).steps)
    )
    words = ["clients=50", "rounds=1", "data.n_test=2", "data.dimension=2", "--quiet", "--output"]
    assert call([TINY[0], *words, tmp_path / "run"], capfd).code == 0
    assert seen[0] >= 3 * 50
    raise_if_stop_requested()
    assert heartbeat.read(board).steps > seen[0]


# Guards that meet.


def met(here: int | None = 3, size: int = 3, job: str = "one") -> list[Launch]:
    return [Launch(rank, size, here, job, 0) for rank in range(size)]


def test_guards_of_one_host_meet_by_the_name_of_the_job():
    launches, other = met(), met(job="another")[1]
    sockets = [rendezvous.open_meeting_socket(launch) for launch in (*launches, other)]
    assert rendezvous.send_exit_code(sockets[0], launches[0], 2)
    assert [rendezvous.receive_exit_code(own) for own in sockets] == [None, 2, 2, None]
    # Where others are on another host, these alone are not all.
    few = met(here=2, job="few")
    sockets = [rendezvous.open_meeting_socket(launch) for launch in few[:2]]
    assert not rendezvous.send_exit_code(sockets[0], few[0], 1)
    assert rendezvous.receive_exit_code(sockets[1]) == 1


def test_a_name_that_is_taken_is_not_taken_again():
    (first, *_) = met(job="taken")
    own = rendezvous.open_meeting_socket(first)
    assert own is not None
    assert rendezvous.open_meeting_socket(first) is None


def test_nobody_is_waited_for_longer_than_a_while(monkeypatch):
    monkeypatch.setattr(rendezvous, "LATEST", 0.1)
    launches = met(job="absent")
    own = rendezvous.open_meeting_socket(launches[0])
    assert not rendezvous.send_exit_code(own, launches[0], 1)
    # Who is told to end meanwhile leaves the others to the one who told.
    other = rendezvous.open_meeting_socket(launches[1])
    other.sendto(b"\1", own.getsockname())
    assert rendezvous.send_exit_code(own, launches[0], 1)


@pytest.mark.parametrize("what", ["another user", "no code"])
def test_what_another_user_says_is_not_heard(what, monkeypatch):
    one, other = met(job="foreign")[:2]
    own, foreign = rendezvous.open_meeting_socket(one), rendezvous.open_meeting_socket(other)
    foreign.sendto(b"" if what == "no code" else b"\1", own.getsockname())
    if what == "another user":
        monkeypatch.setattr("os.getuid", lambda: 4242)
    assert rendezvous.receive_exit_code(own) is None


def test_a_flood_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(rendezvous, "MOST", 3)
    one, other = met(job="flood")[:2]
    own, noisy = rendezvous.open_meeting_socket(one), rendezvous.open_meeting_socket(other)
    for data in (b"", b"xx", b"xx", b"\2"):
        noisy.sendto(data, own.getsockname())
    assert rendezvous.receive_exit_code(own) is None
    assert rendezvous.receive_exit_code(own) == 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, (1, 4, 4, True)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, (1, 4, 2, False)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2, None, False)),
        (
            {"PMIX_RANK": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "1"},
            (3, 8, 8, True),
        ),
        (
            {"PMIX_RANK": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"},
            (3, 8, None, False),
        ),
        ({"SLURM_PROCID": "0"}, (0, 1, None, True)),
        ({"PMI_RANK": "²", "SLURM_PROCID": "5"}, (5, 1, None, True)),
    ],
)
def test_what_a_launcher_tells_of_a_rank(variables, expected, monkeypatch):
    tell(variables, monkeypatch)
    found = launched()
    about = (found.rank, found.size, found.here, found.on_one_host) if found else None
    assert about == expected


def tell(variables: dict[str, str], monkeypatch) -> None:
    """Sets the environment as a launcher would."""
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI_", "SLURM_", "MPI_LOCAL")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_who_made_the_connection_is_the_launcher_whatever_lies_between(monkeypatch, tmp_path):
    """A script between the launcher and the rank may leave before the rank does."""
    one, other = socket.socketpair()
    with one, other, (tmp_path / "file").open("w") as file:
        tell({"PMI_RANK": "0", "PMI_FD": str(other.fileno())}, monkeypatch)
        assert (launched().process, launched().job) == (os.getpid(), f"pmi {os.getpid()}")
        tell({"PMI_RANK": "0", "PMI_FD": str(file.fileno())}, monkeypatch)
        assert launched().process == os.getppid()
    tell({"PMI_RANK": "0", "PMI_FD": "987654"}, monkeypatch)
    assert (launched().process, launched().job) == (os.getppid(), f"parent {os.getppid()}")


def test_a_process_that_ends_is_seen_to_end():
    child = os.fork()
    if not child:
        signal.pause()
    watched = watch_process(child)
    assert not has_ended(watched)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert has_ended(watched)
    assert watch_process(child) is None
    assert not has_ended(None)
    os.close(watched)
