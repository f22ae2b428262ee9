"""What a run directory says of its job: ``job/job.json``, the script, and a request to stop.

A sweep has one record, in the directory above its runs; each of those names it. All of it is
private to the user.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mpifed.errors import InputError
from mpifed.jobs.job import Job
from mpifed.sweep.plan import Planned

VERSION = 1


@dataclass(frozen=True)
class Record:
    """A job that was submitted. ``history`` are the jobs of SLURM, oldest first, each with
    ``job``, the numbers of its runs in ``tasks``, ``report`` (None without one) and ``submitted``.
    """

    job: Job
    history: tuple[dict[str, Any], ...]

    def job_of(self, task: int) -> str:
        """The number of the newest job that has this run."""
        return next(str(item["job"]) for item in reversed(self.history) if task in item["tasks"])

    def parts(self, tasks: Iterable[int]) -> dict[str, list[int]]:
        """These runs by the job that has them now: runs that were resumed have left the first."""
        found: dict[str, list[int]] = {}
        for task in tasks:
            found.setdefault(self.job_of(task), []).append(task)
        return found

    def reports(self) -> list[str]:
        """The jobs that are to report on any of the runs."""
        living = self.parts(range(len(self.job.runs)))
        return [
            str(item["report"])
            for item in self.history
            if item["report"] and str(item["job"]) in living
        ]


def prepare(job: Job) -> None:
    """Makes the directories of ``job``, private to the user; ``InputError`` where that fails."""
    for directory in dict.fromkeys([job.output, *(run.directory for run in job.runs)]):
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            (directory / "job").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(f"'{directory}' cannot be made: {error.strerror}") from None


@contextlib.contextmanager
def going_on(job: Job, tasks: Sequence[int]) -> Iterator[None]:
    """These runs are to go on: nothing says any more that they are finished or asked to stop.

    If the block fails, which is to submit them, all of it is said again.
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
    """Records a job that was submitted."""
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
    """An entry of the history, as of now."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"job": number, "tasks": list(tasks), "report": report, "submitted": now}


def read(directory: Path) -> tuple[Record, int | None]:
    """The record of a run directory, and which task it is if it is one run of a sweep.

    Raises ``InputError`` where there is none, or it is damaged.
    """
    found = _load(directory)
    if "part_of" in found:
        record, _ = read(Path(found["part_of"]))
        return record, int(found["task"])
    path = directory / "job" / "job.json"
    try:
        runs = tuple(
            Planned(Path(run["directory"]), dict(run["overrides"]), {}) for run in found["runs"]
        )
        job = Job(
            str(found["experiment"]),
            found["text"],
            Path(found["output"]),
            bool(found["sweep"]),
            runs,
            dict(found["job"]),
        )
        history = tuple(dict(item) for item in found["history"])
        known = {task for item in history for task in item["tasks"] if item["job"]}
        if not runs or known != set(range(len(runs))):
            raise ValueError("something is missing")
        if any("report" not in item for item in history):
            raise ValueError("something is missing")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"'{path}' is damaged: {type(error).__name__}: {error}") from None
    here = directory.absolute()
    if job.output != here:  # the directory was moved since
        job = replace(job, output=here, runs=tuple(_moved(run, job.output, here) for run in runs))
    return Record(job, history), None


def ask_to_stop(directory: Path) -> None:
    """From now on the jobs of this directory end instead of being queued again."""
    (directory / "job" / "stop").touch(mode=0o600)


def _load(directory: Path) -> dict[str, Any]:
    path = directory / "job" / "job.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"'{directory}' holds no job: there is no job/job.json in it; python -m mpifed.jobs "
            "submit makes one"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise InputError(f"'{path}' is no record of a job that this mpifed understands")
    return found


def _moved(run: Planned, before: Path, now: Path) -> Planned:
    with contextlib.suppress(ValueError):
        return replace(run, directory=now / run.directory.relative_to(before))
    return run


def replace_text(path: Path, text: str) -> None:
    """Writes a file at once and private to the user; an older one is gone then. ``OSError``."""
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)
