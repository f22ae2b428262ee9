"""Ranks that are killed, stand still or lose their launcher, and how the processes of ranks end."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import commands
import h5py
import pytest
from commands import (
    HELD,
    HERE,
    TINY,
    all_ended,
    command,
    environment,
    family,
    kill_all,
    launch,
    of_rank,
    processes,
    started,
    wait_for,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.errors import InputError
from mpifed.mpi.communicator import check_launcher, spare_memory
from mpifed.watchdog import heartbeat
from mpifed.watchdog.guard import _await_answer
from mpifed.watchdog.heartbeat import STALL_LIMIT, Page, new_pages, raise_if_stop_requested
from mpifed.watchdog.hosts import ENDS, LATER, LEAVES, MESSAGE, SILENCE, Host, Hosts
from mpifed.watchdog.launcher import Launch, launched
from mpifed.watchdog.shared_memory import (
    DIRECTORY,
    SETTLED,
    remove_abandoned,
    segments_of,
)
from mpifed.watchdog.supervisor import ENDING, WAITING, _Rank

KILLED = r"killed by SIGKILL \(out of memory\?\)"
HOST = socket.gethostname()


# Ranks without MPI, whose launcher is this process.


@dataclass
class Job:
    """The processes of a job."""

    started: list[subprocess.Popen[str]]

    def about(self) -> list[dict]:
        """What each rank prints of itself."""
        return [json.loads(one.stdout.readline()) for one in self.started]

    def codes(self, seconds: float = 20) -> list[int]:
        return [one.wait(seconds) for one in self.started]

    def said(self) -> list[str]:
        return [line for one in self.started for line in one.stderr.read().splitlines()]


@contextlib.contextmanager
def job(*words, ranks: int = 2, own=None, **variables: str) -> Iterator[Job]:
    """``ranks`` processes as a launcher starts them; ``own(rank)`` are further options of each."""
    made = []
    for rank in range(ranks):
        options = own(rank) if own is not None else {}
        about = {"PMI_RANK": str(rank), "PMI_SIZE": str(ranks), "MPI_LOCALNRANKS": str(ranks)}
        about |= {**variables, **options.pop("variables", {})}
        made.append(
            subprocess.Popen(
                [sys.executable, str(HERE / "watched.py"), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(**about),
                **options,
            )
        )
    try:
        yield Job(made)
    finally:
        for one in made:
            kill_all(family(one.pid))
            with one:
                pass


@pytest.mark.parametrize("prefork", ["1", "0"])
def test_ranks_have_their_own_streams_descriptors_and_processors(prefork, tmp_path):
    held = []

    def own(rank):
        reading, writing = os.pipe()
        os.write(writing, f"held {rank}".encode())
        held.extend([reading, writing])
        only = {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]}
        return {
            "pass_fds": [reading],
            "variables": {"PMI_FD": str(reading)},
            "preexec_fn": lambda: os.sched_setaffinity(0, only),
        }

    with job("leave:0", ranks=3, own=own, MPIFED_PREFORK=prefork) as made:
        about = made.about()
        assert (made.codes(), made.said()) == ([0, 0, 0], [])
    for number in held:
        os.close(number)
    cores = sorted(os.sched_getaffinity(0))
    assert [one["rank"] for one in about] == [0, 1, 2]
    assert [one["held"] for one in about] == ["held 0", "held 1", "held 2"]
    assert [one["processors"] for one in about] == [[cores[rank % len(cores)]] for rank in range(3)]
    assert {one["forked"] for one in about} == {prefork == "1"}
    assert len({one["parent"] for one in about}) == 1


def long_variables(character: str, count: int) -> dict[str, str]:
    """``count`` variables of 100 KB; a socket takes messages of about 200 KB."""
    return {f"LONG_{k}": 100_000 * character for k in range(count)}


@pytest.mark.parametrize("prefork", ["1", "0"])
def test_ranks_have_an_environment_of_any_size(prefork):
    variables = long_variables(os.fsdecode(b"\xff"), 15)
    with job("leave:0", MPIFED_PREFORK=prefork, **variables) as made:
        assert (made.codes(), made.said()) == ([0, 0], [])
        assert all(each["characters"] > 1_500_000 for each in made.about())


@pytest.mark.slow
@pytest.mark.parametrize("mpi", ["installed", "Debian's Open MPI"])
def test_a_job_with_a_large_environment_runs(mpi, tmp_path, monkeypatch):
    variables = long_variables("x", 3)
    if mpi != "installed":
        launcher = Path("/usr/bin/mpirun.openmpi")
        library = next(Path("/usr/lib").glob("*/libmpi.so.40"), None)
        if library is None or not launcher.exists():
            pytest.skip("Open MPI or its launcher is missing")
        monkeypatch.setattr(commands, "mpirun", lambda: str(launcher))
        variables["MPI4PY_LIBMPI"] = str(library)
    outcome = launch(2, *TINY, "--quiet", "--output", tmp_path / "run", **variables)
    assert (outcome.code, outcome.messages) == (0, []), outcome


@pytest.mark.parametrize("unlike", ["folder", "variable"])
def test_ranks_with_other_surroundings_are_not_forked_from_one_process(unlike, tmp_path):
    def own(rank):
        if unlike == "folder":
            return {"cwd": tmp_path} if rank else {}
        return {"variables": {"OWN": str(rank)}}

    with job("begin-and-leave:0", own=own) as made:
        assert len({one["parent"] for one in made.about()}) == 2
        assert (made.codes(), made.said()) == ([0, 0], [])


@pytest.mark.parametrize("code", [0, 2, 75])
def test_exit_codes_are_those_of_the_ranks(code):
    with job(f"begin-and-leave:{code}") as made:
        assert (made.codes(), made.said()) == ([code, code], [])


def test_what_fails_in_the_shared_imports_is_left_to_the_ranks():
    with job("leave:0", PRELOAD="raises") as made:
        assert [one["forked"] for one in made.about()] == [False, False]
        assert (made.codes(), made.said()) == ([0, 0], [])


def test_ranks_go_on_once_all_are_forked_and_leave_what_was_imported_to_others():
    with job("leave:0", ranks=3, PRELOAD="forks slowly") as made:
        about = made.about()
        assert made.codes() == [0, 0, 0]
        assert [one.stdout.read() for one in made.started] == 3 * ["of the rank\n"]
    assert max(one["began"] for one in about) < min(one["went_on"] for one in about)


def test_a_process_that_has_its_rank_forked_imports_little():
    script = "import sys, mpifed.errors, mpifed.watchdog.guard; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    large = {
        "argparse",
        "dataclasses",
        "hashlib",
        "json",
        "pathlib",
        "threading",
        "typing",
        "numpy",
    }
    assert not large & {*found.stdout.split()}


@pytest.mark.parametrize("early", [True, False])
def test_signals_reach_the_rank(early, tmp_path):
    with job(f"wait:{tmp_path / 'never'}", PRELOAD="takes a while" * early) as made:
        if early:
            time.sleep(1.5)
        else:
            made.about()
        for one in made.started:
            one.send_signal(signal.SIGUSR1)
        assert made.codes() == [75, 75]


def test_a_signal_that_comes_too_late_does_not_hide_the_answer():
    supervisor, process = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process.send(bytes([signal.SIGTERM]))
    supervisor.send(bytes([2]))
    supervisor.close()
    assert _await_answer(process, 0) == bytes([2])


@pytest.mark.parametrize(
    ("whom", "expected"),
    [
        ("a rank", f"mpifed: rank 1 on {HOST}.*before the first round.*{KILLED}"),
        (
            "its process",
            f"mpifed: rank 1 on {HOST}.*before the first round.*killed",
        ),
        ("the supervisor", "code -9"),
    ],
)
def test_what_is_killed_ends_the_job_and_is_named(whom, expected, tmp_path):
    began = time.monotonic()
    with job(f"wait:{tmp_path / 'never'}") as made:
        about = made.about()
        ranks = [one["process"] for one in about]
        killed = {"a rank": ranks[1], "its process": made.started[1].pid}
        os.kill(killed.get(whom, about[0]["parent"]), signal.SIGKILL)
        assert 0 not in made.codes()
        (line,) = made.said()
        all_ended(ranks)
    assert re.search(expected + (HELD if whom == "a rank" else "") + "$", line), line
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("whom", "expected"),
    [
        (
            "its process",
            f"rank 1 on {HOST}.*before the first round.*stopped.* 5 s",
        ),
        ("the supervisor", "code -9"),
    ],
)
def test_what_is_stopped_ends_the_job_and_is_named(whom, expected, tmp_path):
    with job(f"wait:{tmp_path / 'never'}") as made:
        supervisor = made.about()[0]["parent"]
        os.kill(made.started[1].pid if whom == "its process" else supervisor, signal.SIGSTOP)
        assert 0 not in made.codes()
        (line,) = made.said()
    assert re.search(f"{expected}$", line)


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [True, False])
def test_what_is_stopped_just_before_the_end_is_waited_for_and_then_named(goes_on, tmp_path):
    with job(f"wait:{tmp_path / 'there'}") as processes:
        ranks = [one["process"] for one in processes.about()]
        os.kill(processes.started[1].pid, signal.SIGSTOP)
        (tmp_path / "there").touch()
        all_ended(ranks)
        if goes_on:
            time.sleep(3)
            os.kill(processes.started[1].pid, signal.SIGCONT)
        codes, lines = processes.codes(), processes.said()
    assert codes == [0, 0 if goes_on else -signal.SIGKILL]
    assert len(lines) == (not goes_on)
    assert all(re.search("stopped.* 5 s$", line) for line in lines)


def test_where_memory_is_full_ranks_are_killed_before_the_process_that_watches_them(tmp_path):
    with job(f"wait:{tmp_path / 'there'}") as processes:
        about = processes.about()
        scores = [
            int(Path(f"/proc/{process}/oom_score_adj").read_text())
            for process in (about[0]["parent"], *(one["process"] for one in about))
        ]
        (tmp_path / "there").touch()
        assert processes.codes() == [0, 0]
    assert min(scores[1:]) >= min(1000, scores[0] + 500)


@pytest.fixture
def group():
    """A control group of 300 MB whose processes the kernel counts, and a command's first words."""
    place = Path("/sys/fs/cgroup/memory")
    path = (place if place.exists() else place.parent) / f"mpifed-{os.getpid()}"
    limit = path / ("memory.limit_in_bytes" if place.exists() else "memory.max")
    try:
        path.mkdir()
        limit.write_text("300000000")
    except OSError as error:
        pytest.skip(f"memory cannot be limited here: {error}")
    yield path
    for _ in range(100):
        with contextlib.suppress(OSError):
            path.rmdir()
            break
        time.sleep(0.1)


def test_a_rank_killed_for_memory_is_named_with_the_reason_and_what_it_held(group):
    def own(rank):
        return {"preexec_fn": lambda: (group / "cgroup.procs").write_text(str(os.getpid()))}

    with job("grow:1", own=own) as processes:
        ranks = [one["process"] for one in processes.about()]
        assert 0 not in processes.codes()
        (line,) = processes.said()
        all_ended(ranks)
    assert re.search(r"rank 1 .*SIGKILL \(out of memory\).* \d+ MB$", line)


def test_a_rank_that_is_stopped_before_it_has_come_is_named(tmp_path):
    with job(f"wait:{tmp_path / 'never'}", ranks=3, MPIFED_START_LIMIT="1") as made:
        os.kill(made.started[2].pid, signal.SIGSTOP)
        codes = [one.wait(20) for one in made.started[:2]]
        lines = [line for one in made.started[:2] for line in one.stderr.read().splitlines()]
    assert 0 not in codes
    (line,) = lines
    assert "rank 2" in line and "1 of 3 ranks" in line


def test_processes_that_a_rank_leaves_behind_end_with_the_job(tmp_path):
    with job("leave-a-child:0") as made:
        made.about()
        children = [int(one.stdout.readline()) for one in made.started]
        assert made.codes() == [0, 0]
        all_ended(children, 5)


def test_a_rank_that_is_stopped_is_named(tmp_path):
    with job(f"wait:{tmp_path / 'never'}") as made:
        os.kill(made.about()[1]["process"], signal.SIGSTOP)
        assert made.codes() == [1, 1]
        (line,) = made.said()
    assert re.search(f"rank 1 on {HOST}.*before the first round.*stopped.* 5 s$", line)


@pytest.mark.parametrize("where", ["a rank", "the shared imports"])
def test_a_rank_that_makes_no_step_is_named(where):
    variables = {"PRELOAD": "hangs"} if where != "a rank" else {}
    with job("hang", **variables) as made:
        assert made.codes() == [1, 1]
        (line,) = made.said()
    assert re.search("before the first round.* 1 s .*stall_limit", line)


def test_imports_that_take_long_are_no_standstill():
    with job("leave:0", PRELOAD="is slow") as made:
        assert [one["forked"] for one in made.about()] == [True, True]
        assert (made.codes(), made.said()) == ([0, 0], [])


def test_jobs_of_one_launcher_at_the_same_time_do_not_meet(tmp_path):
    """As ``python -m mpifed.run`` twice in one batch script of SLURM."""
    alone = {"PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"}
    with job(f"wait:{tmp_path / 'there'}", ranks=1, **alone) as one:
        with job("leave:3", ranks=1, **alone) as other:
            assert (other.codes(), other.said()) == ([3], [])
        (tmp_path / "there").touch()
        assert one.codes() == [0]


def test_a_page_shows_what_a_rank_does(monkeypatch):
    other, page = new_pages(2)
    assert (page.steps, page.round, page.limit) == (0, -1, STALL_LIMIT)
    monkeypatch.setattr(heartbeat._ThisRank, "page", None)
    monkeypatch.setattr(heartbeat._ThisRank, "watched", False)
    heartbeat.begin(page)
    heartbeat.at_round(3)
    heartbeat.set_waiting(True)
    heartbeat.set_stall_limit(None)
    for clients in ([], [4], [4, 5, 6], [1, 5, 9, 10, 11]):
        heartbeat.set_hosted_clients(clients)
    heartbeat.set_failure("é" * 5000)
    heartbeat.failure_reported(75)
    assert (page.steps, page.round, page.waiting, page.code) == (2, 3, 1, 75)
    assert page.text("clients") == "clients 1, 5, 9 and 2 more"
    assert page.text("failure") == "é" * (heartbeat.TEXTS["failure"] // 2)
    assert page.limit == float("inf")
    assert (other.steps, other.text("clients")) == (0, "")


def test_a_rank_that_computes_is_blamed_before_one_that_waits():
    busy, waits = (_Rank(0, page) for page in new_pages(2))
    one, other = Page(steps=1, limit=4.0), Page(steps=1, limit=4.0, waiting=1)
    for _ in range(8):
        assert busy.fault(one, 0.5) is None
        assert waits.fault(other, 0.5) is None
    assert re.search(" 4 s .*stall_limit", busy.fault(one, 0.5))
    one.steps = 2
    assert busy.fault(one, 0.5) is None
    assert waits.fault(other, WAITING - 1) is None
    assert re.search("rank.* 65 s", waits.fault(other, 2.0))


def test_the_end_of_a_rank_has_a_limit_of_its_own():
    rank, page = _Rank(0, Page()), Page(steps=5, ending=1, limit=1.0)
    assert rank.fault(page, ENDING) is None
    assert "stall_limit" in rank.fault(page, 1.0)
    page.limit = math.inf
    assert rank.fault(page, 1e9) is None


# Several hosts.


def hosts(count: int) -> tuple[list[Hosts], str]:
    """The supervisors of ``count`` hosts of one rank each, the first with rank 0."""
    supervisors = [Hosts(Launch(rank, count, count, 0)) for rank in range(count)]
    return supervisors, supervisors[0].listen()


def beat(supervisors: list[Hosts], leader: str, seconds: float) -> list[list[Host]]:
    """Let time pass; return what each finds lost."""
    for rank, one in enumerate(supervisors):
        one.look(Host(rank, f"host {rank}", f"client {rank}", 7), leader, seconds)
    time.sleep(0.005)
    return [one.lost() for one in supervisors]


def connected(count: int) -> tuple[list[Hosts], str]:
    """Supervisors that have met."""
    supervisors, leader = hosts(count)
    for _ in range(8):
        assert beat(supervisors, leader, 0.1) == [[]] * count
    return supervisors, leader


@pytest.mark.parametrize("lost", [0, 2])
def test_a_host_that_falls_silent_is_missed_and_only_that(lost):
    supervisors, leader = connected(3)
    for _ in range(50):
        assert beat(supervisors, leader, 1.0) == [[], [], []]
    others = [one for rank, one in enumerate(supervisors) if rank != lost]
    for _ in range(int(SILENCE + LATER) + 3):
        for rank, one in enumerate(others):
            one.look(Host(rank, "host", "", 7), leader, 1.0)
    missed = [host for one in others for host in one.lost()]
    assert {(host.rank, host.name, host.clients, host.round) for host in missed} == {
        (lost, f"host {lost}", f"client {lost}", 7)
    }
    assert len(missed) == (2 if lost == 0 else 1)
    for one in supervisors:
        one.close()


def test_an_end_reaches_all_hosts_and_a_host_that_leaves_is_not_missed():
    supervisors, leader = connected(3)
    supervisors[2].send(LEAVES)
    supervisors[2].close()
    for _ in range(60):
        assert beat(supervisors[:2], leader, 1.0) == [[], []]
    supervisors[1].send(ENDS)
    beat(supervisors[:1], leader, 1.0)
    beat(supervisors[:1], leader, 1.0)
    assert supervisors[0].ended
    for one in supervisors:
        one.close()


def test_a_host_that_is_late_is_still_admitted():
    """Rank 0's supervisor closes the first connection of one that proves nothing for a while."""
    supervisors, leader = hosts(2)
    supervisors[1].look(Host(1, "late", "", 7), leader, 0.1)
    for _ in range(20):
        supervisors[0].look(Host(0, "first", "", 7), leader, 0.1)
    for _ in range(20):
        beat(supervisors, leader, 0.2)
    for _ in range(int(SILENCE) + 3):
        supervisors[0].look(Host(0, "first", "", 7), leader, 1.0)
    assert [host.rank for host in supervisors[0].lost()] == [1]
    for one in supervisors:
        one.close()


class Between:
    """A stranger between two supervisors, who passes on what ``change`` makes of their bytes."""

    def __init__(self, leader: str, change: Callable[[bytes], bytes]) -> None:
        host, self.port, *key = json.loads(leader)
        self.listening = socket.create_server((host, 0))
        self.listening.setblocking(False)
        self.leader = json.dumps([host, self.listening.getsockname()[1], *key])
        self.change, self.ends, self.seen = change, [], [b"", b""]

    def work(self) -> None:
        if not self.ends:
            with contextlib.suppress(BlockingIOError):
                self.ends = [self.listening.accept()[0]]
                self.ends.append(socket.create_connection(("127.0.0.1", self.port)))
                for one in self.ends:
                    one.setblocking(False)
        for one, other in ((0, 1), (1, 0)) if self.ends else ():
            with contextlib.suppress(OSError):
                if not (data := self.ends[one].recv(1 << 16)):
                    self.ends.pop().close()
                    self.ends.pop().close()
                    break
                self.seen[one] += data
                self.ends[other].sendall(self.change(data))


@contextlib.contextmanager
def between(change: Callable[[bytes], bytes]) -> Iterator[tuple[list[Hosts], str, Between]]:
    supervisors, leader = hosts(2)
    stranger = Between(leader, change)
    yield supervisors, stranger.leader, stranger
    for opened in (*supervisors, *stranger.ends, stranger.listening):
        opened.close()


def test_the_key_of_a_job_is_on_no_wire_and_what_was_heard_is_of_no_use():
    with between(lambda data: data) as (supervisors, leader, stranger):
        for step in range(40):
            beat(supervisors, leader, 0.1 if step < 20 else 1.0)
            stranger.work()
        supervisors[1].send(ENDS)
        stranger.work()
        by_member, by_leader = stranger.seen
        *_, key = json.loads(leader)
        assert min(len(by_leader), len(by_member)) > 2000
        for secret in (key.encode(), bytes.fromhex(key)):
            assert secret not in by_leader + by_member
        # The same again to the same supervisor, which now has another challenge, and to its face.
        for repeated in (by_member, by_leader, by_member[:32] + by_leader[32:]):
            with socket.create_connection(("127.0.0.1", stranger.port)) as again:
                again.sendall(repeated)
                for _ in range(3):
                    supervisors[0].look(Host(0, "host 0", "", 7), "", 0.1)
                assert len(again.recv(1 << 16)) == 32
                assert again.recv(1) == b""
        supervisors[0].send(ENDS)
    assert not supervisors[0].ended


@pytest.mark.parametrize("seed", range(8))
def test_bytes_that_are_changed_on_their_way_end_no_job(seed):
    random = Random(seed)

    def change(data: bytes) -> bytes:
        if random.random() < 0.7:
            return data
        at = random.randrange(len(data) + 1)
        return random.choice(
            (data[at:], data[:at], data * 2, data[:at] + random.randbytes(random.randrange(999)))
        )

    with between(change) as (supervisors, leader, stranger):
        for _ in range(80):
            assert beat(supervisors, leader, 0.15) == [[], []]
            stranger.work()
        assert not any(one.ended for one in supervisors)


FOREIGN = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda times: b"[" * times + b"\n", st.integers(0, 20000)),
    st.builds(
        lambda said: json.dumps(said).encode() + b"\n", st.dictionaries(st.text(), st.text())
    ),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(FOREIGN, max_size=6))
def test_whatever_strangers_send_they_get_a_challenge_and_are_left(messages):
    supervisors, leader = connected(2)
    host, port, _ = json.loads(leader)
    strangers = []
    for data in (b"", *messages):
        strangers.append(socket.create_connection((host, port)))
        strangers[-1].sendall(data)
    for _ in range(12):
        supervisors[0].look(Host(0, "host 0", "", 7), leader, 0.1)
    for stranger in strangers:
        stranger.settimeout(5)
        answer = b""
        with contextlib.suppress(ConnectionResetError), stranger:
            while data := stranger.recv(1 << 12):
                answer += data
        assert len(answer) in (0, 32)  # none where its bytes were refused unread
    assert beat(supervisors, leader, 1.0) == [[], []]
    assert not any(one.ended for one in supervisors)
    for one in supervisors:
        one.close()


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=MESSAGE.size, max_size=MESSAGE.size))
def test_any_content_of_a_message_of_the_job_is_understood(content):
    """Even a supervisor that has the key can send only what can be printed on one line."""
    supervisors, leader = connected(2)
    (link,) = supervisors[1]._links
    link.connection.sendall(content + link._proof(False, link.sent, content))
    for _ in range(int(SILENCE) + 5):
        supervisors[0].look(Host(0, "host 0", "", 7), leader, 1.0)
    assert supervisors[0].ended == (content[0] == 1)
    for host in supervisors[0].lost():
        assert f"{host.name}{host.clients}".isprintable()
        assert isinstance(host.rank, int) and isinstance(host.round, int)
    for one in supervisors:
        one.close()


def test_strangers_in_number_keep_no_host_out():
    supervisors, leader = hosts(2)
    host, port, _ = json.loads(leader)
    strangers = [socket.create_connection((host, port)) for _ in range(400)]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        beat(supervisors, leader, 0.1)
        assert len(os.listdir("/proc/self/fd")) < before + 300
    for stranger in strangers:
        stranger.close()
    for _ in range(int(SILENCE) + 3):
        supervisors[0].look(Host(0, "host 0", "", 7), leader, 1.0)
    assert [lost.rank for lost in supervisors[0].lost()] == [1]
    for one in supervisors:
        one.close()


def test_strangers_that_keep_coming_keep_no_host_out():
    supervisors, leader = hosts(2)
    host, port, _ = json.loads(leader)
    strangers = []
    for _ in range(100):
        strangers += [socket.create_connection((host, port)) for _ in range(40)]  # 400 a second
        beat(supervisors, leader, 0.1)
        for stranger in strangers[:-200]:
            stranger.close()
        strangers = strangers[-200:]
    for stranger in strangers:
        stranger.close()
    for _ in range(int(SILENCE) + 3):
        supervisors[0].look(Host(0, "host 0", "", 7), leader, 1.0)
    assert [lost.rank for lost in supervisors[0].lost()] == [1]
    for one in supervisors:
        one.close()


# Jobs with MPI.


def struck(early: str, *words, ranks: int = 2, **variables: str):
    """How a job ends of which a rank, that imports for itself, is struck early."""
    given = words or (*TINY, "--quiet", "--output", Path(tempfile.mkdtemp(), "run"))
    path = f"{HERE / 'early'}:{HERE}"
    return launch(ranks, *given, seconds=90, EARLY=early, PYTHONPATH=path, MPIFED_PREFORK="0")


@pytest.mark.parametrize(
    ("early", "expected"),
    [
        ("die:1:torch", f"rank 1 on {HOST}.*before the first round.*{KILLED}"),
        *(
            pytest.param(early, expected, marks=pytest.mark.slow)
            for early, expected in (
                (
                    "fail:1:torch",
                    f"rank 1 on {HOST}.*before the first round.*ImportError: a library that",
                ),
                ("fail:every:torch", "ImportError: a library that is not there"),
                # Before the other rank is anywhere.
                (
                    "die:1:yaml,be_late:0:mpifed.watchdog",
                    f"rank 1 on {HOST}.*before the first round.*{KILLED}",
                ),
                (
                    "be_late:0:mpi4py.MPI,die_in_a_moment:1:mpi4py.MPI",
                    f"rank 1 on {HOST}.*before the first round.*SIGALRM",
                ),
            )
        ),
    ],
)
def test_a_rank_that_is_gone_before_mpi_has_begun_ends_the_job(early, expected):
    outcome = struck(early)
    assert outcome.code not in (0, 75), outcome
    (line,) = outcome.messages
    assert re.match(f"mpifed: {expected}", line), line


@pytest.mark.slow
def test_bad_words_are_refused_once_by_ranks_that_come_late():
    outcome = struck("be_late:1:mpifed.watchdog", *TINY, "rounds")
    assert outcome.code == 2
    assert len(outcome.messages) == 1


@pytest.mark.slow
def test_the_stall_limit_holds_before_round_1(tmp_path):
    words = [*TINY, "stall_limit=6", "algorithm=user_components:HangsEarly", "--quiet"]
    outcome = launch(2, *words, "--output", tmp_path / "run", seconds=90)
    (line,) = outcome.messages
    assert line.startswith("mpifed: rank 1 on ")
    assert re.search(" 6 s .*stall_limit", line)


def test_what_lasts_before_round_1_shows_steps(tmp_path, monkeypatch):
    page = Page()
    monkeypatch.setattr(heartbeat._ThisRank, "page", page)
    raise_if_stop_requested()
    assert page.steps > 0


ENDLESS = (*TINY, "rounds=1000000", "evaluation.every=1000", "--quiet", "--output")


@pytest.mark.slow
def test_ranks_end_with_their_launcher_and_leave_no_shared_memory(tmp_path):
    """Killed is what started the ranks: with MPICH a proxy, with Open MPI the launcher itself."""
    target, said = tmp_path / "run", tmp_path / "said"
    with said.open("w") as file, started(command(2, *ENDLESS, target), stderr=file) as process:
        wait_for(target / "checkpoints" / "round-000006.h5", process)
        ranks = [of_rank(rank, target) for rank in range(2)]
        supervisors = processes("mpifed-guard", target)
        assert len(supervisors) == 1
        segments = {path for rank in ranks for path in segments_of(rank)}
        everybody = family(process.pid)
        proxies = [one for one in everybody if len(family(one)) > 4 and one != process.pid]
        kill_all([proxies[0] if segments and proxies else process.pid])
        all_ended([*ranks, *supervisors])
        assert process.wait(30) not in (0, 75)
    assert not [path for path in segments if Path(path).exists()]
    assert "rank " in (target / "log.txt").read_text().splitlines()[-1]


# Where UCX shares memory as it does in containers, instead of by the kernel's own copying.
UCX = {"UCX_TLS": "posix,self", "UCX_POSIX_USE_PROC_LINK": "n"}


def mapped(process: int) -> list[Path]:
    """The files of shared memory that a process has mapped."""
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    return [Path(line.split()[-1]) for line in maps if f" {DIRECTORY}" in line]


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, UCX])
def test_a_killed_rank_leaves_no_shared_memory_behind(variables, tmp_path):
    target = tmp_path / "run"
    options = {"stderr": subprocess.DEVNULL, "env": environment(**variables)}
    with started(command(2, *ENDLESS, target), **options) as process:
        wait_for(target / "checkpoints" / "round-000006.h5", process)
        rank = of_rank(1, target)
        segments = mapped(rank)
        os.kill(rank, signal.SIGKILL)
        assert process.wait(60) not in (0, 75)
    assert not [path for path in segments if path.exists()]


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_end_loses_nothing(ranks, tmp_path):
    words = [*TINY, "algorithm=user_endings:Leaves", "--quiet", "--output", tmp_path / "run"]
    outcome = launch(ranks, *words, LEFT_IN=str(tmp_path))
    assert (outcome.code, outcome.messages) == (0, []), outcome
    assert outcome.err.count("RuntimeError: the user's last mistake") == max(1, ranks)
    for rank in range(max(1, ranks)):
        for name in ("handler", "thread", "pool"):
            assert (tmp_path / f"{name}-{rank}").read_text() == "done"
        with h5py.File(tmp_path / f"data-{rank}.h5") as file:
            assert file["values"][:].tolist() == list(range(100))
        assert f"printed by {rank}\n" in outcome.out
        assert f"printed in C by {rank}\n" in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "seconds", "variables", "words"),
    [(75, "2,0,1,0", {"STOP": "1"}, []), (2, "0,2,0,1", {}, ["participation=0.5"])],
)
def test_an_exit_code_survives_ranks_that_take_long_to_end(
    code, seconds, variables, words, tmp_path
):
    given = [*TINY, "algorithm=user_endings:Lingers", "--quiet", "--output", tmp_path / "run"]
    outcome = launch(4, *given, *words, seconds=120, LINGER=seconds, **variables)
    assert (outcome.code, len(outcome.messages)) == (code, code == 2), outcome
    assert "BAD TERMINATION" not in outcome.out + outcome.err


STARTS = """
import multiprocessing, time

def process(recorded):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(99,))
    child.start()
    child.terminate()
    child.join(30)
    print("ended by", child.exitcode)
"""


@pytest.mark.slow
def test_processes_that_a_component_starts_end_by_signals(tmp_path):
    (tmp_path / "starts.py").write_text(STARTS)
    words = "digits-fedem clients=4 rounds=1 --quiet --on-round starts:process --output run"
    ended = subprocess.run(
        [sys.executable, "-m", "mpifed.run", *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "ended by -15" in ended.stdout


# Shared memory.


@pytest.fixture(params=["mpich_shm_", "sm_segment.", "ucx_shm_posix_"])
def file(request):
    """A file that looks like one of MPI's, of a job that began a while ago."""
    path = Path(DIRECTORY, f"{request.param}test-{os.getpid()}")
    path.write_bytes(bytes(4096))
    long_ago = time.time() - 2 * SETTLED
    os.utime(path, (long_ago, long_ago))
    yield path
    path.unlink(missing_ok=True)


def test_shared_memory_of_nobody_is_removed_and_what_is_in_use_stays(file):
    with file.open() as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ):
        remove_abandoned()
        assert file.exists()
    remove_abandoned()
    assert not file.exists()


def test_shared_memory_of_a_job_that_just_begins_stays(file):
    os.utime(file)
    remove_abandoned()
    assert file.exists()


# What launchers say.


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
        ({"SLURM_PROCID": "0"}, (0, 1, None, True)),
        ({"PMI_RANK": "²", "SLURM_PROCID": "5"}, (5, 1, None, True)),
    ],
)
def test_what_a_launcher_says_of_a_rank(variables, expected, monkeypatch):
    as_a_launcher_sets(variables, monkeypatch)
    found = launched()
    about = (found.rank, found.size, found.local_size, found.on_one_host) if found else None
    assert about == expected


def as_a_launcher_sets(variables: dict[str, str], monkeypatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI_", "SLURM_", "MPI_LOCAL")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("place", "spared"), [("PMI_FD", True), ("OMPI_ANY", False)])
def test_ucx_sets_aside_less_where_hydra_started_all_ranks_on_one_host(place, spared, monkeypatch):
    variables = {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4", place: "no number"}
    as_a_launcher_sets(variables, monkeypatch)
    for name in ("UCX_MM_SEG_SIZE", "UCX_TLS"):
        monkeypatch.delenv(name, raising=False)
    spare_memory()
    assert {"UCX_MM_SEG_SIZE", "UCX_TLS"} & {*os.environ} == (
        {"UCX_MM_SEG_SIZE", "UCX_TLS"} if spared else set()
    )


@pytest.mark.parametrize(
    "version", ["MPICH Version:      5.0.2\nMPICH Release date: ...", "Open MPI v4.1.4"]
)
def test_open_mpis_launcher_and_the_library_of_mpich_are_named(version, monkeypatch):
    import mpi4py

    library = types.SimpleNamespace(Get_library_version=lambda: version)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", library)
    for name in ("initialize", "finalize"):
        monkeypatch.setattr(mpi4py.rc, name, getattr(mpi4py.rc, name))
    check_launcher()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    if version.startswith("Open MPI"):
        check_launcher()
    else:
        with pytest.raises(InputError, match=r"Open MPI's mpirun.* MPICH 5\.0\.2,.*MPI4PY_LIBMPI"):
            check_launcher()
