"""A SLURM of this machine alone, and jobs on it as a user submits and watches them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from mpifed.testing import run_command

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "scripts" / "slurm"

WORDS = (
    "synthetic-fedem",
    "algorithm.name=patient:Patient",
    "clients=8",
    "data.n_test=20",
    "data.dimension=20",
    "local.momentum=0.9",
    "evaluation.every=5",
    "checkpoint.every=1000",
)
PAUSE = 1.0
"""Seconds a round, see :mod:`patient`; thirty such rounds are left when a test interrupts."""


@dataclass(frozen=True)
class LocalSlurm:
    """One that runs; ``variables`` is the environment for its commands."""

    variables: dict[str, str]

    def call(self, *words: Any, code: int = 0) -> str:
        """What a command prints on both channels; it must end with ``code``."""
        done = subprocess.run(
            [str(word) for word in words],
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def jobs(self, *words: Any, code: int = 0) -> str:
        """What ``python -m mpifed.jobs`` prints; in this process, which has torch already."""
        said = io.StringIO()
        with (
            mock.patch.dict(os.environ, self.variables, clear=True),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            found = run_command(["jobs", *words])
        assert found == code, f"{words}: {found}\n{said.getvalue()}"
        return said.getvalue()

    def submit(self, output: Path, *words: Any, rounds: int = 40, pause: float = PAUSE) -> str:
        """Submits a run of ``rounds`` rounds; returns the number of the job."""
        front = ["submit", "--site", "local-test", "--output", output]
        self.jobs(*front, *WORDS, f"rounds={rounds}", f"job.environment.PAUSE={pause}", *words)
        return newest_job(output)

    def show(self, job: str) -> dict[str, str]:
        """What ``scontrol show job`` says."""
        words = self.call("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def queue(self) -> list[str]:
        return self.call("squeue", "--noheader", "--format=%A %T").splitlines()

    def wait(self, job: str, *states: str, seconds: float = 180) -> dict[str, str]:
        """Until the job is in one of these states; what SLURM says of it then."""
        known: dict[str, str] = {}

        def there() -> bool:
            known.update(self.show(job))
            return known["JobState"] in states

        def message() -> str:
            printed = Path(known["StdOut"]).read_text(errors="replace")
            return f"job {job} is {known['JobState']}, not {states}\n{printed}"

        until(there, seconds, message)
        return known


@contextmanager
def started(root: Path, port: int, **settings: Any) -> Iterator[LocalSlurm]:
    """A SLURM that is there as long as it is needed."""
    named = {f"LOCAL_SLURM_{key.upper()}": str(value) for key, value in settings.items()}
    named |= {"LOCAL_SLURM_ROOT": str(root), "LOCAL_SLURM_PORT": str(port)}
    theirs = ("SLURM_", "PRTE_MCA_rmaps")  # where ranks go, SLURM says
    clean = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
    variables = clean | named | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    script = SCRIPTS / "start"
    try:
        subprocess.run([script], env=variables, check=True, stdout=subprocess.DEVNULL, timeout=90)
        yield LocalSlurm(variables | {"SLURM_CONF": str(root / "slurm.conf")})
    finally:
        subprocess.run([SCRIPTS / "stop", "--purge"], env=variables, check=True, timeout=90)


def until(
    condition: Callable[[], bool], seconds: float, message: Callable[[], str] = lambda: ""
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {message()}"
        time.sleep(0.1)


def ranks(output: Path) -> dict[int, int]:
    """The processes that are the ranks of a run and not their guards, by the number of the rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            name = (entry / "comm").read_text().strip()
            if str(output).encode() in words and name.startswith("mpifed-rank-"):
                found[int(name.removeprefix("mpifed-rank-"))] = int(entry.name)
    return found


def mpirun() -> str:
    """Return the launcher of the MPI library that mpi4py loads here."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun") or "mpirun"


def newest_job(output: Path) -> str:
    known = json.loads((output / "job" / "job.json").read_text())
    return str(known["history"][-1]["job"])


def reached(output: Path, number: int, seconds: float = 180) -> None:
    """Until the run has recorded a round from ``number`` on."""

    def there() -> bool:
        recorded = rows(output)
        return bool(recorded) and int(recorded[-1]["round"]) >= number

    until(there, seconds, lambda: told(output))


def rows(output: Path) -> list[dict[str, str]]:
    """metrics.csv without the column of seconds; nothing where there is none yet."""
    try:
        text = (output / "metrics.csv").read_text()
    except FileNotFoundError:
        return []
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(lines)]


def summary(output: Path) -> dict[str, Any]:
    return dict(json.loads((output / "summary.json").read_text()))


def events(output: Path) -> str:
    path = output / "job" / "events.txt"
    return path.read_text() if path.exists() else ""


def told(output: Path) -> str:
    """All that the jobs of a directory have said."""
    logs = sorted((output / "job").glob("slurm-*.out"))
    return "\n".join([events(output), *(path.read_text(errors="replace") for path in logs)])
