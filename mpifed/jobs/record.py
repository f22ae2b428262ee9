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
from mpifed.jobs.slurm import Queued
from mpifed.results.results import read_metrics, read_summary
from mpifed.sweep.plan import Planned

VERSION = 1
RECORD_FILE = Path("job", "job.json")


@dataclass(frozen=True)
class Record:
    """A job that was submitted, with an entry for each of its submissions."""

    job: Job
    history: tuple[dict[str, Any], ...]

    def name(self, task: int) -> str:
        """Return the newest job that has a run, as SLURM's commands take it."""
        newest = [entry["job"] for entry in self.history if task in entry["tasks"]][-1]
        return f"{newest}_{task}" if self.job.sweep else str(newest)

    def reports(self) -> list[str]:
        """Return the jobs that report on the runs."""
        return [str(entry["report"]) for entry in self.history if entry["report"]]

    def directory(self, tasks: Sequence[int]) -> Path:
        """Return the directory of all runs, or of the one that is meant."""
        all_runs = len(tasks) == len(self.job.runs)
        return self.job.output if all_runs else self.job.runs[tasks[0]].directory


def prepare(job: Job) -> None:
    """Make the directories of ``job``, private to the user."""
    for directory in (job.output, *(run.directory for run in job.runs)):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / "job").mkdir(mode=0o700, exist_ok=True)


def write(job: Job, history: Sequence[dict[str, Any]]) -> None:
    """Record a job that was submitted."""
    directories = (str(run.directory.relative_to(job.output)) for run in job.runs)
    content = {
        "version": VERSION,
        "experiment": job.experiment,
        "text": job.text,
        "sweep": job.sweep,
        "job": job.settings,
        "runs": [
            {"directory": directory, "overrides": run.overrides}
            for directory, run in zip(directories, job.runs, strict=True)
        ],
        "history": list(history),
    }
    replace_text(job.output / RECORD_FILE, json.dumps(content, indent=2) + "\n")


def entry(number: int, tasks: Sequence[int], report: int | None) -> dict[str, Any]:
    """Return an entry of the history, submitted now."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"job": number, "tasks": list(tasks), "report": report, "submitted": now}


def read(directory: Path) -> tuple[Record, list[int]]:
    """Read the record of a job, or of the sweep with this run, and which runs are meant."""
    path = directory.absolute()
    folder = path if (path / RECORD_FILE).exists() else path.parent
    try:
        content = read_json(folder / RECORD_FILE)
    except MissingFile:
        raise InputError(
            f"'{directory}' holds no job: there is no {RECORD_FILE} in it; python -m mpifed.jobs "
            "submit makes one"
        ) from None
    try:
        if content["version"] != VERSION:
            raise ValueError(
                f"it is of version {content['version']}, and this mpifed reads {VERSION}"
            )
        runs = tuple(
            Planned(folder / run["directory"], dict(run["overrides"]), None)
            for run in content["runs"]
        )
        history = tuple(
            {**each, "job": int(each["job"]), "report": int(each["report"] or 0) or None}
            for each in content["history"]
        )
        options = dict(content["job"])
        job = Job(content["experiment"], content["text"], folder, content["sweep"], runs, options)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(folder / RECORD_FILE, f"{type(error).__name__}: {error}") from None
    tasks = [task for task, run in enumerate(runs) if path in (folder, run.directory)]
    if not tasks:
        raise InputError(f"'{directory}' is no run of the job in {folder}")
    return Record(job, history), tasks


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically and private to the user; raises ``OSError``."""
    with replacing(path, mode=0o600) as partial:
        partial.write_text(text, encoding="utf-8")


def status(record: Record, task: int, queued: Mapping[str, Queued] | None) -> dict[str, Any]:
    """Return the status of a run; ``queued`` is None where nothing answers."""
    directory, name = record.job.runs[task].directory, record.name(task)
    reached = progress(directory)
    printed = record.job.output / "job" / f"slurm-{name}.out"
    return {
        "directory": directory,
        "job": name,
        "state": _state(directory, reached["finished"], name, queued),
        "progress": reached,
        "printed": printed if printed.exists() else None,
    }


def _state(directory: Path, finished: bool, name: str, queued: Mapping[str, Queued] | None) -> str:
    if finished:
        summary = directory / "summary.json"
        return str(read_summary(summary)["status"]) if summary.exists() else "finished"
    if queued is None:
        return "SLURM does not answer"
    stopping = (directory / "job" / "stop").exists()
    entry = queued.get(name)
    if entry is None or (stopping and not entry.alive):
        return "stopped" if stopping else "not in the queue"
    state = entry.state.lower()
    if state == "pending" and entry.reason not in ("", "None"):
        state = f"pending ({entry.reason})"
    return f"stopping ({state})" if stopping else state


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
    reached = row["progress"]
    parts = [f"job {row['job']}", row["state"]]
    if reached["round"] is not None:
        parts.append(f"round {reached['round']} of {reached['rounds'] or '?'}")
    if reached["test_accuracy"] is not None:
        parts.append(f"test accuracy {reached['test_accuracy']:.4f}")
    if reached["checkpoint"] and not reached["finished"]:
        parts.append(f"checkpoint of round {reached['checkpoint']}")
    lines = [f"{row['directory']}: {', '.join(parts)}"]
    if not reached["finished"]:
        lines += [f"  {reached['event']}"] if reached["event"] else []
        lines += [f"  its output: {row['printed']}"] if row["printed"] else []
    return "\n".join(lines)
