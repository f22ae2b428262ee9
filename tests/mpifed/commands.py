"""Running the command as a user does: in this process, in a child that may die, or under mpirun."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpifed.testing import run_command

HERE = Path(__file__).parent

TINY = (
    "synthetic-fedem",
    "clients=4",
    "rounds=4",
    "data.n_test=20",
    "data.dimension=20",
    "data.seed=20",  # fewer samples than others
    "evaluation.every=2",
    "checkpoint.every=2",
    "local.momentum=0.9",
    "local.batch_size=64",
)


# How the report of a rank that SIGKILL has ended goes on, as a pattern.
HELD = r"; it held up to [\d,]+ MB(, [\d,]+ MB of samples by --dry-run)?"

# What Open MPI needs where ranks are more than cores, or belong to root; MPICH knows none of these.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}

STORED = {
    **{"experiment": "x", "clients": 4, "rounds": 9, "seed": 0},
    **{section: {"name": "none"} for section in ("data", "model", "algorithm", "exchange")},
    **{"compression": {"name": "none"}, "local": {}, "checkpoint": {}, "evaluation": {"every": 2}},
}
"""A configuration of which nothing but its form is right."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def messages(self) -> list[str]:
        """What mpifed itself said on standard error."""
        return [line for line in self.err.splitlines() if line.startswith("mpifed: ")]


def call(words, capture, subcommand: str = "run") -> Outcome:
    """``mpifed SUBCOMMAND WORDS`` in this process; ``capture`` is pytest's ``capfd``."""
    capture.readouterr()
    code = run_command([*subcommand.split(), *words])
    return Outcome(code, *capture.readouterr())


def checked_refusal(outcome: Outcome, *patterns: str) -> None:
    """Check that a command ended with code 2 and one sentence that has these names in it."""
    assert (outcome.code, outcome.out) == (2, ""), outcome
    (line,) = outcome.err.splitlines()
    assert line.startswith("mpifed: ") and line.isprintable() and len(line) < 1000, line
    assert [pattern for pattern in patterns if not re.search(pattern, line)] == [], line
    assert not re.search(r"[.!] [A-Z]|\.$|Traceback", line.removeprefix("mpifed: ")), line


def in_child(
    action: Callable[[], int],
    seconds: float = 60,
    meanwhile: Callable[[int], None] = lambda child: None,
) -> int:
    """The exit code of ``action()`` in a child process, or minus the signal that ended it.

    The child is a copy of this process, which spares it the imports. ``meanwhile`` gets its number.
    """
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 70
        try:
            code = action()
        finally:
            os._exit(code)
    ended, deadline = 0, time.monotonic() + seconds
    try:
        meanwhile(child)
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    raise TimeoutError(f"no end after {seconds} s")


def environment(**more: str) -> dict[str, str]:
    """This process's environment without traces of a launcher, for ranks on few cores."""
    foreign = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCALNRANKS", "SLURM_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{HERE}:{HERE.parents[1]}",
        **OPEN_MPI,
        **more,
    }


def mpirun() -> str:
    own = Path(sys.executable).parent / "mpirun"
    found = str(own) if own.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun on the PATH")
    return found


def command(ranks: int, *words) -> list[str]:
    """The command line, under mpirun where ``ranks`` is above 0."""
    front = [mpirun(), "-n", str(ranks)] if ranks else []
    return [*front, sys.executable, "-m", "mpifed.run", *map(str, words)]


def launch(ranks: int, *words, seconds: float = 60, **variables: str) -> Outcome:
    """The command in processes of its own; fails after ``seconds``."""
    done = subprocess.run(
        command(ranks, *words),
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment(**variables),
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def started(words: list[str], **options) -> Iterator[subprocess.Popen[str]]:
    """A command that runs meanwhile; at the end, whatever is left of it and its job is killed.

    The context of ``Popen`` itself waits for the end, for ever where a test has failed inside.
    """
    process = subprocess.Popen(words, text=True, **{"env": environment(), **options})
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_all(family(process.pid))
        with process:
            pass  # closes its pipes


def family(process: int) -> list[int]:
    """A process and all that descend from it; nobody where it has ended."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found = [process] if process in parents else []
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def kill_all(processes: list[int], seconds: float = 30) -> None:
    """Kills them and waits for their end."""
    for number in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    all_ended(processes, seconds)


def all_ended(processes: list[int], seconds: float = 30) -> None:
    """Waits for the end of these processes."""
    deadline = time.monotonic() + seconds
    while left := [number for number in processes if family(number)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} have not ended after {seconds} s")
        time.sleep(0.01)


def wait_for(path: Path, process: subprocess.Popen[str] | None = None, seconds: float = 60) -> None:
    """Until there is a file; ``path`` may be replaced by a later one before it is looked for."""
    deadline, code = time.monotonic() + seconds, None
    while code is None and time.monotonic() < deadline:
        if path.exists() or any(p.name > path.name for p in path.parent.glob("round-*.h5")):
            return
        time.sleep(0.01)
        code = None if process is None else process.poll()
    raise AssertionError(f"no {path} (exit code {code})")


def of_rank(rank: int, target: Path) -> int:
    """The process of a rank."""
    (process,) = processes(f"mpifed-rank-{rank}", target)
    return process


def processes(name: str, target: Path) -> list[int]:
    """The processes of this name whose command has the word ``target``."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if name_of(int(entry.name)) == name and str(target).encode() in words:
                found.append(int(entry.name))
    return found


def name_of(process: int) -> str:
    """The name of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def rows(directory: Path, but: int | None = None) -> list[dict[str, str]]:
    """metrics.csv without the column of seconds, and without the row of the round ``but``."""
    with (directory / "metrics.csv").open(newline="") as file:
        found = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    return [row for row in found if row["round"] != str(but)]


def summary_of(directory: Path) -> dict:
    """summary.json."""
    return json.loads((directory / "summary.json").read_text())


def checkpoints(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


@contextlib.contextmanager
def mounted(place: Path, *words: str) -> Iterator[None]:
    """A file system mounted at ``place``, which only root may do."""
    place.mkdir()
    done = subprocess.run(["mount", *words, str(place)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no mount is permitted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
