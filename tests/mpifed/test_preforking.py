"""Ranks that are forked from one process which has imported for all: guards, stubs and the forker.

Most jobs here have no MPI and no torch: this process is the launcher of ``preforked.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import (
    HERE,
    TINY,
    all_ended,
    command,
    environment,
    family,
    kill_all,
    launch,
    name_of,
    rows,
    started,
    summary_of,
    wait_for,
)

from mpifed.mpi.communicator import spare_memory
from mpifed.watchdog import heartbeat, likeness, rank_process
from mpifed.watchdog.forker import NAME
from mpifed.watchdog.launcher import Launch, launched
from mpifed.watchdog.rank_process import UNSEEN, Child, Forked, Line
from mpifed.watchdog.rendezvous import open_meeting_socket
from mpifed.watchdog.starting import Starting
from mpifed.watchdog.stub import SWITCH, usable
from mpifed.watchdog.watch import Watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked under Linux only")


@dataclass
class Rank:
    """A process that this one has launched as a rank, and what the rank said of itself."""

    process: subprocess.Popen
    said: dict | None = None

    def hear(self) -> dict:
        """What the rank says of itself, in its first line that is JSON."""
        while self.said is None:
            line = self.process.stdout.readline()
            assert line, self.process.communicate(timeout=30)
            if line.startswith("{"):
                self.said = json.loads(line)
        return self.said

    def end(self) -> tuple[int, str]:
        """Its exit code, and what is left of its output and error."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out + err


@contextlib.contextmanager
def job(
    what: str, ranks: int = 3, variables: Callable[[int], dict] = lambda rank: {}, **options
) -> Iterator[list[Rank]]:
    """Ranks of one job on this host; whatever is left of them is killed in the end."""
    made: list[Rank] = []
    try:
        for rank in range(ranks):
            place = {"PMI_RANK": str(rank), "PMI_SIZE": str(ranks), "MPI_LOCALNRANKS": str(ranks)}
            own = {key: value[rank] for key, value in options.items() if isinstance(value, list)}
            words = [sys.executable, str(HERE / "preforked.py"), what]
            made.append(
                Rank(
                    subprocess.Popen(
                        words,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                        env=environment(**place, **variables(rank)),
                        **{**options, **own},
                    )
                )
            )
        yield made
    finally:
        kill_all([one for rank in made for one in family(rank.process.pid)])
        for rank in made:
            with rank.process:
                pass


def parents(ranks: list[Rank]) -> set[int]:
    return {rank.hear()["parent"] for rank in ranks}


def forked(ranks: list[Rank]) -> list[bool]:
    return [rank.hear()["forked"] for rank in ranks]


def test_a_rank_has_its_own_place_descriptors_and_processors(tmp_path):
    here = sorted(os.sched_getaffinity(0))
    pairs = [socket.socketpair() for _ in range(3)]
    for rank, (one, _) in enumerate(pairs):
        one.send(f"for rank {rank}".encode())
    ends = [other.fileno() for _, other in pairs]

    def give(rank: int) -> Callable[[], None]:
        def before() -> None:
            os.dup2(ends[rank], 77, inheritable=True)
            os.sched_setaffinity(0, here if rank else here[:1])

        return before

    with job(
        f"wait:{tmp_path / 'end'}",
        variables=lambda rank: {"HELD": "77", "SLURM_LOCALID": str(rank)},
        preexec_fn=[give(rank) for rank in range(3)],
        close_fds=False,
    ) as ranks:
        said = [rank.hear() for rank in ranks]
        assert forked(ranks) == [True] * 3
        (parent,) = parents(ranks)
        assert name_of(parent) == NAME
        for rank, words in enumerate(said):
            guard = ranks[rank].process.pid
            assert (words["rank"], words["shown"]) == (rank, [f"PMI_RANK={rank}"])
            assert words["guard"] == guard
            assert words["held"] == f"for rank {rank}"
            assert words["processors"] == (here if rank else here[:1])
            assert (words["group"], words["session"]) == (os.getpgid(0), os.getsid(0))
            assert words["blocked"] == [] and words["buffered"]
            assert name_of(words["process"]) == name_of(guard)
        # The forker is out of reach of what is sent to the job, and holds nothing of its launcher.
        assert os.getpgid(parent) == parent
        targets = [os.readlink(file) for file in Path(f"/proc/{parent}/fd").iterdir()]
        given = {os.readlink(f"/proc/self/fd/{number}") for number in ends}
        assert not given & set(targets)
        assert not [target for target in targets if target.startswith("pipe:")]
        (tmp_path / "end").touch()
        assert [rank.end() for rank in ranks] == [(0, "")] * 3
        all_ended([parent])
    for pair in pairs:
        for end in pair:
            end.close()


@pytest.mark.parametrize("code", [0, 1, 2, 75])
def test_exit_codes_are_those_of_the_ranks(code, tmp_path):
    codes = {"CODE": str(code)}
    with job(f"wait:{tmp_path / 'end'}", ranks=2, variables=lambda rank: codes) as ranks:
        assert forked(ranks) == [True, True]
        (tmp_path / "end").touch()
        assert [rank.end()[0] for rank in ranks] == [code, code]


def test_the_switch_switches_it_off():
    with job("leave:0", ranks=2, variables=lambda rank: {SWITCH: "0"}) as ranks:
        assert forked(ranks) == [False, False]
        assert parents(ranks) == {rank.process.pid for rank in ranks}


def lower_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.mark.parametrize(
    "unlike",
    [
        {"variables": lambda rank: {"CUDA_VISIBLE_DEVICES": str(rank // 2)}},
        {"preexec_fn": [None, None, lower_limit]},
        {"preexec_fn": [None, None, lambda: os.umask(0o077)]},
        {"preexec_fn": [None, None, lambda: os.nice(1)]},
        {"preexec_fn": [None, None, lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)]},
        {"cwd": [HERE, HERE, HERE.parent]},
    ],
    ids=["GPUs", "limits", "umask", "priority", "signals", "folder"],
)
def test_a_rank_with_other_surroundings_begins_by_itself(unlike, tmp_path):
    options = {key: value for key, value in unlike.items() if key != "variables"}
    variables = unlike.get("variables", lambda rank: {})
    with job(f"wait:{tmp_path / 'end'}", variables=variables, **options) as ranks:
        which = forked(ranks)
        # Whichever guard came first started the forker: the odd one is alone, or forked alone.
        alone = ranks[2]
        assert which in ([True, True, False], [False, False, True])
        if not which[2]:
            assert alone.hear()["parent"] == alone.process.pid
        if "preexec_fn" in options and options["preexec_fn"][2] is lower_limit:
            assert alone.hear()["files"] == 512
        (tmp_path / "end").touch()
        assert [rank.end() for rank in ranks] == [(0, "")] * 3


@pytest.mark.parametrize("how", ["raises", "is killed", "starts a thread", "declines"])
def test_without_a_forker_ranks_begin_by_themselves_and_nothing_is_said(how):
    with job("leave:0", ranks=2, variables=lambda rank: {"PRELOAD": how}) as ranks:
        assert forked(ranks) == [False, False]
        assert [rank.end() for rank in ranks] == [(0, "")] * 2


def test_what_imports_print_is_printed_by_every_rank():
    with job("leave:0", ranks=2, variables=lambda rank: {"PRELOAD": "prints"}) as ranks:
        for rank in ranks:
            code, text = rank.end()
            first, second, last = text.splitlines()
            assert (code, first, last) == (0, "printed by an import", "a warning of an import")
            assert json.loads(second)["forked"]


def test_a_forker_that_hangs_is_noticed():
    with job("leave:0", ranks=2, variables=lambda rank: {"PRELOAD": "hangs"}) as ranks:
        outcomes = [rank.end() for rank in ranks]
    assert [code for code, _ in outcomes] == [1, 1]
    (line,) = "".join(text for _, text in outcomes).splitlines()
    assert line.endswith("before the first round: no step forward for 1 s (stall_limit)")


def test_a_stub_that_is_killed_takes_its_rank_along(tmp_path):
    with job(f"wait:{tmp_path / 'end'}", ranks=2) as ranks:
        assert forked(ranks) == [True, True]
        for rank in ranks:
            rank.process.kill()
            all_ended([rank.hear()["process"]])
        all_ended(list(parents(ranks)))


@pytest.mark.parametrize("forker", ["lives", "is killed before"])
def test_a_rank_that_is_killed_is_reported(forker, tmp_path):
    with job(f"wait:{tmp_path / 'end'}", ranks=2) as ranks:
        assert forked(ranks) == [True, True]
        if forker == "is killed before":
            kill_all(list(parents(ranks)))
        os.kill(ranks[1].hear()["process"], signal.SIGKILL)
        outcomes = [rank.end() for rank in ranks]
    assert [code for code, _ in outcomes] == [1, 1]
    how = "was killed by SIGKILL (out of memory?)" if forker == "lives" else "has ended"
    (line,) = "".join(text for _, text in outcomes).splitlines()
    assert line == (
        f"mpifed: rank 1 on {socket.gethostname()}: before the first round: the process {how}"
    )


@pytest.mark.parametrize("stubs", ["live", "are killed"])
def test_a_forker_that_is_killed_after_its_work_changes_nothing(stubs, tmp_path):
    with job(f"wait:{tmp_path / 'end'}", ranks=2) as ranks:
        kill_all(list(parents(ranks)))
        if stubs == "are killed":
            ranks[0].process.kill()
            all_ended([ranks[0].hear()["process"]])
            return
        for rank in ranks:
            rank.process.send_signal(signal.SIGUSR1)
        assert [rank.end() for rank in ranks] == [(75, "")] * 2


@pytest.mark.parametrize("when", ["before there is a rank", "later"])
def test_signals_to_the_stub_reach_the_rank(when, tmp_path):
    early = when != "later"
    variables = {"PRELOAD": "takes a while"} if early else {}
    with job(f"wait:{tmp_path / 'end'}", ranks=2, variables=lambda rank: variables) as ranks:
        if early:
            guards = [rank.process.pid for rank in ranks]
            deadline = time.monotonic() + 30
            while not any(name_of(one) == NAME for guard in guards for one in family(guard)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(0.2)
        else:
            assert forked(ranks) == [True, True]
        for rank in ranks:
            rank.process.send_signal(signal.SIGUSR1)
        assert [rank.end()[0] for rank in ranks] == [75, 75]


def test_a_rank_that_is_stopped_is_seen_to_be():
    with job("wait:/nowhere", ranks=2) as ranks:
        os.kill(ranks[1].hear()["process"], signal.SIGSTOP)
        outcomes = [rank.end() for rank in ranks]
    (line,) = (text.splitlines()[-1] for _, text in outcomes if "mpifed: " in text)
    assert line.startswith("mpifed: rank 1 on ")
    assert "the process has been stopped for 5 s" in line


def test_jobs_of_one_launcher_do_not_meet(tmp_path):
    """Open MPI's daemons may serve several jobs, which have names of their own."""
    ends = f"wait:{tmp_path / 'end'}"
    with (
        job(ends, ranks=2, variables=lambda rank: {"PMIX_NAMESPACE": "one"}) as these,
        job(ends, ranks=2, variables=lambda rank: {"PMIX_NAMESPACE": "two"}) as those,
    ):
        assert forked(these) == forked(those) == [True, True]
        assert len(parents(these)) == len(parents(those)) == 1
        assert parents(these) != parents(those)


def test_another_user_s_socket_is_not_asked(monkeypatch):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        monkeypatch.setattr("os.getuid", lambda: 4242)
        name = b"\0mpifed-test-" + str(os.getpid()).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(name)
            listening.listen()
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            rank = Forked(Line(connection, name, ("{}", [])))
            rank.look()
            assert rank.refused


def test_a_name_at_which_nobody_listens_is_given_up(monkeypatch):
    monkeypatch.setattr(Line, "CONNECTING", 0.05)
    name = b"\0mpifed-test-nobody-" + str(os.getpid()).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rank = Forked(Line(connection, name, ("{}", [])))
    rank.look()
    assert not rank.refused and rank.sources() == []
    time.sleep(0.06)
    rank.look()
    assert rank.refused


def test_how_a_rank_has_ended_is_waited_for_only_so_long(monkeypatch):
    """Of a forker that is stopped."""
    monkeypatch.setattr(rank_process, "STATUS_PATIENCE", 0.05)
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        rank = Forked(Line(one, None, ("{}", [])))
        rank.look()
        child = os.fork()
        if not child:
            signal.pause()
        ended = os.pidfd_open(child)
        socket.send_fds(other, [json.dumps({"pid": child}).encode()], [ended])
        rank.look()
        assert (rank.pid, rank.code, rank.stopped) == (child, None, False)
        rank.send(signal.SIGKILL)
        os.waitpid(child, 0)
        rank.look()
        time.sleep(0.06)
        rank.look()
        assert rank.code == UNSEEN
        os.close(ended)


PLACE = Launch(0, 2, 2, "job", 1, 2)


def test_it_is_not_used_where_something_watches_this_process(monkeypatch):
    monkeypatch.setattr(likeness, "observed", lambda: False)
    assert usable(PLACE)
    assert not usable(Launch(0, 2, 1, "job", 1, 1))
    monkeypatch.setattr(likeness, "observed", lambda: True)
    assert not usable(PLACE)


OBSERVED = """
import sys, threading
from mpifed.watchdog.likeness import observed
how = sys.argv[1]
if how == "tracer": sys.settrace(lambda *about: None)
if how == "profiler": sys.setprofile(lambda *about: None)
if how == "thread": threading.Thread(target=threading.Event().wait, daemon=True).start()
if how == "import hook": sys.meta_path.insert(0, type("Hook", (), {"find_spec": None}))
print(observed())
"""


@pytest.mark.parametrize("how", ["tracer", "profiler", "thread", "import hook", "nothing"])
def test_what_observes_a_process_is_seen(how):
    done = subprocess.run(
        [sys.executable, "-c", OBSERVED, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment(),
    )
    assert done.stdout == f"{how != 'nothing'}\n"


@pytest.mark.parametrize(
    ("node", "tasks", "expected"),
    [("0", "4", 4), ("1", "4(x2)", 4), ("2", "4(x2),3", 3), ("3", "4(x2),3", 1), ("0", "x", 1)],
)
def test_slurm_says_how_many_tasks_a_node_has(node, tasks, expected, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI_", "SLURM_", "MPI_LOCAL")):
            monkeypatch.delenv(name)
    for name, value in {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "99",
        "SLURM_NODEID": node,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
    }.items():
        monkeypatch.setenv(name, value)
    assert launched().together == expected


def test_a_child_has_the_same_face_as_a_forked_rank():
    child = os.fork()
    if not child:
        signal.pause()
    rank = Child(child)
    rank.send(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while not rank.stopped and time.monotonic() < deadline:
        rank.look()
    assert rank.stopped
    rank.send(signal.SIGKILL)
    while rank.code is None and time.monotonic() < deadline:
        rank.look()
    assert (rank.code, rank.refused) == (-signal.SIGKILL, False)


@pytest.mark.parametrize("word", ["leaves", "speaks"])
def test_a_guard_sees_what_happens_without_looking_for_it(word, monkeypatch):
    monkeypatch.setattr("mpifed.watchdog.watch.pause_between_looks", lambda *about: 1e6)
    monkeypatch.setattr(rank_process, "PASSED_ON", ())
    reading, writing = os.pipe()
    board = heartbeat.new_board()
    watch = Watch(Launch(0, 1, 1, "seen", os.getpid()), reading, board, None)
    child = os.fork()
    if not child:
        if word == "speaks":
            os.write(writing, b'{"limit": 4.0}\n.\n')
        time.sleep(0.3)
        os._exit(7 if word == "leaves" else 0)
    os.close(writing)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    try:
        code = watch.wait_for(Child(child))
    finally:
        signal.alarm(0)
        watch.close()
    assert code == (1 if word == "leaves" else 0)
    assert watch.stillness.limit == (3600.0 if word == "leaves" else 4.0)


@pytest.mark.parametrize(("place", "spared"), [("PMI_FD", True), ("OMPI_ANY", False)])
def test_ucx_sets_aside_less_where_hydra_started_all_ranks_on_one_host(place, spared, monkeypatch):
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PMI_FD", raising=False)
    monkeypatch.setenv(place, "no number")
    monkeypatch.setenv("UCX_MM_SEG_SIZE", "as the user said")
    spare_memory()
    assert os.environ["UCX_MM_SEG_SIZE"] == "as the user said"
    monkeypatch.delenv("UCX_MM_SEG_SIZE")
    monkeypatch.setenv("MPI_LOCALNRANKS", "2")
    spare_memory()
    assert "UCX_MM_SEG_SIZE" not in os.environ
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    spare_memory()
    assert ("UCX_MM_SEG_SIZE" in os.environ) == spared


@pytest.mark.slow
def test_a_run_is_the_same_whether_its_ranks_are_forked(tmp_path):
    """With MPI and torch: from one way to the other, after a stop."""
    words = [*TINY, "rounds=100000", "evaluation.every=50", "checkpoint.every=50", "--quiet"]
    target, whole = tmp_path / "run", tmp_path / "whole"
    with started(command(2, *words, "--output", target), stderr=subprocess.PIPE) as process:
        wait_for(target / "checkpoints" / "round-000050.h5", process)
        names = [name_of(one) for one in family(process.pid)]
        assert names.count(NAME) == 1
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 75, process.stderr.read()
    reached = summary_of(target)["rounds"]
    more = [*words, f"rounds={reached + 5}", "--output"]
    resumed = launch(2, *more, target, "--resume", **{SWITCH: "0"})
    assert (resumed.code, resumed.err) == (0, "")
    assert launch(0, *more, whole).code == 0
    assert rows(target)[-1] == rows(whole)[-1]


def test_rank_0_says_what_it_waits_for_and_how_many_have_come(monkeypatch):
    here = [Launch(rank, 6, 4, "starting", 0) for rank in range(4)]
    sockets = [open_meeting_socket(launch) for launch in here[:3]]
    starting = Starting(here[0])
    assert starting.line(importing=True, waiting=False) is None
    said = []
    for waited, importing, waiting in [(1.9, True, False), (2.0, False, False), (5.0, False, True)]:
        starting.began = time.monotonic() - waited
        said.append(starting.line(importing, waiting))
    front = "starting: 3 of 4 ranks are on this node, of 6 in all; "
    assert said[0] == f"{front}one process imports torch for all ranks of this node (2 s)"
    assert said[1] is None
    assert said[2] == f"{front}rank 0 waits for the others in MPI_Init (5 s)"
    for made in sockets:
        made.close()


@pytest.mark.parametrize("quiet", [True, False])
def test_only_rank_0_says_it_and_not_where_it_is_to_be_quiet(quiet):
    variables = {"PRELOAD": "takes a while", **({} if quiet else {"LOUD": "1"})}
    with job("leave:0", ranks=2, variables=lambda rank: variables) as ranks:
        first, second = [rank.end() for rank in ranks]
    assert (first[0], second[0]) == (0, 0)
    assert ("starting: 2 of 2 ranks are here; " in first[1]) is not quiet
    assert "starting: " not in second[1]


LOADS = """
import sys
from mpifed.mpi.beginning import begin_mpi, import_mpi

if sys.argv[1] == "no mpi4py":
    sys.modules["mpi4py"] = None
import_mpi()
print("libmpi" in open("/proc/self/maps").read(), "mpi4py.MPI" in sys.modules)
if sys.argv[1] != "no mpi4py":
    from mpi4py import MPI
    print(MPI.Is_initialized())
    begin_mpi()
    print(MPI.Is_initialized(), MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    begin_mpi()
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [("as usual", "True True\nFalse\nTrue True\n"), ("no mpi4py", "False False\n")],
)
def test_mpi_is_imported_first_and_begun_later(how, said):
    done = subprocess.run(
        [sys.executable, "-c", LOADS, how],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, said), done


def test_a_guard_imports_little():
    """A job has as many guards as ranks; ``inspect`` alone takes a fifth of one's memory."""
    words = "import sys; old = {*sys.modules}; import mpifed.watchdog.guard; "
    words += "print(*sys.modules.keys() - old)"
    done = subprocess.run(
        [sys.executable, "-c", words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    spared = {"dataclasses", "inspect", "ast", "dis", "threading", "subprocess", "logging", "numpy"}
    assert not spared & {*done.stdout.split()}
