"""Hosts of this machine (scripts/hosts), and jobs of several of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "mpifed"))
from commands import OPEN_MPI, mpirun  # noqa: E402

SCRIPTS = HERE.parents[1] / "scripts" / "hosts"

# Seconds of a rank's start in which others must not count it as lost.
STARTING = 60.0

WORDS = (
    *("synthetic-fedem", "clients=8", "data.n_test=20", "data.dimension=20", "evaluation.every=4"),
    *("local.batch_size=64", "--quiet"),
)


def is_open_mpi() -> bool:
    said = subprocess.run([mpirun(), "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in said.stdout


def link(host: str, what: str) -> str:
    """Change the link of a host, or read its counters."""
    words = [str(SCRIPTS / "link"), host, what]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def command(hosts: int, ranks: int, *words: object, others: int = 2) -> list[str]:
    """The command line of a job that node1 starts, on it and on the hosts from `others` on."""
    each = -(-ranks // hosts)
    names = ",".join(f"node{i}:{each}" for i in (1, *range(others, others + hosts - 1)))
    if is_open_mpi():
        front = ["--mca", "plm_rsh_agent", str(SCRIPTS / "enter"), "--host", names]
    else:
        front = ["-launcher", "ssh", "-launcher-exec", str(SCRIPTS / "enter"), "-hosts", names]
    line = [mpirun(), *front, "-n", str(ranks), sys.executable, "-m", "mpifed.run", *words]
    return [str(SCRIPTS / "enter"), "node1", shlex.join(map(str, line))]


def environment(**more: str) -> dict[str, str]:
    yields = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}
    return os.environ | OPEN_MPI | yields | more


def run(line: list[str], seconds: float = 90, **more: str) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return subprocess.run(
        line, timeout=seconds, env=environment(**more), capture_output=True, text=True, check=False
    )


@contextlib.contextmanager
def begun(line: list[str], directory: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A job that trains meanwhile; what is left of it at the end is killed."""
    place = directory.with_suffix(".said")
    with place.open("w") as said:  # a pipe would stay open in what the launcher leaves behind
        job = subprocess.Popen(
            line, env=environment(**more), stdout=said, stderr=subprocess.STDOUT, text=True
        )
    try:
        deadline = time.monotonic() + STARTING
        while not (directory / "metrics.csv").exists():
            assert job.poll() is None and time.monotonic() < deadline, place.read_text()
            time.sleep(0.05)
        time.sleep(1)
        yield job
    finally:
        for host in ("node1", "node2", "node3", "node4"):
            for process in processes(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, 9)
        job.kill()
        job.wait()


def said_by(job: subprocess.Popen[str], directory: Path, seconds: float) -> str:
    """What a job has printed when it has ended, in so many seconds."""
    job.wait(seconds)
    return directory.with_suffix(".said").read_text()


def processes(host: str, name: str = "") -> list[int]:
    """The processes on a host, those of a name or all but the one that keeps it."""
    root = Path(os.environ.get("LOCAL_HOSTS_ROOT", "/tmp/mpifed-hosts"))
    keeper, found = int((root / host).read_text().split()[0]), []
    with contextlib.suppress(OSError):
        space = os.readlink(f"/proc/{keeper}/ns/net")
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                known = (entry / "comm").read_text().strip()
                if os.readlink(entry / "ns" / "net") == space and name in ("", known):
                    found.append(int(entry.name))
    return [process for process in found if process != keeper]


def listening(host: str, name: str) -> set[tuple[str, int]]:
    """The addresses at which processes of a name on a host take connections by TCP."""
    found = set()
    for process in processes(host, name):
        links = Path(f"/proc/{process}/fd").iterdir()
        sockets = {os.readlink(link) for link in links}
        for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                numbers = bytes.fromhex(address)[::-1]
                found.add((".".join(map(str, numbers)), int(port, 16)))
    return found
