"""SLURM's commands, and the environment in which they run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpifed.errors import InputError, RunError

# Beginnings of variables of the job in which this command is given, if it is in one.
FOREIGN = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_"),
    *("PMI_", "PMIX_", "OMPI_COMM_", "PRTE_JOB"),
)
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
PATIENCE = 60.0
# States of a job that is over; SLURM shows them for some minutes.
ENDED = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"),
    *("PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED"),
)


class Queued(NamedTuple):
    """What SLURM says of a job, or of one task of an array."""

    state: str
    reason: str

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


def test_only(script: str) -> str:
    """Return SLURM's estimate of when a script would start."""
    answer = _call("sbatch", "--test-only", input=script)
    if answer.returncode:
        raise InputError(f"sbatch refuses the job: {_words(answer.stderr)}")
    return _words(answer.stderr or answer.stdout)


def submit(script: str, options: Sequence[str] = ()) -> int:
    """Submit a script; return the number of the job."""
    answer = _call("sbatch", "--parsable", *options, input=script)
    found = re.match(r"\d+", answer.stdout)
    if answer.returncode or not found:
        raise InputError(f"sbatch refuses the job: {_words(answer.stderr)}")
    return int(found[0])


def queue() -> dict[str, Queued]:
    """Return the jobs of this user, and tasks of arrays as ``7_2``, that SLURM still knows."""
    options = ["--noheader", f"--user={os.getuid()}", "--states=all", "--array"]
    answer = _call("squeue", *options, "--format=%F|%K|%T|%r")
    if answer.returncode:
        raise RunError(f"squeue failed: {_words(answer.stderr)}")
    found = {}
    for line in answer.stdout.splitlines():
        job, task, state, reason = line.split("|", 3)
        found[f"{job}_{task}" if task.isdigit() else job] = Queued(state, reason)
    return found


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
