"""The status of a job: its state in SLURM's queue, and how far its runs have come."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpifed.errors import one_line
from mpifed.io.text import MissingFile, damaged, read_text
from mpifed.jobs import slurm
from mpifed.jobs.record import Record
from mpifed.results.results import read_metrics


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
    progress: Progress
    printed: Path | None


def progress(directory: Path) -> Progress:
    """Read how far a run has come."""
    number, accuracy = None, math.nan
    if (directory / "metrics.csv").exists():
        metrics = read_metrics(directory / "metrics.csv")
        if metrics.rows:
            number = int(metrics.numbers("round")[-1])
            if "test_accuracy" in metrics.columns:
                accuracy = float(metrics.numbers("test_accuracy")[-1])
    checkpoints = sorted((directory / "checkpoints").glob("round-*.h5"))
    newest = re.fullmatch(r"round-([0-9]{1,18})\.h5", checkpoints[-1].name) if checkpoints else None
    return Progress(
        (directory / "DONE").exists(),
        number,
        _rounds(directory / "config.yaml"),
        accuracy if math.isfinite(accuracy) else None,
        int(newest[1]) if newest else None,
        _last_line(directory / "job" / "events.txt"),
    )


def statuses(
    record: Record, tasks: Sequence[int], queued: Sequence[slurm.Queued] | None
) -> list[Status]:
    """Return the status of some runs of a job; ``queued`` is None where SLURM does not answer."""
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
        there = printed if printed.exists() else None
        found.append(Status(run.directory, name, state, restarts, known, there))
    return found


def alive(record: Record, tasks: Sequence[int], queued: Sequence[slurm.Queued]) -> bool:
    """Return whether a job for one of these runs waits or runs."""
    living = [entry for entry in queued if entry.alive]
    return any(_is_of(entry, record, task) for entry in living for task in tasks)


def in_words(row: Status) -> str:
    """Return a status as the action ``status`` prints it, one or more lines."""
    known = row.progress
    parts = [f"job {row.job}", row.state]
    if row.restarts:
        parts.append(f"restarted {row.restarts}x")
    if known.round is not None:
        parts.append(f"round {known.round} of {known.rounds or '?'}")
    if known.test_accuracy is not None:
        parts.append(f"test accuracy {known.test_accuracy:.4f}")
    if known.checkpoint is not None and not known.finished:
        parts.append(f"checkpoint of round {known.checkpoint}")
    lines = [f"{row.directory}: {', '.join(parts)}"]
    if not known.finished:
        lines += [f"  {known.event}"] if known.event is not None else []
        lines += [f"  its output: {row.printed}"] if row.printed is not None else []
    return "\n".join(lines)


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


def _rounds(path: Path) -> int | None:
    """Return ``rounds`` of a run's config.yaml, without the parsing of all of it."""
    try:
        text = read_text(path)
    except MissingFile:
        return None
    found = re.search(r"^rounds:[ \t]+([0-9]{1,18})[ \t]*$", text, re.MULTILINE)
    if found is None:
        raise damaged(path, "it has no rounds, a whole number")
    return int(found[1])


def _last_line(path: Path) -> str | None:
    try:
        lines = read_text(path).splitlines()
    except MissingFile:
        return None
    return one_line(lines[-1]) if lines else None
