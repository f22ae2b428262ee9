"""What a user asks for, and what it means: a configuration, a directory, a checkpoint to resume.

Nothing is written here.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.config.configuration import Configuration
from mpifed.config.experiment_files import (
    DEFAULT_EXPERIMENT,
    apply_overrides,
    read_experiment,
)
from mpifed.errors import InputError
from mpifed.training import resume


@dataclass(frozen=True)
class Request:
    """What a user asked for.

    ``resume`` is None (a new run), True (the newest checkpoint of ``output``) or a path. ``spent``
    are the seconds that the process has spent before it asked.
    """

    experiment: str | None = None
    overrides: Mapping[str, Any] | None = None
    output: Path | None = None
    resume: bool | Path | None = None
    dry_run: bool = False
    quiet: bool = False
    spent: float = 0.0


@dataclass(frozen=True)
class Task:
    """What a request means.

    ``mapping`` is the configuration, not yet resolved; ``remarks`` are lines for the user.
    ``stored`` is the configuration of a run that has no checkpoint and starts afresh. ``begun`` is
    that of ``output`` when it was looked at.
    """

    mapping: dict[str, Any]
    output: Path
    point: resume.ResumePoint | None
    stored: dict[str, Any] | None
    remarks: list[str]
    begun: tuple[int, int] | None


def understand(request: Request) -> Task:
    """Finds what the request names; raises ``InputError``. Reads files, so one rank does it."""
    output = request.output
    begun = resume.begun(output) if output is not None else None
    point: resume.ResumePoint | None = None
    remarks: list[str] = []
    if isinstance(request.resume, Path):
        point, remarks = resume.explicit(request.resume)
        if output is None and point.run_directory is not None:
            output = point.run_directory
            begun = resume.begun(output)
    elif request.resume:
        if output is None:
            raise InputError("--resume needs --output DIR, or the path of a checkpoint")
        point, remarks = resume.newest(output)
        if point is None and resume.holds_run(output):
            remarks = [*remarks, f"{output} has no intact checkpoint; the run starts afresh"]
    stored = None
    if request.resume and output is not None and point is None:
        stored = resume.stored_configuration(output)
    mapping = apply_overrides(_base(request, point, stored), request.overrides or {})
    if output is None:
        output = _default_output(mapping)
    _check_output(output, request, point)
    return Task(mapping, output, point, stored, remarks, begun)


def _base(
    request: Request, point: resume.ResumePoint | None, stored: dict[str, Any] | None
) -> dict[str, Any]:
    """The configuration before overrides: of the experiment named, or of the run that goes on."""
    known = point.meta.configuration if point is not None else stored
    if request.experiment is None and known is not None:
        return resume.base_configuration(known, request.overrides or {})
    return read_experiment(request.experiment or DEFAULT_EXPERIMENT)


def _default_output(mapping: Mapping[str, Any]) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{Path(str(mapping.get('experiment', 'run'))).name}-{stamp}"
    output, number = Path("runs") / name, 1
    while output.exists():
        number += 1
        output = Path("runs") / f"{name}-{number}"
    return output


def _check_output(output: Path, request: Request, point: resume.ResumePoint | None) -> None:
    try:
        if output.exists() and not output.is_dir():
            raise InputError(
                f"--output {output} is a file; it must be a directory, or not exist yet"
            )
        _check_free(output, request, point)
        place = output.resolve()
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise InputError(f"--output {output} cannot be made: {place} is a file")
        if not os.access(place, os.W_OK | os.X_OK) or os.statvfs(place).f_flag & os.ST_RDONLY:
            raise InputError(f"--output {output} cannot be written: {place} is not writable")
    except OSError as error:
        raise InputError(f"--output {output} cannot be used: {error.strerror}") from None


def _check_free(output: Path, request: Request, point: resume.ResumePoint | None) -> None:
    """Refuses a directory that holds a run other than the one to resume."""
    if not resume.holds_run(output):
        return
    if not request.resume:
        raise InputError(
            f"--output {output} already holds a run; add --resume to continue it, or choose "
            "another directory"
        )
    if point is not None and point.run_directory != output.resolve():
        raise InputError(
            f"--output {output} holds a run that {point.path} does not belong to; choose another "
            "directory"
        )


def refuse_overtaken(task: Task) -> None:
    """Refuses a directory in which another process has begun since this task was understood.

    Only who holds the directory's lock may rely on the answer. Raises ``InputError``.
    """
    if resume.begun(task.output) != task.begun:
        raise InputError(
            f"--output {task.output} is in use: another process started or resumed a run there in "
            "the meantime; choose another directory, or add --resume"
        )


def check_resume(configuration: Configuration, task: Task) -> None:
    """Refuses to resume a run under another configuration; raises ``InputError``."""
    point = task.point
    if point is not None:
        resume.refuse_changes(
            point.meta.configuration, configuration, point.path, point.meta.horizon
        )
        if point.meta.round > configuration.rounds:
            raise InputError(
                f"rounds is {configuration.rounds}, but {point.path} is already at round "
                f"{point.meta.round}"
            )
    elif task.stored is not None:
        horizon = resume.stored_horizon(task.stored)
        resume.refuse_changes(task.stored, configuration, task.output, horizon)


def keep_horizon(configuration: Configuration, task: Task) -> tuple[Configuration, int]:
    """The configuration to train under, and the R of its learning-rate schedules.

    A run that goes on to more rounds keeps its R. The configuration then says so, since it would
    otherwise not be enough to repeat the run.
    """
    horizon = configuration.rounds
    if task.point is not None and not configuration.reschedule:
        horizon = task.point.meta.horizon
    elif task.stored is not None and not configuration.reschedule:
        horizon = resume.stored_horizon(task.stored) or horizon
    if horizon != configuration.rounds and configuration.local.lr_horizon is None:
        local = dataclasses.replace(configuration.local, lr_horizon=horizon)
        configuration = dataclasses.replace(configuration, local=local)
    return configuration, horizon
