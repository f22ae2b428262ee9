"""Jobs of several hosts: the same digests, and the failures that only a network has."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rig import (
    SCRIPTS,
    WORDS,
    begun,
    command,
    environment,
    is_open_mpi,
    link,
    listening,
    processes,
    run,
    said_by,
)

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts")]

LONG = (*WORDS, "rounds=1000000", "evaluation.every=1000")

KINDS = {
    "server": (),
    "gossip": ("exchange=gossip",),
    "asynchrony": (
        *("exchange=gossip", "exchange.topology=ring", "exchange.asynchrony=wait_free"),
        *("exchange.weights=metropolis_hastings", "compute.seconds=0.01"),
    ),
}


def digest_of(directory: Path) -> str:
    return json.loads((directory / "summary.json").read_text())["state_digest"]


def of_one_process(directory: Path, *words: object) -> str:
    line = [sys.executable, "-m", "mpifed.run", *WORDS, *words, "--output", directory]
    subprocess.run([str(word) for word in line], check=True, env=environment(), timeout=90)
    return digest_of(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_digests_are_those_of_one_process(kind, tmp_path):
    words = (*KINDS[kind], "rounds=8")
    expected = of_one_process(tmp_path / "alone", *words)
    for hosts in (1, 2, 4) if kind == "server" else (2, 4):
        done = run(command(hosts, 4, *WORDS, *words, "--output", tmp_path / f"{hosts}"))
        assert (done.returncode, digest_of(tmp_path / f"{hosts}")) == (0, expected), done.stderr


def test_a_host_that_is_lost_is_named_and_ends_the_job(tmp_path):
    """Three jobs of node1 and another host, since each loss is mostly waiting."""
    lost = {"cut": 2, "deaf": 3, "off": 4}
    with contextlib.ExitStack() as stack:
        jobs = {}
        for what, number in lost.items():
            line = command(2, 4, *LONG, "--output", tmp_path / what, others=number)
            jobs[what] = stack.enter_context(begun(line, tmp_path / what)), time.monotonic()
            link(f"node{number}", what)
        for what, (job, since) in jobs.items():
            said = said_by(job, tmp_path / what, 40)
            print(f"{what}: {time.monotonic() - since:.1f} s until the launcher has ended")
            assert job.returncode
            (line,) = [line for line in said.splitlines() if line.startswith("mpifed:")]
            assert f"on node{lost[what]} (clients" in line
        time.sleep(max(0, since + 32 - time.monotonic()))  # the other hosts end by themselves
        for what in ("cut", "deaf"):
            link(f"node{lost[what]}", "whole")
        time.sleep(1)
        assert [processes(f"node{number}") for number in lost.values()] == [[], [], []]


def test_a_link_that_comes_back_after_five_seconds_changes_nothing(tmp_path):
    expected = of_one_process(tmp_path / "alone", "rounds=500")
    line = command(2, 4, *WORDS, "rounds=500", "--output", tmp_path / "run")
    with begun(line, tmp_path / "run") as job:
        link("node2", "cut")
        time.sleep(5)
        assert job.poll() is None
        link("node2", "whole")
        said = said_by(job, tmp_path / "run", 120)
    assert (job.returncode, digest_of(tmp_path / "run")) == (0, expected), said


def test_a_rank_killed_on_another_host_is_named(tmp_path):
    with begun(command(2, 4, *LONG, "--output", tmp_path / "run"), tmp_path / "run") as job:
        (victim,) = processes("node2", "mpifed-rank-3")
        since = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        said = said_by(job, tmp_path / "run", 30)
    print(f"killed: {time.monotonic() - since:.1f} s until the launcher has ended")
    assert job.returncode
    (line,) = [line for line in said.splitlines() if line.startswith("mpifed:")]
    assert "rank 3 on node2" in line


def test_a_full_disk_on_the_host_that_writes_is_reported(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    enter = str(SCRIPTS / "enter")
    subprocess.run([enter, "node1", f"mount -t tmpfs -o size=1m tmpfs {full}"], check=True)
    words = ("clients=8", "rounds=400", "checkpoint.every=1", "checkpoint.keep=1000", "--quiet")
    done = run(command(2, 4, *words, "--output", full / "run"))
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("mpifed:")]
    assert "space" in line


# Python's clock of the other host, an hour late.
LATE = """
import socket, time
if socket.gethostname() != "node1":
    clock = time.time
    time.time = lambda: clock() - 3600
"""


def test_clocks_an_hour_apart_change_nothing(tmp_path):
    expected = of_one_process(tmp_path / "alone", "rounds=8")
    (tmp_path / "sitecustomize.py").write_text(LATE)
    line = command(2, 4, *WORDS, "rounds=8", "--output", tmp_path / "run")
    done = run(line, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert (done.returncode, digest_of(tmp_path / "run")) == (0, expected), done.stderr


def test_a_host_name_that_does_not_resolve_hides_no_lost_host(tmp_path):
    """The launcher goes by addresses then, as do supervisors."""
    for i in (1, 2):
        subprocess.run([SCRIPTS / "enter", f"node{i}", f"hostname nowhere{i}"], check=True)
    line = command(2, 4, *LONG, "--output", tmp_path / "run")
    for i in (1, 2):
        line[-1] = line[-1].replace(f"node{i}:", f"10.77.0.{i}:")
    with begun(line, tmp_path / "run") as job:
        link("node2", "cut")
        said = said_by(job, tmp_path / "run", 40)
    (told,) = [line for line in said.splitlines() if line.startswith("mpifed:")]
    assert "on nowhere2" in told


def test_two_jobs_on_the_same_hosts_do_not_see_each_other(tmp_path):
    expected = of_one_process(tmp_path / "alone", "rounds=8")
    jobs = [
        subprocess.Popen(
            command(2, 4, *WORDS, "rounds=8", "--output", tmp_path / name), env=environment()
        )
        for name in ("first", "second")
    ]
    assert [job.wait(120) for job in jobs] == [0, 0]
    assert {digest_of(tmp_path / name) for name in ("first", "second")} == {expected}


# Sends bytes of any kind to an address, and prints how many come back until it is closed.
STRANGERS = """
import contextlib, random, socket, sys, time
random.seed(1)
for number in range(18):
    messages = [b"", b"[" * 12000 + b"\\n", b'{"key": "x", "end": true}\\n' * 1000]
    messages += [random.randbytes(random.randrange(5000)) for _ in range(3)]
    begun, came = time.monotonic(), 0
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(messages[number % len(messages)])
            while data := connection.recv(1 << 16):
                came += len(data)
    print(came, time.monotonic() - begun)
"""


def test_whatever_strangers_send_changes_nothing(tmp_path):
    expected = of_one_process(tmp_path / "alone", "rounds=1000")
    line = command(2, 4, *WORDS, "rounds=1000", "--output", tmp_path / "run")
    with begun(line, tmp_path / "run") as job:
        inherited = listening("node1", "mpirun")
        (address,) = listening("node1", "mpifed-guard") - inherited
        assert address[0] == "10.77.0.1"  # not all addresses of the host
        words = map(str, [sys.executable, "-c", STRANGERS, *address])
        enter = [str(SCRIPTS / "enter"), "node3", shlex.join(words)]
        answers = subprocess.run(enter, check=True, capture_output=True, timeout=90).stdout
        assert job.poll() is None  # the job is there until the last of them has gone
        of_each = [tuple(map(float, answer.split())) for answer in answers.splitlines()]
        assert len(of_each) == 18
        assert all(came in (0, 32) and seconds < 5 for came, seconds in of_each)
        said = said_by(job, tmp_path / "run", 120)
    assert (job.returncode, digest_of(tmp_path / "run")) == (0, expected), said


@pytest.fixture
def step(hosts, tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """The command line of a job step of a SLURM whose nodes are hosts."""
    root = Path(f"/tmp/mpifed-slurm-{os.getpid()}-hosts")  # short, for it holds a socket
    variables = os.environ | {
        "LOCAL_SLURM_ROOT": str(root),
        "LOCAL_SLURM_HOSTS": "yes",
        "LOCAL_SLURM_NODES": "2",
        "LOCAL_SLURM_CPUS": "2",
        "LOCAL_SLURM_PORT": "24017",
    }
    scripts = SCRIPTS.parent / "slurm"
    if not shutil.which("slurmctld", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        pytest.skip("no slurmctld on this machine; scripts/slurm/install installs SLURM")
    subprocess.run([scripts / "start"], env=variables, check=True, timeout=60)
    plugin = "pmix" if is_open_mpi() else "pmi2"

    def line(*words: object) -> list[str]:
        front = ["srun", "--nodes=2", "--ntasks=4", f"--mpi={plugin}", "--kill-on-bad-exit=1"]
        words = (*front, sys.executable, "-m", "mpifed.run", *words)
        job = shlex.join(map(str, words))
        given = f"SLURM_CONF={root}/slurm.conf MPIR_CVAR_CH4_NETMOD=ofi"  # as jobs/srun.sh
        return [str(SCRIPTS / "enter"), "node1", f"{given} {job}"]

    yield line
    subprocess.run([scripts / "stop", "--purge"], env=variables, check=True, timeout=60)


def test_under_slurm_digests_are_those_of_one_process(step, tmp_path):
    expected = of_one_process(tmp_path / "alone", "rounds=8")
    done = run(step(*WORDS, "rounds=8", "--output", tmp_path / "run"))
    assert (done.returncode, digest_of(tmp_path / "run")) == (0, expected), done.stderr


def test_under_slurm_a_lost_host_is_named(step, tmp_path):
    """The step itself ends when SLURM gives the node up, after its SlurmdTimeout."""
    with begun(step(*LONG, "--output", tmp_path / "run"), tmp_path / "run"):
        since = time.monotonic()
        link("node2", "cut")
        while "on node2 (clients" not in (tmp_path / "run.said").read_text():
            assert time.monotonic() - since < 40
            time.sleep(0.1)


# Directories of control groups of this process, and the file for the limit of memory: v1 and v2.
GROUPS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}


GROWS = """
import torch
from mpifed.algorithms.fedavg.fedavg import FedAvg

class Grows(FedAvg):
    def round(self, *given):
        self.held = torch.ones(250_000_000)
        return super().round(*given)
"""


def test_a_memory_limit_names_the_rank_and_what_it_held(tmp_path):
    (tmp_path / "grows.py").write_text(GROWS)
    place, limit = next((p, f) for p, f in GROUPS.items() if Path(p, "cgroup.procs").exists())
    group = Path(place, f"mpifed-{os.getpid()}")
    group.mkdir()
    try:
        if not (group / limit).exists():
            pytest.skip(f"{group} has no {limit}: memory cannot be limited here")
        (group / limit).write_text("700000000")
        words = ("clients=8", "data.n_test=40000", "algorithm=grows:Grows", "rounds=3")
        line = shlex.join(command(1, 2, *words, "--quiet", "--output", str(tmp_path / "run")))
        done = run(["bash", "-c", f"echo $$ >{group}/cgroup.procs; cd {tmp_path}; exec {line}"])
    finally:
        time.sleep(1)
        group.rmdir()
    assert done.returncode
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("mpifed:")]
    assert re.search("SIGKILL.* MB .*--dry-run", line)
