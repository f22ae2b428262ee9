"""Ranks whose launcher or guard is killed, and what they leave in shared memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from commands import (
    TINY,
    all_ended,
    command,
    environment,
    family,
    kill_all,
    launch,
    of_rank,
    started,
    wait_for,
)

from mpifed.watchdog.shared_memory import (
    NAMES,
    PLACE,
    SETTLED,
    remove_abandoned,
    remove_segments,
    segments_of,
)

ENDLESS = (*TINY, "rounds=1000000", "evaluation.every=1000", "--quiet", "--output")


@contextlib.contextmanager
def training(ranks: int, target: Path, **options):
    """A job amid its rounds, and the processes of its ranks."""
    with started(command(ranks, *ENDLESS, target), **options) as process:
        wait_for(target / "checkpoints" / "round-000006.h5", process)
        everybody = family(process.pid)
        try:
            yield process, [of_rank(rank, target) for rank in range(ranks)]
        finally:
            kill_all(everybody)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def launcher_of(rank: int) -> int:
    """The process above a rank, its guard and the process that both may come from."""
    above = parent_of(rank)
    while b"mpifed.run" in Path(f"/proc/{above}/cmdline").read_bytes().split(b"\0")[:3]:
        above = parent_of(above)
    return above


def test_ranks_do_not_outlive_their_launcher(tmp_path):
    """Killed is what started the ranks: with MPICH a proxy, with Open MPI the launcher itself."""
    said = tmp_path / "said"
    with said.open("w") as file, training(2, tmp_path / "run", stderr=file) as (process, ranks):
        everybody = [one for one in family(process.pid) if one != process.pid]
        segments = {path for rank in ranks for path in segments_of(rank)}
        kill_all([launcher_of(ranks[0])])
        all_ended([one for one in everybody if one != process.pid])
        assert process.wait(30) not in (0, 75)
    if not segments:
        pytest.skip("the ranks have ended; this MPI library shares memory in another way")
    assert not [path for path in segments if Path(path).exists()]


def test_a_launcher_that_goes_before_mpi_has_begun_is_missed_too(tmp_path):
    variables = environment(
        EARLY="hang:every:torch", PYTHONPATH=str(Path(__file__).parent / "early")
    )
    with started(command(2, *ENDLESS, tmp_path / "run"), env=variables) as process:
        guards = until(lambda: [one for one in family(process.pid) if is_guard(one)], 2)
        ranks = [child for guard in guards for child in family(guard)]
        try:
            kill_all([parent_of(guards[0])])
            all_ended(ranks)
        finally:
            kill_all(ranks)


def is_guard(process: int) -> bool:
    """Whether this is a rank's guard: a Python whose child runs the same command."""
    with contextlib.suppress(OSError):
        own = Path(f"/proc/{process}/cmdline").read_bytes()
        children = [child for child in family(process) if child != process]
        return any(Path(f"/proc/{child}/cmdline").read_bytes() == own for child in children)
    return False


def until(found, count: int, seconds: float = 60) -> list[int]:
    """What ``found`` gives once there are so many."""
    deadline = time.monotonic() + seconds
    while len(there := found()) < count:
        assert time.monotonic() < deadline, there
        time.sleep(0.01)
    return there


def test_guards_of_one_host_are_reached_from_that_host_alone(tmp_path):
    with training(2, tmp_path / "run") as (process, _):
        opened = set()
        for one in family(process.pid):
            for file in Path(f"/proc/{one}/fd").iterdir():
                with contextlib.suppress(OSError):
                    opened.add(os.readlink(file))
        lines = Path("/proc/net/udp").read_text().splitlines()[1:]
        fields = [line.split() for line in lines]
        places = [words[1].split(":")[0] for words in fields if f"socket:[{words[9]}]" in opened]
    assert places == [socket.inet_aton("127.0.0.1")[::-1].hex().upper()] * 2


# Shared memory.


@pytest.fixture
def file():
    """A file that looks like one of MPICH's, of a job that began long ago."""
    path = Path(PLACE, f"{NAMES[0]}test-{os.getpid()}")
    path.write_bytes(bytes(4096))
    long_ago = time.time() - 2 * SETTLED
    os.utime(path, (long_ago, long_ago))
    yield path
    path.unlink(missing_ok=True)


def test_shared_memory_of_nobody_is_removed(file):
    remove_abandoned()
    assert not file.exists()


def test_shared_memory_in_use_stays(file):
    with file.open() as opened:
        remove_abandoned()
        assert file.exists()
        assert file.read_bytes() == opened.read().encode()
    remove_abandoned()
    assert not file.exists()


def test_shared_memory_of_a_job_that_just_begins_stays(file):
    os.utime(file)
    remove_abandoned()
    assert file.exists()
    remove_abandoned(time.time() + 2 * SETTLED)
    assert not file.exists()


def test_other_files_stay(file):
    other = file.with_name(f"other-{os.getpid()}")
    file.rename(other)
    try:
        remove_abandoned()
        assert other.exists()
    finally:
        other.unlink()


@pytest.mark.slow
def test_the_next_start_removes_what_a_job_killed_with_its_guards_left(tmp_path):
    with training(2, tmp_path / "run", stderr=subprocess.DEVNULL) as (process, ranks):
        segments = {path for rank in ranks for path in segments_of(rank)}
        everybody = family(process.pid)
        for one in everybody:  # nobody may clear up meanwhile
            os.kill(one, signal.SIGSTOP)
        kill_all(everybody)
    if not segments:
        pytest.skip("this MPI library shares memory in another way")
    try:
        left = [path for path in segments if Path(path).exists()]
        assert left == sorted(segments)
        for path in left:
            os.utime(path, (0, 0))
        assert launch(2, *TINY, "--quiet", "--output", tmp_path / "next").code == 0
        assert not [path for path in left if Path(path).exists()]
    finally:
        remove_segments(segments)
