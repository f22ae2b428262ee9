"""SLURM's commands, and the environment in which they run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpifed.errors import InputError, RunError

# Beginnings of variables of the job in which this command is given, if it is in one.
FOREIGN = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SALLOC_",
    "SRUN_",
    "PMI_",
    "PMIX_",
    "OMPI_COMM_",
    "PRTE_JOB",
)

KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
PATIENCE = 60.0
# States of a job that is over; SLURM shows them for some minutes.
ENDED = (
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
    "REVOKED",
)


@dataclass(frozen=True)
class Queued:
    """A job in SLURM's queue, or one task of an array."""

    job: str
    task: int | None
    state: str
    reason: str
    nodes: str

    @property
    def alive(self) -> bool:
        """Whether the job waits or runs."""
        return self.state not in ENDED


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that another job has set."""
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT or not name.startswith(FOREIGN)
    }


def present() -> bool:
    """Whether there is a SLURM to submit to."""
    return shutil.which("sbatch") is not None


def test_only(script: str) -> str:
    """Return SLURM's estimate of when a script would start."""
    answer = _call("sbatch", "--test-only", input=script)
    said = _words(answer.stderr or answer.stdout)
    if answer.returncode:
        raise InputError(f"sbatch refuses the job: {said}")
    return said


def mpi_plugins() -> list[str]:
    """Return the plugins that ``srun --mpi`` has on this machine, sorted."""
    answer = _call("srun", "--mpi=list")
    lines = f"{answer.stdout}\n{answer.stderr}".splitlines()
    # Some print one plugin a line below a heading, some add a line of versions behind a colon.
    words = [word.strip(",") for line in lines for word in line.rpartition(":")[2].split()]
    return sorted({word for word in words if re.fullmatch(r"none|cray_\w+|pmi\w*|openmpi", word)})


def submit(script: str, options: Sequence[str] = ()) -> str:
    """Submit a script."""
    answer = _call("sbatch", "--parsable", *options, input=script)
    found = re.match(r"(\d+)", answer.stdout)
    if answer.returncode or not found:
        raise InputError(f"sbatch refuses the job: {_words(answer.stderr or answer.stdout)}")
    return found[1]


def queue(jobs: Sequence[str]) -> list[Queued]:
    """Return what the queue holds of some jobs."""
    if not jobs or not shutil.which("squeue"):
        return []
    form = "%A|%F|%K|%T|%R|%N"
    wanted = [f"--jobs={','.join(jobs)}", "--states=all", "--array", f"--format={form}"]
    answer = _call("squeue", "--noheader", *wanted)
    if answer.returncode and "Invalid job id" in answer.stderr:
        if len(jobs) == 1:
            return []
        return [entry for job in jobs for entry in queue([job])]
    if answer.returncode:
        raise RunError(f"squeue failed: {_words(answer.stderr)}")
    return [entry for line in answer.stdout.splitlines() for entry in _entries(line)]


def _entries(line: str) -> list[Queued]:
    _, job, index, state, reason, nodes = (part.strip() for part in line.split("|", 5))
    tasks = [int(index)] if index.isdigit() else [None]
    return [Queued(job, task, state, reason.strip("()"), nodes) for task in tasks]


def restarts(job: str) -> int | None:
    """Return how often SLURM has started a job again; None once it is forgotten."""
    answer = _call("scontrol", "show", "job", job)
    found = re.search(r"Restarts=(\d+)", answer.stdout)
    return int(found[1]) if found else None


def cancel(jobs: Sequence[str], options: Sequence[str] = ()) -> None:
    """Run ``scancel``; a job that has ended already is ignored."""
    answer = _call("scancel", *options, *jobs)
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise RunError(f"scancel failed: {_words(answer.stderr)}")


def _call(command: str, *words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    if not shutil.which(command):
        raise InputError(
            f"there is no {command} on the PATH; this needs SLURM (render and check do not)"
        )
    try:
        return subprocess.run(
            [command, *words],
            input=input,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=clean_environment(os.environ),
            umask=0o077,  # SLURM opens the output of a job with it
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{command} did not answer within {PATIENCE:.0f} s") from None


def _words(text: str) -> str:
    """What SLURM said, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(re.sub(r"^s\w+: (error: )?", "", line) for line in lines) or "it says nothing"
