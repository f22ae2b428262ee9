"""Jobs that were submitted: their record ``job/job.json``, and how far their runs have come."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mpifed.errors import InputError, one_line
from mpifed.io.atomic import replacing
from mpifed.io.text import MissingFile, damaged, read_json, read_text
from mpifed.jobs.plan import Job
from mpifed.jobs.schedulers import SCHEDULERS, Queued, Scheduler
from mpifed.results.results import read_metrics
from mpifed.sweep.plan import Planned

VERSION = 1
PLACE = Path("job", "job.json")
# What the scheduler said of jobs that a job submitted to be continued, a line each.
AGAIN = Path("job", "again.txt")
# A job as the commands of Flux take it; elsewhere it is a number.
NAME = re.compile(r"f[A-Za-z0-9]+")


@dataclass(frozen=True)
class Record:
    """A job that was submitted, with an entry for each of its submissions."""

    job: Job
    history: tuple[dict[str, Any], ...]

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that has the jobs."""
        return SCHEDULERS[self.job.given.get("scheduler", "slurm")]

    def name(self, task: int) -> str:
        """Return the newest job that has a run, as the scheduler's commands take it."""
        newest = [entry["job"] for entry in self.history if task in entry["tasks"]][-1]
        if self.scheduler.arrays:
            return f"{newest}_{task}" if self.job.sweep else str(newest)
        later = _text(self.job.runs[task].directory / AGAIN).splitlines()
        return str(self.scheduler.job_in(later[-1]) if later else newest)

    def reports(self) -> list[str]:
        """Return the jobs that report on the runs."""
        return [str(entry["report"]) for entry in self.history if entry["report"]]

    def place(self, tasks: Sequence[int]) -> Path:
        """Return the directory of all runs, or of the one that is meant."""
        whole = len(tasks) == len(self.job.runs)
        return self.job.output if whole else self.job.runs[tasks[0]].directory


def prepare(job: Job) -> None:
    """Make the directories of ``job``, private to the user."""
    for directory in (job.output, *(run.directory for run in job.runs)):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / "job").mkdir(mode=0o700, exist_ok=True)


def write(job: Job, history: Sequence[dict[str, Any]]) -> None:
    """Record a job that was submitted."""
    places = (str(run.directory.relative_to(job.output)) for run in job.runs)
    known = {
        "version": VERSION,
        "experiment": job.experiment,
        "text": job.text,
        "sweep": job.sweep,
        "job": job.given,
        "runs": [
            {"directory": place, "overrides": run.overrides}
            for place, run in zip(places, job.runs, strict=True)
        ],
        "history": list(history),
    }
    replace_text(job.output / PLACE, json.dumps(known, indent=2) + "\n")


def entry(number: int | str, tasks: Sequence[int], report: int | str | None) -> dict[str, Any]:
    """Return an entry of the history, submitted now."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"job": number, "tasks": list(tasks), "report": report, "submitted": now}


def read(directory: Path) -> tuple[Record, list[int]]:
    """Read the record of a job, or of the sweep with this run, and which runs are meant."""
    here = directory.absolute()
    place = here if (here / PLACE).exists() else here.parent
    try:
        found = read_json(place / PLACE)
    except MissingFile:
        raise InputError(
            f"'{directory}' holds no job: there is no {PLACE} in it; python -m mpifed.jobs submit "
            "makes one"
        ) from None
    try:
        if found["version"] != VERSION:
            raise ValueError(
                f"it is of version {found['version']}, and this mpifed reads {VERSION}"
            )
        runs = tuple(
            Planned(place / run["directory"], dict(run["overrides"]), {}) for run in found["runs"]
        )
        history = tuple(
            {**each, "job": _name(each["job"]), "report": _name(each["report"] or 0) or None}
            for each in found["history"]
        )
        given = dict(found["job"])
        job = Job(found["experiment"], found["text"], place, found["sweep"], runs, given)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(place / PLACE, f"{type(error).__name__}: {error}") from None
    tasks = [task for task, run in enumerate(runs) if here in (place, run.directory)]
    if not tasks:
        raise InputError(f"'{directory}' is no run of the job in {place}")
    return Record(job, history), tasks


def _name(value: Any) -> int | str:
    """Return a job, which commands get as a word and must not take for an option."""
    return value if isinstance(value, str) and NAME.fullmatch(value) else int(value)


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically and private to the user; raises ``OSError``."""
    with replacing(path, mode=0o600) as partial:
        partial.write_text(text, encoding="utf-8")


def status(record: Record, task: int, queued: Mapping[str, Queued] | None) -> dict[str, Any]:
    """Return the status of a run; ``queued`` is None where nothing answers."""
    directory, name = record.job.runs[task].directory, record.name(task)
    known = progress(directory)
    printed = directory / "job" / "output.txt"
    if record.scheduler.arrays:
        printed = record.job.output / "job" / f"slurm-{name}.out"
    return {
        "directory": directory,
        "job": name,
        "state": _state(record, directory, known["finished"], name, queued),
        "progress": known,
        "printed": printed if printed.exists() else None,
    }


def _state(
    record: Record, directory: Path, finished: bool, name: str, queued: Mapping[str, Queued] | None
) -> str:
    if finished:
        return "finished"
    if queued is None:
        return f"{record.scheduler.title} does not answer"
    asked = any((place / "job" / "stop").exists() for place in (directory, record.job.output))
    entry = queued.get(name)
    if entry is None or (asked and not entry.alive):
        return "stopped" if asked else "not in the queue"
    state = entry.state.lower()
    if state == "pending" and entry.reason not in ("", "None"):
        state = f"pending ({entry.reason})"
    return f"stopping ({state})" if asked else state


def progress(directory: Path) -> dict[str, Any]:
    """Read how far a run has come."""
    number = accuracy = None
    if (directory / "metrics.csv").exists():
        metrics = read_metrics(directory / "metrics.csv", growing=True)
        if metrics.rows:
            number = int(metrics.numbers("round")[-1])
            accuracy = float(metrics.numbers("test_accuracy")[-1])
    checkpoints = sorted((directory / "checkpoints").glob("round-[0-9]*.h5"))
    rounds = re.search(r"^rounds: (\d{1,18})$", _text(directory / "config.yaml"), re.MULTILINE)
    events = _text(directory / "job" / "events.txt").splitlines()
    return {
        "finished": (directory / "DONE").exists(),
        "round": number,
        "rounds": int(rounds[1]) if rounds else None,
        "test_accuracy": None if accuracy is None or math.isnan(accuracy) else accuracy,
        "checkpoint": int(checkpoints[-1].stem[len("round-") :]) if checkpoints else None,
        "event": one_line(events[-1]) if events else None,
    }


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except MissingFile:
        return ""


def in_words(row: Mapping[str, Any]) -> str:
    """Return a status as the action ``status`` prints it, one or more lines."""
    known = row["progress"]
    parts = [f"job {row['job']}", row["state"]]
    if known["round"] is not None:
        parts.append(f"round {known['round']} of {known['rounds'] or '?'}")
    if known["test_accuracy"] is not None:
        parts.append(f"test accuracy {known['test_accuracy']:.4f}")
    if known["checkpoint"] and not known["finished"]:
        parts.append(f"checkpoint of round {known['checkpoint']}")
    lines = [f"{row['directory']}: {', '.join(parts)}"]
    if not known["finished"]:
        lines += [f"  {known['event']}"] if known["event"] else []
        lines += [f"  its output: {row['printed']}"] if row["printed"] else []
    return "\n".join(lines)
