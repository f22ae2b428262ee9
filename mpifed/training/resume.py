"""Resuming: which checkpoint, under which configuration, with which rows of metrics."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.checkpoint import files as checkpoint
from mpifed.config.configuration import Configuration, completed, to_mapping
from mpifed.config.differences import differences
from mpifed.errors import InputError
from mpifed.io.text import read_text
from mpifed.results.configurations import read_stored
from mpifed.results.results import read_summary
from mpifed.results.run_directories import check_resumed, holds_run

RESUMED = re.compile(r"^resumed from .* after round ([0-9]{1,18})$", re.MULTILINE)

# Keys that may change on a resume, in addition to ``evaluation.every``.
MAY_CHANGE = (
    *("rounds", "checkpoint", "threads", "hosts", "reschedule", "stall_limit", "experiment"),
    "storage",
)


# Number of differences that a message shows with both values.
MOST_SHOWN = 3


@dataclass(frozen=True)
class ResumePoint:
    """An intact checkpoint."""

    path: Path
    meta: checkpoint.Meta

    @property
    def run_directory(self) -> Path | None:
        """The run directory that holds the checkpoint; None if it is elsewhere."""
        folder = self.path.resolve().parent
        return folder.parent if folder.name == "checkpoints" else None


def begun(directory: Path) -> tuple[int, int] | None:
    """Return a value that changes when a process begins or resumes a run in a directory."""
    try:
        found = (directory / "config.yaml").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def finished_after(directory: Path) -> int | None:
    """Return the number of rounds of a finished run; None where ``directory`` has none."""
    if not (directory / "DONE").exists():
        return None
    with contextlib.suppress(InputError):
        return int(read_summary(directory / "summary.json")["rounds"])
    return None


def newest(directory: Path) -> tuple[ResumePoint | None, list[str]]:
    """Return the newest intact checkpoint of a run directory."""
    found, reasons = checkpoint.newest(directory)
    passed_over = [f"passed over: {reason}" for reason in reasons]
    return ResumePoint(*found) if found is not None else None, passed_over


def explicit(path: Path) -> tuple[ResumePoint, list[str]]:
    """Return the checkpoint that ``--resume PATH`` names."""
    if path.is_dir():
        point, passed_over = newest(path)
        if point is None:
            reasons = "".join(f"; {line}" for line in passed_over)
            raise InputError(f"--resume {path}: the directory holds no intact checkpoint{reasons}")
        return point, passed_over
    check_resumed(path)
    return ResumePoint(path, checkpoint.read_meta(path)), []


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
    found = local.get("lr_horizon") if isinstance(local, Mapping) else None
    return found if isinstance(found, int) else None


def base_configuration(stored: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a resumed run for which no experiment is named."""
    base = copy.deepcopy(dict(stored))
    base["reschedule"] = False
    if overrides.get("reschedule") is True and isinstance(base.get("local"), dict):
        base["local"]["lr_horizon"] = None
    return base


def refuse_changes(
    stored: Mapping[str, Any], configuration: Configuration, where: Path, horizon: int | None = None
) -> None:
    """Refuse a configuration that differs in other keys than may change on a resume."""

    def fixed(mapping: Mapping[str, Any]) -> dict[str, Any]:
        kept = {k: value for k, value in completed(mapping).items() if k not in MAY_CHANGE}
        kept["evaluation"].pop("every", None)
        kept["local"] = dict(kept.get("local") or {})
        if configuration.local.stepping == "auto":
            kept["local"].pop("stepping", None)
        if configuration.reschedule:
            kept["local"].pop("lr_horizon", None)
        elif kept["local"].get("lr_horizon") is None:
            kept["local"]["lr_horizon"] = horizon
        return kept

    found = differences(fixed(stored), fixed(to_mapping(configuration)))
    if found:
        raise InputError(
            f"{where} has another configuration: {_listed(found)}. Resuming may change rounds, "
            "evaluation.every, checkpoint, storage, threads, hosts and the number of ranks"
        )


def _listed(differences: list[str]) -> str:
    """Return lines of ``differences``, names of components first, ``MOST_SHOWN`` in full."""
    lines = sorted(differences, key=lambda line: not line.partition(":")[0].endswith(".name"))
    rest = [line.partition(":")[0] for line in lines[MOST_SHOWN:]]
    return "; ".join(lines[:MOST_SHOWN]) + (f"; and {', '.join(rest)}" if rest else "")


def kept_rows(
    meta: checkpoint.Meta, configuration: Configuration, columns: Sequence[str]
) -> list[list[str]]:
    """Return the recorded rows that an uninterrupted run would have too."""
    kept = []
    for row in meta.rows:
        values = dict(zip(meta.columns, row, strict=True))
        number = int(values["round"])
        if number != configuration.rounds and not only_as_last(meta, number):
            kept.append([values.get(column, "") for column in columns])
    return kept


def only_as_last(meta: checkpoint.Meta, round: int) -> bool:
    """Return whether a round was evaluated for no other reason than that the run ended with it."""
    last, every = meta.configuration["rounds"], meta.configuration["evaluation"]["every"]
    return bool(round == last and round % every)


def line_of_resume(point: ResumePoint) -> str:
    """Return the line of log.txt that says where a run was resumed."""
    return f"resumed from {point.path.name} after round {point.meta.round}"


def resumed_after(log: Path) -> int:
    """Return the round after which a run was resumed last; 0 where it was not, or none is told."""
    try:
        found = RESUMED.findall(read_text(log))
    except InputError:
        return 0
    return int(found[-1]) if found else 0
