"""SLURM by its commands and its directives, 22.05 and later."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpifed.errors import InputError, RunError
from mpifed.jobs.plan import Job

# Beginnings of variables of the job in which this command is given, if it is in one.
FOREIGN = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_"),
    *("PMI_", "PMIX_", "OMPI_COMM_", "PRTE_JOB"),
)
RETAINED = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
PATIENCE = 60.0
# States of a job that is over; squeue shows them for a while.
ENDED = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"),
    *("PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED"),
)
PLAIN = re.compile(r"[A-Za-z0-9_./,:=@%+-]+")
# A SLURM that cannot be asked, in its words.
SILENT = (
    "Unable to contact|[Cc]onnect|not responding|timed out|configuration source|DNS SRV|"
    "Zero Bytes|standby mode|Socket"
)


class Queued(NamedTuple):
    """What SLURM says of a job, or of one task of an array."""

    state: str
    reason: str

    @property
    def alive(self) -> bool:
        """Whether the job waits or runs."""
        return self.state not in ENDED


def submit(script: str, options: Sequence[str] = ()) -> int:
    """Submit a script; return the number of the job."""
    answer = _call("sbatch", "--parsable", *options, input=script)
    if answer.returncode:
        raise _refusal(answer.stderr)
    number = re.match(r"\d+", answer.stdout)
    if number is None:
        raise InputError(f"sbatch names no job: {_words(answer.stdout)}")
    return int(number[0])


def test_only(script: str) -> str:
    """Return SLURM's estimate of when a script would start, without submitting it."""
    answer = _call("sbatch", "--test-only", input=script)
    if answer.returncode:
        raise _refusal(answer.stderr)
    return _words(answer.stderr or answer.stdout)


def queue() -> dict[str, Queued]:
    """Return the user's jobs, tasks of arrays as ``7_2``: squeue fails for one it has forgotten."""
    options = ["--noheader", f"--user={os.getuid()}", "--states=all", "--array"]
    answer = _call("squeue", *options, "--format=%F|%K|%T|%r")
    if answer.returncode:
        raise RunError(f"SLURM does not answer: {_words(answer.stderr)}")
    jobs = {}
    for line in answer.stdout.splitlines():
        job, task, state, reason = line.split("|", 3)
        jobs[f"{job}_{task}" if task.isdigit() else job] = Queued(state, reason)
    return jobs


def endings(action: str, jobs: Sequence[str]) -> list[list[str]]:
    """Return the commands that stop or cancel jobs; scancel sees which wait and which run."""
    if action == "cancel":
        return [["scancel", *jobs]]
    running = ["--signal=USR1", "--batch", "--state=RUNNING"]
    return [["scancel", "--state=PENDING", *jobs], ["scancel", *running, *jobs]]


def end(words: Sequence[str]) -> None:
    """Run one of ``endings``; a job that has ended already is ignored."""
    answer = _call(*words)
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise RunError(f"{words[0]} failed: {_words(answer.stderr)}")


def directives(job: Job, tasks: Sequence[int]) -> str:
    """Return what a job or an array asks for, as the lines of its script that sbatch reads."""
    options, layout = job.options, job.layout
    requests = {
        "open_mode": "append",
        "nodes": layout.nodes,
        "ntasks_per_node": layout.ranks_per_node,
        "ntasks": layout.ranks,
        "cpus_per_task": options.cpus_per_task,
        "gres": f"gpu:{options.gpus_per_node}" if options.gpus_per_node else None,
        "exclusive": options.exclusive,
        "time": options.time,
        "signal": f"B:USR1@{options.warn_seconds}",  # to the batch script, before the limit
        "requeue" if options.max_restarts else "no_requeue": True,
    }
    if job.sweep:
        limit = f"%{options.array_limit}" if options.array_limit else ""
        requests["array"] = ",".join(map(str, tasks)) + limit
    return lines(job, job.name, "%A_%a" if job.sweep else "%j", requests)


def lines(job: Job, name: str, number: str, requests: Mapping[str, Any]) -> str:
    """Return options of sbatch as directives; True is an option without a value."""
    options = job.options
    site = ("mem", "mem_per_cpu", "partition", "account", "qos", "constraint")
    # Only in the last part of the path are the patterns of SLURM patterns.
    output = f"{job.output}/job/".replace("%", "%%") + f"slurm-{number}.out"
    front = {"job_name": name, "chdir": Path.cwd(), "output": output}
    values = front | dict(requests) | {key: getattr(options, key) for key in site}
    written = []
    for key, value in values.items():
        if value is not None and value is not False:
            text = "" if value is True else f"={for_sbatch(str(value))}"
            written.append(f"--{key.replace('_', '-')}{text}")
    written += options.extra_directives or ()  # of two, the last counts
    return "\n".join(f"#SBATCH {line}" for line in written)


def for_sbatch(text: str) -> str:
    """Return ``text`` quoted so that sbatch reads it literally from a directive."""
    if not text.isprintable():
        raise InputError(f"{text!r} cannot be in a directive; it must be one line of text")
    if PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'


def _refusal(message: str) -> InputError | RunError:
    if re.search(SILENT, message):
        return RunError(f"SLURM does not answer: {_words(message)}")
    return InputError(f"sbatch refuses the job: {_words(message)}")


def _call(*words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    if not shutil.which(words[0]):
        raise InputError(
            f"there is no {words[0]} on the PATH; this needs SLURM (render and check do not)"
        )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in RETAINED or not name.startswith(FOREIGN)
    }
    try:
        return subprocess.run(
            words,
            input=input,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=environment,
            umask=0o077,  # SLURM opens the output of a job with it
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"SLURM does not answer: {words[0]} said nothing within {PATIENCE:.0f} s"
        ) from None


def _words(text: str) -> str:
    """What a command said, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(re.sub(r"^\w+: (error: )?", "", line) for line in lines) or "it says nothing"
