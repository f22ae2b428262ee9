"""How a job stands: what SLURM's queue says of it, and how far its runs have come.

The accounting database is not asked, for many sites have none. A run tells itself: by metrics.csv,
its checkpoints, DONE, and the events that its job has noted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from mpifed.jobs import slurm
from mpifed.jobs.record import Record

TAIL = 1 << 16
"""Bytes at the end of a job's output in which its last complaint is looked for."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come. ``round`` is the last evaluated one; None where nothing is known."""

    finished: bool
    round: int | None
    rounds: int | None
    test_accuracy: float | None
    checkpoint: int | None
    event: str | None


@dataclass(frozen=True)
class Status:
    """One run of a job. ``restarts`` is None once SLURM has forgotten the job.

    ``printed`` is the file that holds what its newest job printed; ``complaint`` the last thing
    that mpifed said there of a failure. None where there is none.
    """

    directory: Path
    job: str
    state: str
    restarts: int | None
    progress: Progress
    printed: Path | None
    complaint: str | None


def progress(directory: Path) -> Progress:
    """What the run directory tells; a run that has not begun tells nothing."""
    row = _last_row(directory / "metrics.csv")
    rounds = _rounds(directory / "config.yaml")
    numbers = [
        int(found[1])
        for path in (directory / "checkpoints").glob("round-*.h5")
        if (found := re.fullmatch(r"round-(\d+)\.h5", path.name))
    ]
    accuracy = row.get("test_accuracy") or None
    return Progress(
        (directory / "DONE").exists(),
        int(row["round"]) if row.get("round", "").isdigit() else None,
        rounds,
        float(accuracy) if accuracy else None,
        max(numbers, default=None),
        _last_event(directory / "job" / "events.txt"),
    )


def of(record: Record, tasks: Sequence[int], queued: Sequence[slurm.Queued] | None) -> list[Status]:
    """The runs of a job with the numbers ``tasks``.

    ``queued`` is ``slurm.queue`` of it, or None where SLURM does not answer.
    """
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
        found.append(Status(run.directory, name, state, restarts, known, there, said))
    return found


def alive(record: Record, tasks: Sequence[int], queued: Sequence[slurm.Queued]) -> bool:
    """Whether a job for one of these runs waits or works."""
    living = [entry for entry in queued if entry.alive]
    return any(_is_of(entry, record, task) for entry in living for task in tasks)


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


def _last_row(path: Path) -> dict[str, str]:
    """The last complete row of a file that another process may be writing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    lines = text[: text.rfind("\n") + 1].splitlines()
    return next(csv.DictReader([lines[0], lines[-1]]), {}) if len(lines) > 1 else {}


def _rounds(path: Path) -> int | None:
    try:
        rounds = yaml.safe_load(path.read_text(encoding="utf-8"))["rounds"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return None
    return rounds if isinstance(rounds, int) else None


def _last_complaint(path: Path) -> str | None:
    """The last line of a job's output in which mpifed says what is wrong, whatever follows it."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    found = [line.strip() for line in text.splitlines() if line.startswith("mpifed: ")]
    return found[-1].removeprefix("mpifed: ") if found else None


def _last_event(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return lines[-1] if lines else None
