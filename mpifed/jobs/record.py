"""The record of a job in its run directory: ``job/job.json``, the script, and requests to stop."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mpifed.errors import InputError
from mpifed.io.atomic import replacing
from mpifed.io.text import MissingFile, damaged, read_json
from mpifed.jobs.plan import Job
from mpifed.sweep.plan import Planned

VERSION = 1

NUMBER = re.compile("[0-9]{1,18}")


@dataclass(frozen=True)
class Record:
    """A job that was submitted."""

    job: Job
    history: tuple[dict[str, Any], ...]

    def job_of(self, task: int) -> str:
        """Return the number of the newest job that has the run ``task``."""
        return next(str(item["job"]) for item in reversed(self.history) if task in item["tasks"])

    def parts(self, tasks: Iterable[int]) -> dict[str, list[int]]:
        """Return the numbers of these runs by the newest job that has each."""
        found: dict[str, list[int]] = {}
        for task in tasks:
            found.setdefault(self.job_of(task), []).append(task)
        return found

    def reports(self) -> list[str]:
        """Return the jobs that are to report on any of the runs."""
        living = self.parts(range(len(self.job.runs)))
        return [
            str(item["report"])
            for item in self.history
            if item["report"] and str(item["job"]) in living
        ]


def prepare(job: Job) -> None:
    """Make the directories of ``job``, private to the user; may raise ``InputError``."""
    for directory in dict.fromkeys([job.output, *(run.directory for run in job.runs)]):
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            (directory / "job").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(f"'{directory}' cannot be made: {error.strerror}") from None


@contextlib.contextmanager
def marks_removed(job: Job, tasks: Sequence[int]) -> Iterator[None]:
    """Remove the marks that runs are finished or to stop; restore them if the block fails."""
    runs = [job.runs[task].directory for task in tasks]
    places = [job.output / "job" / "stop"]
    places += [run / name for run in runs for name in ("job/stop", "DONE")]
    marks = [place for place in dict.fromkeys(places) if place.exists()]
    for place in marks:
        place.unlink()
    try:
        yield
    except BaseException:
        for place in marks:
            place.touch(mode=0o600)
        raise


def write(job: Job, history: Sequence[dict[str, Any]], script: str) -> None:
    """Record a job that was submitted."""
    known = {
        "version": VERSION,
        "experiment": job.experiment,
        "text": job.text,
        "output": str(job.output),
        "sweep": job.sweep,
        "job": job.given,
        "runs": [{"directory": str(run.directory), "overrides": run.overrides} for run in job.runs],
        "history": list(history),
    }
    replace_text(job.output / "job" / "job.sbatch", script)
    replace_text(_path_of(job.output), json.dumps(known, indent=2) + "\n")
    if job.sweep:
        for number, run in enumerate(job.runs):
            part = {"version": VERSION, "part_of": str(job.output), "task": number}
            replace_text(_path_of(run.directory), json.dumps(part, indent=2) + "\n")


def entry(number: str, tasks: Sequence[int], report: str | None) -> dict[str, Any]:
    """Return an entry of the history, submitted now."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"job": number, "tasks": list(tasks), "report": report, "submitted": now}


def read(directory: Path) -> tuple[Record, int | None]:
    """Read the record of a run directory, and the number of the run if it is one of a sweep."""
    found = _load(directory)
    if "part_of" not in found:
        return _record(directory, found), None
    above = Path(str(found["part_of"]))
    record, task = _record(above, _load(above)), found.get("task")
    if not isinstance(task, int) or not 0 <= task < len(record.job.runs):
        raise damaged(_path_of(directory), "task is the number of no run")
    return record, task


def _record(directory: Path, found: dict[str, Any]) -> Record:
    """Return the record of a whole job; the directory may have been moved since."""
    try:
        before, here = Path(found["output"]), directory.absolute()
        places = [Path(run["directory"]).relative_to(before) for run in found["runs"]]
        if any(".." in place.parts for place in places):
            raise ValueError("a run is not in output")
        runs = tuple(
            Planned(here / place, dict(run["overrides"]), {})
            for place, run in zip(places, found["runs"], strict=True)
        )
        history = tuple(dict(item) for item in found["history"])
        # Numbers of jobs are arguments of SLURM's commands.
        numbers = [str(item["job"]) for item in history]
        numbers += [str(item["report"]) for item in history if item["report"]]
        tasks = {task for item in history for task in item["tasks"]}
        if not all(map(NUMBER.fullmatch, numbers)) or tasks != set(range(len(runs))):
            raise ValueError("history does not have a job for every run")
        given = dict(found["job"])
        job = Job(found["experiment"], found["text"], here, bool(found["sweep"]), runs, given)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(_path_of(directory), f"{type(error).__name__}: {error}") from None
    return Record(job, history)


def ask_to_stop(directory: Path) -> None:
    """Make the jobs of this directory end instead of being queued again."""
    (directory / "job" / "stop").touch(mode=0o600)


def _path_of(directory: Path) -> Path:
    return directory / "job" / "job.json"


def _load(directory: Path) -> dict[str, Any]:
    path = _path_of(directory)
    try:
        found = read_json(path)
    except MissingFile:
        raise InputError(
            f"'{directory}' holds no job: there is no job/job.json in it; python -m mpifed.jobs "
            "submit makes one"
        ) from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise InputError(f"'{path}' is not a record of a job that this mpifed can read")
    return found


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically and private to the user; raises ``OSError``."""
    with replacing(path, mode=0o600) as partial:
        partial.write_text(text, encoding="utf-8")
