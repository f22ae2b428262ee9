"""What a user asks for: a directory that is free, or the run in it that goes on."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.checkpoint import files as checkpoint
from mpifed.config.configuration import Configuration, to_mapping
from mpifed.config.stored import ARITHMETIC, UNREAD, arithmetic_of, completed, differences
from mpifed.errors import InputError
from mpifed.results.configurations import read_stored
from mpifed.results.results import STOPPED_AT, metrics_in, read_summary
from mpifed.results.run_directories import (
    check_free,
    check_output,
    check_own,
    holds_run,
)

# Keys that may change on a resume, in addition to ``evaluation.every`` and ``STOPPING``.
MAY_CHANGE = (
    *("rounds", "checkpoint", "threads", "hosts", "reschedule", "stall_limit", "experiment"),
    *("storage", *UNREAD),
)

# Keys of ``evaluation`` that may change on a resume because they change no state.
STOPPING = ("stop_at", "patience")


@dataclass(frozen=True)
class ResumePoint:
    """An intact checkpoint."""

    path: Path
    meta: checkpoint.Meta
    passed_over: tuple[str, ...] = ()

    @property
    def run_directory(self) -> Path | None:
        """The run directory that holds the checkpoint; None if it is elsewhere."""
        folder = self.path.absolute().parent  # which may be a link to another disk
        return folder.parent.resolve() if folder.name == "checkpoints" else None


def ended_before(directory: Path, configuration: Configuration) -> dict[str, Any] | None:
    """Return the summary of a run in ``directory`` that is complete under a configuration.

    A run that a condition has stopped is, as long as neither its rounds nor the condition change.
    None where ``directory`` has no such run.
    """
    if not (directory / "DONE").exists():
        return None
    with contextlib.suppress(InputError):
        summary, stored = read_summary(directory / "summary.json"), stored_configuration(directory)
        if summary["rounds"] == configuration.rounds:
            return summary
        if summary["status"] == STOPPED_AT and stored is not None:
            before, now = _of_stopping(stored), _of_stopping(to_mapping(configuration))
            return summary if before == now else None
    return None


def _of_stopping(stored: Mapping[str, Any]) -> list[Any]:
    """Return the rounds of a configuration, and what stops it earlier."""
    evaluation = completed(stored)["evaluation"]
    return [stored.get("rounds"), *(evaluation[name] for name in STOPPING)]


def newest(directory: Path) -> ResumePoint | None:
    """Return the newest intact checkpoint of a run directory; None where it holds none at all."""
    newest_intact, reasons = checkpoint.newest(directory)
    if newest_intact is None and reasons:
        raise InputError(
            f"{directory} holds no intact checkpoint: {'; '.join(reasons)}. Nothing was changed; "
            f"--output {directory} --restart begins anew and keeps them"
        )
    return ResumePoint(*newest_intact, tuple(reasons)) if newest_intact is not None else None


def explicit(path: Path) -> ResumePoint:
    """Return the checkpoint that ``--resume PATH`` names."""
    if not os.path.exists(path):
        raise InputError(f"--resume {path}: there is no such file")
    point = newest(path) if path.is_dir() else ResumePoint(path, checkpoint.read_meta(path))
    if point is None:
        raise InputError(f"--resume {path}: the directory holds no intact checkpoint")
    return point


def stored_configuration(directory: Path) -> dict[str, Any] | None:
    """Return the configuration of the run in a directory; None where there is none."""
    path = directory / "config.yaml"
    if path.is_file():
        return read_stored(path)
    if holds_run(directory):
        raise InputError(
            f"--output {directory} holds some files of a run, but no config.yaml, so it cannot be "
            "resumed; choose another directory"
        )
    return None


def stored_horizon(stored: Mapping[str, Any]) -> int | None:
    """Return the R of schedules that a stored configuration sets; None where it is ``rounds``."""
    local = stored.get("local")
    horizon = local.get("lr_horizon") if isinstance(local, Mapping) else None
    return horizon if isinstance(horizon, int) else None


def base_configuration(stored: Mapping[str, Any], reschedule: bool) -> dict[str, Any]:
    """Return the configuration of a resumed run for which no experiment is named."""
    base = copy.deepcopy(dict(stored))
    base["reschedule"] = False
    if reschedule and isinstance(base.get("local"), dict):
        base["local"]["lr_horizon"] = None
    return base


def check_changes(
    stored: Mapping[str, Any], configuration: Configuration, where: Path, horizon: int | None = None
) -> None:
    """Refuse a configuration that differs in other keys than may change on a resume."""

    def fixed(mapping: Mapping[str, Any]) -> dict[str, Any]:
        constant = {k: value for k, value in completed(mapping).items() if k not in MAY_CHANGE}
        for name in ("every", *STOPPING):
            constant["evaluation"].pop(name, None)
        constant["local"] = dict(constant.get("local") or {})
        if configuration.local.stepping == "auto":
            constant["local"].pop("stepping", None)
        if configuration.reschedule:
            constant["local"].pop("lr_horizon", None)
        elif constant["local"].get("lr_horizon") is None:
            constant["local"]["lr_horizon"] = horizon
        return constant

    changes = differences(fixed(stored), fixed(to_mapping(configuration)))
    if changes:
        raise InputError(
            f"{where} has another configuration: {'; '.join(changes)}; allowed when resuming: "
            "other rounds, evaluation.every, .stop_at and .patience, checkpoint, storage, threads, "
            "hosts and another number of ranks; --restart begins anew"
        )


def kept_rows(meta: checkpoint.Meta, rounds: int, columns: Sequence[str]) -> list[list[str]]:
    """Return the recorded rows but those of round 0 or the last one that is evaluated again."""
    if meta.round == 0:
        return []
    recorded = metrics_in(meta.metrics)
    rows = (dict(zip(recorded.columns, row, strict=True)) for row in recorded.rows)
    return [
        [row.get(column, "") for column in columns] for row in rows if int(row["round"]) != rounds
    ]


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
    on_round: Callable[..., object] | str | None = None
    track: str | None = None
    restart: bool = False
    json: bool = False


@dataclass(frozen=True)
class EarlierRun:
    """The run that goes on, as far as there is one; ``stored`` is its configuration."""

    output: Path | None
    point: ResumePoint | None
    stored: dict[str, Any] | None


@dataclass(frozen=True)
class Task:
    """Where a run is written, and what it continues."""

    output: Path
    point: ResumePoint | None
    stored: dict[str, Any] | None
    remarks: list[str]
    restart: bool = False


def earlier_run(output: Path | None, resume: bool | Path | None, restart: bool) -> EarlierRun:
    """Return the run that is to be resumed, or whose directory is used again."""
    point = None
    if restart and resume:
        raise InputError("--resume and --restart were given; at most one of them may be")
    if output is None and restart:
        raise InputError("--restart needs --output DIR, the run to begin anew")
    if output is None and resume is True:
        raise InputError("--resume needs --output DIR, or the path of a checkpoint")
    if isinstance(resume, Path):
        point = explicit(resume)
        if output is None and point.run_directory is not None:
            output = point.run_directory
    elif resume and output is not None:
        point = newest(output)
    if point is not None:
        return EarlierRun(output, point, point.meta.configuration)
    if output is None or not (resume or restart):
        return EarlierRun(output, None, None)
    return EarlierRun(output, None, stored_configuration(output))


def task_of(earlier: EarlierRun, experiment: str, resume: bool, restart: bool, quiet: bool) -> Task:
    """Return where an experiment is run; the directory is checked, and nothing is written."""
    output, point = earlier.output or _default_output(experiment), earlier.point
    _check_output(output, point, resume, restart)
    remarks = [f"passed over: {reason}" for reason in point.passed_over] if point else []
    for line in remarks if quiet else ():
        logging.getLogger("mpifed").warning(line)
    if resume and point is None:
        remarks.append(f"{output} holds no checkpoint: the run begins with round 1")
    return Task(output, point, None if restart else earlier.stored, remarks, restart)


def _default_output(experiment: str) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{Path(experiment).name}-{stamp}"
    output, number = Path("runs") / name, 1
    while output.exists():
        number += 1
        output = Path("runs") / f"{name}-{number}"
    return output


def _check_output(output: Path, point: ResumePoint | None, resume: bool, restart: bool) -> None:
    """Refuse a directory that cannot be written, or holds another run than the one to resume."""
    check_output(output)
    if not (resume or restart):
        check_free(output)
    old = output / "checkpoints"
    if restart and old.exists() and not os.access(old, os.W_OK):
        raise InputError(f"--restart cannot move {old}, which is not writable; nothing was changed")
    check_own(output)
    if not holds_run(output):
        return
    if point is not None and point.run_directory != output.resolve():
        raise InputError(
            f"--output {output} holds a run that {point.path} does not belong to; choose another "
            "directory"
        )


def check_resume(configuration: Configuration, task: Task) -> None:
    """Refuse to resume a run under another configuration."""
    point, stored = task.point, task.stored
    version = ARITHMETIC if stored is None else arithmetic_of(stored)[-1][1]
    if version != ARITHMETIC:
        task.remarks.append(
            f"an earlier mpifed began this run, whose numbers are rounded otherwise (arithmetic "
            f"{version}, now {ARITHMETIC})"
        )
    if point is not None:
        check_changes(point.meta.configuration, configuration, point.path, point.meta.horizon)
        if point.meta.round > configuration.rounds:
            raise InputError(
                f"rounds is {configuration.rounds}, but {point.path} is already at round "
                f"{point.meta.round}"
            )
    elif stored is not None:
        check_changes(stored, configuration, task.output, stored_horizon(stored))


def as_begun(configuration: Configuration, task: Task) -> tuple[Configuration, int]:
    """Return the configuration to train under, with the ``local.stepping`` and the arithmetic with
    which the run began, and R of its learning-rate schedules.
    """
    horizon, local, stored = configuration.rounds, configuration.local, task.stored
    if task.point is not None and not configuration.reschedule:
        horizon = task.point.meta.horizon
    elif stored is not None and not configuration.reschedule:
        horizon = stored_horizon(stored) or horizon
    if horizon != configuration.rounds and local.lr_horizon is None:
        local = dataclasses.replace(local, lr_horizon=horizon)
    section = stored.get("local") if stored is not None else None
    if local.stepping == "auto" and isinstance(section, Mapping):
        local = dataclasses.replace(local, stepping=section.get("stepping", "auto"))
    changed = dataclasses.replace(configuration, local=local)
    if task.point is not None:
        held = arithmetic_of(task.point.meta.configuration)
        if held[-1][1] != ARITHMETIC:
            held = [*held, [task.point.meta.round + 1, ARITHMETIC]]
        if len(held) > 1:
            changed = dataclasses.replace(changed, arithmetic=held)
    return changed, horizon
