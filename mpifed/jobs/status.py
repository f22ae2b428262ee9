"""The status of a job: its state in SLURM's queue, and how far its runs have come."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpifed.errors import one_line
from mpifed.io.text import damaged
from mpifed.jobs import slurm
from mpifed.jobs.reading import parse_digits, read_head, read_rounds, read_tail
from mpifed.jobs.record import Record

# Bytes of a file's beginning and end in which its first and last lines are looked for.
TAIL = 1 << 16

EVENT = re.compile(r"\S+ job \S+ restart (\d+): ")
# A line of a job's output by which somebody says what is wrong.
COMPLAINT = re.compile(
    r"mpifed: "  # what a run says
    r"|([A-Za-z_][\w.]*(Error|Exception|Interrupt)|SystemExit)\b(:|$)"  # Python's last line
    r"|\S+: line \d+: |\S*bash: "  # bash
    r"|\S*\b(srun|sbatch|slurmstepd\S*|slurmd\S*|mpirun|mpiexec\S*): (error|fatal): "
    r"|.*\b(error while loading shared libraries|ModuleCmd_\w+.*:ERROR:|command not found)"
)

# Why a life of a job was not its last, as jobs/lib writes it and in words.
CAUSES = {
    "time-limit": "time limit",
    "preempted": "pre-emption",
    "signal": "request",
    "unexplained": "unexplained end",
    "lost": "interruption by SLURM",
    "ended": "interruption by SLURM",
}


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    finished: bool
    round: int | None
    rounds: int | None
    test_accuracy: float | None
    checkpoint: int | None
    event: str | None


@dataclass(frozen=True)
class Status:
    """The status of one run of a job."""

    directory: Path
    job: str
    state: str
    restarts: int | None
    causes: dict[str, int]
    progress: Progress
    printed: Path | None
    complaint: str | None


def progress(directory: Path) -> Progress:
    """Read how far a run has come."""
    row = _last_row(directory / "metrics.csv")
    numbers = [
        int(found[1])
        for path in (directory / "checkpoints").glob("round-*.h5")
        if (found := re.fullmatch(r"round-([0-9]{1,18})\.h5", path.name))
    ]
    return Progress(
        (directory / "DONE").exists(),
        row[0] if row else None,
        read_rounds(directory / "config.yaml"),
        row[1] if row else None,
        max(numbers, default=None),
        _last_event(directory / "job" / "events.txt"),
    )


def statuses(
    record: Record, tasks: Sequence[int], queued: Sequence[slurm.Queued] | None
) -> list[Status]:
    """Return the status of some runs of a job."""
    found = []
    for task in tasks:
        run = record.job.runs[task]
        name = record.job_of(task)
        name = f"{name}_{task}" if record.job.sweep else name
        mine = next((entry for entry in queued or () if _is_of(entry, record, task)), None)
        known = progress(run.directory)
        restarts = slurm.restarts(name) if mine is not None else None
        state = _state(record, run.directory, known, mine)
        if queued is None and not known.finished:
            state = "SLURM does not answer"
        printed = record.job.output / "job" / f"slurm-{name}.out"
        said = _last_complaint(printed)
        there = printed if printed.exists() else None
        causes = _causes(run.directory / "job" / "lives.txt", name)
        found.append(Status(run.directory, name, state, restarts, causes, known, there, said))
    return found


def alive(record: Record, tasks: Sequence[int], queued: Sequence[slurm.Queued]) -> bool:
    """Whether a job for one of these runs waits or runs."""
    living = [entry for entry in queued if entry.alive]
    return any(_is_of(entry, record, task) for entry in living for task in tasks)


def in_words(row: Status) -> str:
    """Return a status as the action ``status`` prints it, one or more lines."""
    known = row.progress
    parts = [f"job {row.job}", row.state]
    if row.restarts:
        parts.append(f"restarted {row.restarts}x{_in_brackets(row.causes)}")
    if known.round is not None:
        parts.append(f"round {known.round} of {known.rounds or '?'}")
    if known.test_accuracy is not None:
        parts.append(f"test accuracy {known.test_accuracy:.4f}")
    if known.checkpoint is not None and not known.finished:
        parts.append(f"checkpoint of round {known.checkpoint}")
    lines = [f"{row.directory}: {', '.join(parts)}"]
    if not known.finished:
        lines += [f"  {said}" for said in (known.event, row.complaint) if said is not None]
        lines += [f"  its output: {row.printed}"] if row.printed is not None else []
    return "\n".join(lines)


def _in_brackets(counts: dict[str, int]) -> str:
    words = [f"{number} {CAUSES[cause]}{'s' * (number > 1)}" for cause, number in counts.items()]
    return f" ({', '.join(words)})" if words else ""


def _is_of(entry: slurm.Queued, record: Record, task: int) -> bool:
    if entry.job != record.job_of(task):
        return False
    return entry.task == task if record.job.sweep else True


def _state(record: Record, directory: Path, known: Progress, entry: slurm.Queued | None) -> str:
    if known.finished:
        return "finished"
    stops = {place / "job" / "stop" for place in (directory, record.job.output)}
    asked = any(path.exists() for path in stops)
    if entry is not None and entry.alive:
        state = entry.state.lower()
        if state == "pending" and entry.reason not in ("", "None"):
            state = f"pending ({entry.reason})"
        return f"stopping ({state})" if asked else state
    if asked:
        return "stopped"
    return entry.state.lower() if entry is not None else "not in the queue"


def _last_row(path: Path) -> tuple[int, float | None] | None:
    """Round and test accuracy of the last complete row of a file that may be growing."""
    head, tail = read_head(path, TAIL), read_tail(path, TAIL)
    if head is None or tail is None or "\n" not in head:
        return None
    lines = tail[: tail.rfind("\n") + 1].split("\n")[:-1]
    if head == tail and len(lines) < 2:
        return None
    try:
        row = next(csv.DictReader([head[: head.index("\n")], *lines[-1:]], strict=True), {})
    except csv.Error as error:
        raise damaged(path, str(error)) from None
    number = parse_digits(row.get("round"))
    if number is None:
        raise damaged(path, "its last row has no round, a whole number")
    try:
        accuracy = float(row.get("test_accuracy") or "nan")
    except (TypeError, ValueError):
        raise damaged(path, f"test_accuracy of round {number} is not a number") from None
    return number, accuracy if math.isfinite(accuracy) else None


def _last_complaint(path: Path) -> str | None:
    """The last line with which a job's newest life reports an error."""
    lines = (read_tail(path, TAIL) or "").splitlines()
    lives = [found[1] if (found := EVENT.match(line)) else None for line in lines]
    newest = next((life for life in reversed(lives) if life is not None), None)
    mine = lines[lives.index(newest) :] if newest is not None else lines
    own = [line for line in mine if line.startswith("mpifed: ")]
    said = own or [line for line in mine if COMPLAINT.match(line.strip())]
    return one_line(said[-1].removeprefix("mpifed: ")) if said else None


def _last_event(path: Path) -> str | None:
    lines = (read_tail(path, TAIL) or "").splitlines()
    return one_line(lines[-1]) if lines else None


def _causes(path: Path, job: str) -> dict[str, int]:
    """How the lives of a job ended after which there was another; see jobs/lib/mpifed_job.sh."""
    lines = [line.split() for line in (read_tail(path, TAIL) or "").splitlines()]
    ended = (line[2] for line in lines if len(line) > 2 and line[0] == job)
    return dict(Counter(cause for cause in ended if cause in CAUSES))
