"""Benchmarks of the start of a job: from the launch to the first round.

The launcher is that of the environment ($MPIRUN), so each MPI library is measured in its own.
``MPIFED_PREFORK=0`` measures ranks that import for themselves.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench_figures import report

from mpifed.watchdog.launcher import adopt_orphans

RANKS = (1, 8, 32, 100)
REPEATS = 5
LONGEST = 900.0
"""Seconds after which a job is ended that does not end by itself."""

WORDS = ("synthetic-fedem", "clients=100", "rounds=5", "evaluation.every=5", "--output")


@dataclass(frozen=True)
class Start:
    """What a start has cost.

    Attributes
    ----------
    seconds : float
        Wall seconds until the first line of a round was printed.
    cpu : float
        CPU seconds of all processes of the job until then.
    memory : int
        Sum of the PSS of these processes in bytes, after the last round.
    """

    seconds: float
    cpu: float
    memory: int


def family(process: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(entry.name)] = int(fields[1])
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def cpu_seconds(processes: Iterable[int]) -> float:
    """CPU seconds that processes, and children of theirs that have ended, have used so far."""
    ticks = 0
    for one in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(processes: Iterable[int]) -> int:
    """The sum of their PSS in bytes: shared pages count once in all."""
    kibibytes = 0
    for one in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kibibytes += int(line.split()[1])
    return 1024 * kibibytes


def started(ranks: int) -> Start:
    """Starts a job and measures it at its first and at its last line of a round."""
    folder = tempfile.mkdtemp(prefix="mpifed-bench-")
    front = [os.environ.get("MPIRUN") or "mpirun", "-n", str(ranks)]
    began = time.monotonic()
    with subprocess.Popen(
        [*front, sys.executable, "-m", "mpifed.run", *WORDS, f"{folder}/run"],
        stdout=subprocess.PIPE,
        text=True,
        # Without it the job would inherit what an MPI that began in this process has set in C.
        env=dict(os.environ),
    ) as process:
        assert process.stdout is not None
        end = threading.Timer(LONGEST, process.kill)
        end.start()
        seconds = cpu = 0.0
        peak = 0
        for line in process.stdout:
            if line.startswith("round "):
                if not cpu:
                    seconds, cpu = time.monotonic() - began, cpu_seconds(family(process.pid))
                peak = max(peak, memory(family(process.pid)))
        end.cancel()
    shutil.rmtree(folder, ignore_errors=True)
    assert process.returncode == 0 and cpu, f"the job ended with code {process.returncode}"
    return Start(seconds, cpu, peak)


def startup(sizes: tuple[int, ...] = RANKS, repeats: int = REPEATS) -> None:
    """Jobs of 1 to 100 ranks, and the memory of all their processes."""
    for ranks in sizes:
        measured = [started(ranks) for _ in range(repeats)]
        report(
            "startup",
            round(statistics.median(one.seconds for one in measured), 2),
            "s from the launch to the first line of a round",
            ranks=ranks,
            all=[round(one.seconds, 2) for one in measured],
            cpu_seconds=round(statistics.median(one.cpu for one in measured), 2),
            memory_mib=round(statistics.median(one.memory for one in measured) / 2**20),
            preforked=os.environ.get("MPIFED_PREFORK") != "0",
            cores=os.cpu_count(),
            load=os.getloadavg()[0],
        )


def finished(command: list[str]) -> tuple[float, float]:
    """Wall seconds of a job, and CPU seconds of all its processes, also of those it forks."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ)) as process:
        code = process.wait(LONGEST)
    wall = time.monotonic() - began
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert code == 0, f"the job ended with code {code}"
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one_round(sizes: tuple[int, ...] = (32, 100), repeats: int = 3) -> None:
    """One round of the default experiment beside one sum of a program over mpi4py, in turns."""
    adopt_orphans()
    bare = [sys.executable, str(Path(__file__).with_name("bare_sum.py"))]
    for ranks in sizes:
        front = [os.environ.get("MPIRUN") or "mpirun", "-n", str(ranks)]
        walls, cpus = [], []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                words = ("synthetic-fedem", f"clients={ranks}", "rounds=1", "--quiet", "--output")
                run = [sys.executable, "-m", "mpifed.run", *words, f"{folder}/run"]
                both = [finished([*front, *command]) for command in (bare, run)]
            for ratios, (one, other) in zip((walls, cpus), zip(*both, strict=True), strict=True):
                ratios.append((other / one, one, other))
        report(
            "one_round",
            round(statistics.median(each[0] for each in cpus), 2),
            "times the CPU s of a sum over all ranks with mpi4py",
            ranks=ranks,
            wall_ratio=round(statistics.median(each[0] for each in walls), 2),
            cpu=[[round(value, 2) for value in each] for each in cpus],
            wall=[[round(value, 2) for value in each] for each in walls],
            cores=os.cpu_count(),
            load=os.getloadavg()[0],
        )


BENCHMARKS: dict[str, Callable[[], None]] = {"startup": startup, "one_round": one_round}
