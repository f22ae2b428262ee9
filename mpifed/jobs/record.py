"""The record of a job in its run directory: ``job/job.json``, the script, and a request to
stop.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from mpifed.errors import InputError
from mpifed.io.atomic import replacing
from mpifed.io.text import MissingFile, damaged, read_json
from mpifed.jobs.job import Job
from mpifed.jobs.reading import MOST
from mpifed.sweep.plan import Planned

VERSION = 1


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
    """Remove the marks that runs are finished or asked to stop; put them back if the block
    fails.
    """
    runs = [job.runs[task].directory for task in tasks]
    places = [job.output / "job" / "stop"]
    places += [run / name for run in runs for name in ("job/stop", "DONE")]
    said = [place for place in dict.fromkeys(places) if place.exists()]
    for place in said:
        place.unlink()
    try:
        yield
    except BaseException:
        for place in said:
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
    replace_text(job.output / "job" / "job.json", json.dumps(known, indent=2) + "\n")
    if job.sweep:
        for number, run in enumerate(job.runs):
            part = {"version": VERSION, "part_of": str(job.output), "task": number}
            replace_text(run.directory / "job" / "job.json", json.dumps(part, indent=2) + "\n")


def entry(number: str, tasks: Sequence[int], report: str | None) -> dict[str, Any]:
    """Return an entry of the history, submitted now."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"job": number, "tasks": list(tasks), "report": report, "submitted": now}


def read(directory: Path) -> tuple[Record, int | None]:
    """Read the record of a run directory."""
    found = _load(directory)
    if "part_of" not in found:
        return _record(directory, found), None
    path, above = _path_of(directory), found["part_of"]
    if not _is_place(above):
        raise damaged(path, "part_of is not an absolute path")
    whole = _load(Path(above))
    if "part_of" in whole:
        raise damaged(path, "it is part of a run that is itself a part")
    record, task = _record(Path(above), whole), found.get("task")
    if not isinstance(task, int) or not _is_count(task) or task >= len(record.job.runs):
        raise damaged(path, "task is the number of no run")
    return record, task


def _record(directory: Path, found: dict[str, Any]) -> Record:
    """The record of a whole job; raises ``InputError`` for a damaged field."""
    for name, (holds, meant) in FIELDS.items():
        if name not in found or not holds(found[name]):
            raise damaged(_path_of(directory), f"{name} is not {meant}")
    output = Path(found["output"])
    runs = tuple(
        Planned(Path(run["directory"]), dict(run["overrides"]), {}) for run in found["runs"]
    )
    if not all(_is_within(run.directory, output) for run in runs):
        raise damaged(_path_of(directory), "a run is not in output")
    if not found["sweep"] and [run.directory for run in runs] != [output]:
        raise damaged(_path_of(directory), "runs differs from output, but sweep is false")
    history = tuple(dict(item) for item in found["history"])
    if {task for item in history for task in item["tasks"]} != set(range(len(runs))):
        raise damaged(_path_of(directory), "history does not have every run")
    job = Job(found["experiment"], found["text"], output, found["sweep"], runs, dict(found["job"]))
    here = directory.absolute()
    if job.output != here:  # the directory was moved since
        job = replace(job, output=here, runs=tuple(_moved(run, job.output, here) for run in runs))
    return Record(job, history)


def _is_text(value: Any) -> bool:
    """Whether ``value`` is a text that a file may hold."""
    return isinstance(value, str) and "\0" not in value and _encodes(value)


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_place(value: Any) -> bool:
    """Whether ``value`` is an absolute path that a system may have."""
    if not _is_text(value) or not value.startswith("/") or not value.isprintable():
        return False
    parts = PurePath(value).parts
    return len(value.encode()) < 4096 and all(len(part.encode()) <= 255 for part in parts)


def _is_within(place: Path, folder: Path) -> bool:
    return place.is_relative_to(folder) and ".." not in place.relative_to(folder).parts


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    """Whether ``value`` is a number of a job as SLURM's commands take it, and nothing else."""
    return isinstance(value, str) and NUMBER.fullmatch(value) is not None


def _is_run(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_place(value.get("directory"))
        and isinstance(value.get("overrides"), dict)
    )


def _is_entry(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_number(value.get("job"))
        and isinstance(value.get("tasks"), list)
        and all(_is_count(task) for task in value["tasks"])
        and "report" in value
        and (value["report"] is None or _is_number(value["report"]))
    )


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(map(holds, value))


NUMBER = re.compile(r"[0-9]{1,18}")
# What a record must hold.
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "experiment": (_is_text, "a text"),
    "text": (lambda value: value is None or _is_text(value), "a text or null"),
    "output": (_is_place, "an absolute path"),
    "sweep": (lambda value: isinstance(value, bool), "true or false"),
    "job": (lambda value: isinstance(value, dict), "a mapping of options"),
    "runs": (_list_of(_is_run), "a list of runs, each with directory and overrides"),
    "history": (_list_of(_is_entry), "a list of jobs, each with the digits of job, and tasks"),
}


def ask_to_stop(directory: Path) -> None:
    """Make the jobs of this directory end instead of being queued again."""
    (directory / "job" / "stop").touch(mode=0o600)


def _path_of(directory: Path) -> Path:
    return directory / "job" / "job.json"


def _load(directory: Path) -> dict[str, Any]:
    path = _path_of(directory)
    try:
        found = read_json(path, MOST)
    except MissingFile:
        raise InputError(
            f"'{directory}' holds no job: there is no job/job.json in it; python -m mpifed.jobs "
            "submit makes one"
        ) from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise InputError(f"'{path}' is not a record of a job that this mpifed can read")
    return found


def _moved(run: Planned, before: Path, now: Path) -> Planned:
    with contextlib.suppress(ValueError):
        return replace(run, directory=now / run.directory.relative_to(before))
    return run


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically and private to the user; raises ``OSError``."""
    with replacing(path, mode=0o600) as partial:
        partial.write_text(text, encoding="utf-8")
