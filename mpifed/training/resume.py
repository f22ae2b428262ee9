"""Where a run goes on: which checkpoint, under which configuration, with which rows of metrics."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.checkpoint import files as checkpoint
from mpifed.config.configuration import Configuration, completed, differences, to_mapping
from mpifed.errors import InputError
from mpifed.reading.configurations import read_stored
from mpifed.reading.results import read_summary

MAY_CHANGE = ("rounds", "checkpoint", "threads", "reschedule", "stall_limit", "experiment")
"""Keys that may change on a resume, besides ``evaluation.every``."""


MOST_SHOWN = 3
"""Differences from the stored configuration that are shown with both values."""


@dataclass(frozen=True)
class ResumePoint:
    """An intact checkpoint."""

    path: Path
    meta: checkpoint.Meta

    @property
    def run_directory(self) -> Path | None:
        """The run directory in which it stands, if it stands in one."""
        folder = self.path.resolve().parent
        return folder.parent if folder.name == "checkpoints" else None


def holds_run(directory: Path) -> bool:
    """Whether ``directory`` holds a run, finished or not."""
    names = ("config.yaml", "metrics.csv", "checkpoints", "DONE")
    return any((directory / name).exists() for name in names)


def begun(directory: Path) -> tuple[int, int] | None:
    """What changes whenever a process begins a run in ``directory``, or goes on with it there.

    None where none has, or where that cannot be told.
    """
    try:
        found = (directory / "config.yaml").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def finished_after(directory: Path) -> int | None:
    """The rounds after which the run in ``directory`` was finished; None where it is not."""
    if not (directory / "DONE").exists():
        return None
    with contextlib.suppress(InputError):
        return int(read_summary(directory / "summary.json")["rounds"])
    return None


def newest(directory: Path) -> tuple[ResumePoint | None, list[str]]:
    """The newest intact checkpoint of a run directory, and a line for each newer one."""
    found, reasons = checkpoint.newest(directory)
    passed_over = [f"passed over: {reason}" for reason in reasons]
    return ResumePoint(*found) if found is not None else None, passed_over


def explicit(path: Path) -> tuple[ResumePoint, list[str]]:
    """The checkpoint at ``path``, or the newest of the run directory ``path``.

    Raises ``InputError`` where there is no intact one.
    """
    if path.is_dir():
        point, passed_over = newest(path)
        if point is None:
            reasons = "".join(f"; {line}" for line in passed_over)
            raise InputError(f"--resume {path}: the directory holds no intact checkpoint{reasons}")
        return point, passed_over
    if not path.exists():
        raise InputError(f"--resume {path}: there is no such file")
    return ResumePoint(path, checkpoint.read_meta(path)), []


def stored_configuration(directory: Path) -> dict[str, Any] | None:
    """The configuration of the run in ``directory``; None where there is none.

    Raises ``InputError`` for a directory with files of these names that are of no run of mpifed.
    """
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
    """The R of the schedules that a stored configuration sets; None where it is ``rounds``."""
    local = stored.get("local")
    found = local.get("lr_horizon") if isinstance(local, Mapping) else None
    return found if isinstance(found, int) else None


def base_configuration(stored: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What a run goes on with if no experiment is named: its own configuration.

    ``reschedule`` held for the resume that asked for it; if it is asked for again, so does
    ``local.lr_horizon``, which an earlier resume may have set (``keep_horizon``).
    """
    base = copy.deepcopy(dict(stored))
    base["reschedule"] = False
    if overrides.get("reschedule") is True and isinstance(base.get("local"), dict):
        base["local"]["lr_horizon"] = None
    return base


def refuse_changes(
    stored: Mapping[str, Any], configuration: Configuration, where: Path, horizon: int | None = None
) -> None:
    """Raises ``InputError`` that lists what differs, unless only what may change does.

    ``horizon`` is the R that the schedules of the run had so far, where it is known.
    """

    def fixed(mapping: Mapping[str, Any]) -> dict[str, Any]:
        kept = {k: value for k, value in completed(mapping).items() if k not in MAY_CHANGE}
        kept["evaluation"].pop("every", None)
        kept["local"] = dict(kept.get("local") or {})
        if configuration.reschedule:
            kept["local"].pop("lr_horizon", None)
        elif kept["local"].get("lr_horizon") is None:
            kept["local"]["lr_horizon"] = horizon
        return kept

    found = differences(fixed(stored), fixed(to_mapping(configuration)))
    if found:
        raise InputError(
            f"{where} has another configuration: {_listed(found)}. Resuming may change rounds, "
            "evaluation.every, checkpoint, threads and the number of ranks"
        )


def _listed(differences: list[str]) -> str:
    """Lines of ``differences``, names of components first; of most the key is enough."""
    lines = sorted(differences, key=lambda line: not line.partition(":")[0].endswith(".name"))
    rest = [line.partition(":")[0] for line in lines[MOST_SHOWN:]]
    return "; ".join(lines[:MOST_SHOWN]) + (f"; and {', '.join(rest)}" if rest else "")


def kept_rows(
    meta: checkpoint.Meta, configuration: Configuration, columns: Sequence[str]
) -> list[list[str]]:
    """The recorded rows that an uninterrupted run under ``configuration`` would have too.

    The last round of the earlier part was evaluated because it was the last; if it no longer is,
    and falls on no evaluated round, its row goes. So does the row of the round with which the whole
    run ends, for that round is evaluated again.
    """
    every = meta.configuration["evaluation"]["every"]
    last = meta.configuration["rounds"]
    kept = []
    for row in meta.rows:
        values = dict(zip(meta.columns, row, strict=True))
        number = int(values["round"])
        if number != configuration.rounds and (number % every == 0 or number != last):
            kept.append([values.get(column, "") for column in columns])
    return kept
