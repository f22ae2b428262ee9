"""Benchmarks of interruptions: from a signal to the end of a job of eight ranks.

The launcher is that of the environment ($MPIRUN), so each MPI library is measured in its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench_figures import report

RANKS = 8
REPEATS = 5
WORDS = (
    "synthetic-fedem",
    "clients=64",
    "rounds=100000",
    "data.n_test=20",
    "evaluation.every=100000",
    "local.epochs=40",
    "checkpoint.every=2",
    "--quiet",
    "--output",
)


def processes(target: Path) -> dict[int, int]:
    """The processes of the job that writes to ``target``, and their parents."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if str(target).encode() in words and b"mpifed.run" in words:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                found[int(entry.name)] = int(fields[1])
    return found


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``seconds`` after it was struck; ``written`` until its summary stood."""

    seconds: float
    written: float | None
    code: int
    error: str
    folder: Path


def interrupted(strike: Callable[[subprocess.Popen, Path], None]) -> Outcome:
    """Starts the job and strikes amid a round."""
    written = None
    folder = Path(tempfile.mkdtemp(prefix="mpifed-bench-"))
    target = folder / "run"
    front = [os.environ.get("MPIRUN") or "mpirun", "-n", str(RANKS)]
    with subprocess.Popen(
        [*front, sys.executable, "-m", "mpifed.run", *WORDS, str(target)],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and not list(target.glob("checkpoints/round-*.h5")):
            time.sleep(0.05)
        time.sleep(random.uniform(0, 2))
        began, struck = time.monotonic(), time.time()
        try:
            strike(process, target)
            error = process.communicate(timeout=120)[1]
        except BaseException:
            process.kill()
            raise
        seconds = time.monotonic() - began
    if (target / "summary.json").exists():
        written = (target / "summary.json").stat().st_mtime - struck
    while processes(target) and time.monotonic() - began < 120:
        time.sleep(0.01)
        seconds = time.monotonic() - began
    return Outcome(seconds, written, process.returncode, error, folder)


def kill_a_rank(process: subprocess.Popen, target: Path) -> None:
    """SIGKILL for one rank: the child of a process of the job, and the parent of none."""
    every = processes(target)
    above = every.keys() - {process.pid}
    ranks = sorted(p for p, parent in every.items() if parent in above and p not in every.values())
    assert len(ranks) == RANKS, every
    os.kill(random.choice(ranks), signal.SIGKILL)


def killed_rank() -> None:
    """From SIGKILL of one of eight ranks to the end of the last process of the job."""
    measured, said = [], []
    for _ in range(REPEATS):
        outcome = interrupted(kill_a_rank)
        shutil.rmtree(outcome.folder, ignore_errors=True)
        assert outcome.code not in (0, 75), outcome
        measured.append(outcome.seconds)
        lines = outcome.error.splitlines()
        said.append(len([line for line in lines if line.startswith("mpifed: ")]))
    report(
        "killed_rank",
        round(max(measured), 2),
        f"s from SIGKILL of one of {RANKS} ranks to the end of all, the longest of {REPEATS}",
        all=[round(m, 2) for m in measured],
        messages=said,
        load=os.getloadavg()[0],
    )


def stop_request() -> None:
    """From SIGUSR1 to the launcher to exit code 75, beside a round and the write."""
    measured, ended, rounds, writes = [], [], [], []
    for _ in range(REPEATS):
        outcome = interrupted(lambda process, target: process.send_signal(signal.SIGUSR1))
        assert outcome.code == 75 and outcome.written is not None, outcome
        summary = json.loads((outcome.folder / "run" / "summary.json").read_text())
        spent, count = summary["seconds"], summary["rounds"]
        measured.append(outcome.written)
        ended.append(outcome.seconds)
        rounds.append((spent["local"] + spent["exchange"]) / count)
        writes.append(spent["checkpoint"] / (count // 2 + 1))
        shutil.rmtree(outcome.folder, ignore_errors=True)
    report(
        "stop_request",
        round(statistics.median(measured), 2),
        f"s from SIGUSR1 until checkpoint and summary are written, {RANKS} ranks, median of "
        f"{REPEATS}",
        all=[round(m, 2) for m in measured],
        until_the_last_process_has_ended=[round(m, 2) for m in ended],
        seconds_of_a_round=[round(r, 2) for r in rounds],
        seconds_of_a_checkpoint=[round(w, 3) for w in writes],
        load=os.getloadavg()[0],
    )


BENCHMARKS: dict[str, Callable[[], None]] = {
    "killed_rank": killed_rank,
    "stop_request": stop_request,
}
