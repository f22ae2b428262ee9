"""Guards where the system refuses to open more files: one sentence, and no job that hangs."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import TINY, Outcome, command, environment

from mpifed.watchdog import heartbeat, shared_memory, watch
from mpifed.watchdog.guard import FEWEST_FILES
from mpifed.watchdog.launcher import Launch
from mpifed.watchdog.rank_process import Child
from mpifed.watchdog.rendezvous import open_meeting_socket
from mpifed.watchdog.watch import Watch


def refuse(*given, **named):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("prefork", ["0", "1"])
def test_a_job_that_may_open_too_few_files_is_refused_in_one_sentence(prefork, tmp_path):
    few = FEWEST_FILES - 8
    words = command(2, *TINY, "--output", tmp_path / "run")
    begins = words.index(sys.executable)
    # Launchers need files of their own, and Open MPI's hangs where it lacks them.
    limited = [*words[:begins], "sh", "-c", f'ulimit -n {few}; exec "$@"', "sh", *words[begins:]]
    done = subprocess.run(
        limited,
        env=environment(MPIFED_PREFORK=prefork),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (line,) = Outcome(done.returncode, done.stdout, done.stderr).messages
    assert done.returncode == 2, done
    assert line.startswith(f"mpifed: ulimit -n is {few} on ")
    assert line.endswith(f"a rank needs at least {FEWEST_FILES}")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def abandoned(tmp_path, monkeypatch) -> Path:
    """A file that looks like MPICH's, of a job that began long ago, in a place of its own."""
    monkeypatch.setattr(shared_memory, "PLACE", f"{tmp_path}/")
    path = tmp_path / f"{shared_memory.NAMES[0]}test"
    path.write_bytes(bytes(16))
    long_ago = time.time() - 2 * shared_memory.SETTLED
    os.utime(path, (long_ago, long_ago))
    return path


def test_tidying_up_without_descriptors_removes_nothing_and_raises_nothing(abandoned):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd"))) + 1
    opened = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, before[1]))
        while True:
            try:
                opened.append(os.dup(0))
            except OSError:
                break
        shared_memory.remove_abandoned()
        assert abandoned.exists()
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    shared_memory.remove_abandoned()
    assert not abandoned.exists()


@pytest.mark.parametrize("what", ["descriptors", "maps"])
def test_what_cannot_be_told_of_a_process_may_be_in_use(what, abandoned, monkeypatch):
    listdir = os.listdir

    def listed(path):
        return refuse() if str(path).endswith("/fd") else listdir(path)

    if what == "descriptors":
        monkeypatch.setattr(shared_memory.os, "listdir", listed)
    else:
        monkeypatch.setattr(shared_memory, "_mapped", refuse)
    shared_memory.remove_abandoned()
    assert abandoned.exists()


def test_guards_without_a_socket_do_not_meet(monkeypatch):
    monkeypatch.setattr("socket.socket", refuse)
    assert open_meeting_socket(Launch(0, 2, 2, "few", os.getpid())) is None


def test_a_guard_that_fails_ends_its_rank_with_a_sentence(monkeypatch, capfd):
    monkeypatch.setattr(watch, "pause_between_looks", refuse)
    reading, writing = os.pipe()
    rank = subprocess.Popen(["sleep", "60"])
    try:
        made = Watch(Launch(0, 1, 1, "few", os.getpid()), reading, heartbeat.new_board(-1), None)
        assert made.wait_for(Child(rank.pid)) == 1
        made._signals.release()
        assert rank.wait(10) == -9
    finally:
        rank.kill()
        os.close(reading)
        os.close(writing)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("before the first round: its guard failed: Too many open files")
