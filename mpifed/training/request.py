"""Requests: a user's words become a configuration, a directory and a checkpoint to resume from."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mpifed.config.configuration import Configuration, resolve
from mpifed.config.experiments import apply_overrides, read_experiment
from mpifed.errors import InputError
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Communicator
from mpifed.results.run_directories import check_free, check_output, holds_run
from mpifed.tracking.trackers import check_tracker
from mpifed.training import resume
from mpifed.training.callback import Callback, callback


@dataclass(frozen=True)
class Request:
    """What a user asked for."""

    experiment: str | None = None
    overrides: Mapping[str, Any] | None = None
    output: Path | None = None
    resume: bool | Path | None = None
    dry_run: bool = False
    quiet: bool = False
    spent: float = 0.0
    progress: bool = False
    on_round: Callback | str | None = None
    track: str | None = None
    # The experiment with its overrides, where it has been read.
    mapping: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Task:
    """What a request means after files were read."""

    mapping: dict[str, Any]
    output: Path
    point: resume.ResumePoint | None
    stored: dict[str, Any] | None
    remarks: list[str]
    begun: tuple[int, int] | None


def settle(request: Request, communicator: Communicator) -> tuple[Task, Configuration]:
    """Return what a request means, and its configuration, found by rank 0. Collective."""

    def found() -> tuple[Task, Configuration]:
        task = understand(request)
        callback(request.on_round)
        check_tracker(request.track)
        return task, resolve(task.mapping, communicator.size)

    is_first = communicator.rank == 0
    made = agree(communicator, lambda: found() if is_first else None)
    return cast(tuple[Task, Configuration], communicator.broadcast_object(made))


def understand(request: Request) -> Task:
    """Find the configuration, the directory and the checkpoint of a request."""
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
        if point is None and holds_run(output):
            remarks = [*remarks, f"{output} has no intact checkpoint; the run starts afresh"]
    stored = None
    if request.resume and output is not None and point is None:
        stored = resume.stored_configuration(output)
    mapping = dict(request.mapping or {})
    if not mapping:
        mapping = apply_overrides(_base(request, point, stored), request.overrides or {})
    if output is None:
        output = _default_output(mapping)
    _check_output(output, request, point)
    return Task(mapping, output, point, stored, remarks, begun)


def _base(
    request: Request, point: resume.ResumePoint | None, stored: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the configuration before overrides: of the experiment, or of the resumed run."""
    known = point.meta.configuration if point is not None else stored
    if request.experiment is None and known is not None:
        return resume.base_configuration(known, request.overrides or {})
    return read_experiment(request.experiment)


def _default_output(mapping: Mapping[str, Any]) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{Path(str(mapping.get('experiment', 'run'))).name}-{stamp}"
    output, number = Path("runs") / name, 1
    while output.exists():
        number += 1
        output = Path("runs") / f"{name}-{number}"
    return output


def _check_output(output: Path, request: Request, point: resume.ResumePoint | None) -> None:
    """Refuse a directory that cannot be written, or holds another run than the one to resume."""
    check_output(output)
    if not request.resume:
        check_free(output)
    elif not holds_run(output):
        return
    if point is not None and point.run_directory != output.resolve():
        raise InputError(
            f"--output {output} holds a run that {point.path} does not belong to; choose another "
            "directory"
        )


def refuse_overtaken(task: Task) -> None:
    """Refuse a directory in which another process has begun a run since ``understand``."""
    if resume.begun(task.output) != task.begun:
        raise InputError(
            f"--output {task.output} is in use: another process started or resumed a run there in "
            "the meantime; choose another directory, or add --resume"
        )


def check_resume(configuration: Configuration, task: Task) -> None:
    """Refuse to resume a run under another configuration."""
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
    """Return the configuration to train under, and R of its learning-rate schedules."""
    horizon = configuration.rounds
    if task.point is not None and not configuration.reschedule:
        horizon = task.point.meta.horizon
    elif task.stored is not None and not configuration.reschedule:
        horizon = resume.stored_horizon(task.stored) or horizon
    if horizon != configuration.rounds and configuration.local.lr_horizon is None:
        local = dataclasses.replace(configuration.local, lr_horizon=horizon)
        configuration = dataclasses.replace(configuration, local=local)
    return configuration, horizon


def keep_stepping(configuration: Configuration, task: Task) -> Configuration:
    """Return the configuration with the ``local.stepping`` with which the run began."""
    stored = task.stored if task.point is None else task.point.meta.configuration
    local = stored.get("local") if stored is not None else None
    if configuration.local.stepping != "auto" or not isinstance(local, Mapping):
        return configuration
    chosen = local.get("stepping", "auto")
    return dataclasses.replace(
        configuration, local=dataclasses.replace(configuration.local, stepping=chosen)
    )
