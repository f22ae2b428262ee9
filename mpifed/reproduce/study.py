"""Tables and figures as data: which runs they need, and what was published."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpifed.errors import InputError, closest
from mpifed.io.yaml_files import as_text


def folder_of(label: str) -> str:
    """Return the name of the folder of a row."""
    plain = label.lower().replace("+", " plus ")
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


@dataclass(frozen=True)
class Entry:
    """One row of a table: a method with its options."""

    label: str
    overrides: Mapping[str, Any]
    published: tuple[float, ...] = ()
    tuned: bool = True
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    learning_rates: bool = True
    tuning_rounds: int | None = None
    tuned_as: str | None = None
    rounds_divisor: int = 1
    same_as: tuple[str, str] | None = None

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return folder_of(self.label)

    def chosen(self, tuned: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return its values among the tuned ones, by label; none for a row that takes none."""
        return tuned.get(self.tuned_as or self.label, {}) if self.tuned else {}


@dataclass(frozen=True)
class Planned:
    """One run of a table."""

    experiment: str
    overrides: dict[str, Any]
    directory: Path

    @property
    def finished(self) -> bool:
        """Whether the run directory has a file DONE."""
        return (self.directory / "DONE").exists()


@dataclass(frozen=True)
class Table:
    """A table of a paper on one kind of data."""

    name: str
    title: str
    variants: Mapping[str, tuple[str, Mapping[str, Any]]]
    entries: tuple[Entry, ...]
    columns: tuple[str, ...] = ("average", "p10", "std")
    common: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    remarks: tuple[str, ...] = ()
    extras: tuple[Callable[[Mapping[str, Sequence[Planned]]], str], ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure of a paper as commands: sweeps, then reports on them."""

    name: str
    title: str
    sweeps: tuple[tuple[str, ...], ...]
    reports: tuple[tuple[str, ...], ...]


Study = Table | Figure


def runs_of(
    table: Table,
    variant: str,
    output: Path,
    seeds: Sequence[int],
    tuned: Mapping[str, Mapping[str, Any]],
    more: Mapping[str, Any],
) -> dict[str, list[Planned]]:
    """Return the runs of a table on one kind of data, by row and in the order of the seeds."""
    experiment, of_data = table.variants[variant]
    found: dict[str, list[Planned]] = {}
    for entry in table.entries:
        study, row = entry.same_as or (table.name, entry.label)
        place = output / study / variant / folder_of(row)
        whole = {**of_data, **table.common, **entry.chosen(tuned), **entry.overrides, **more}
        if entry.rounds_divisor > 1 and isinstance(more.get("rounds"), int):
            whole["rounds"] = max(1, more["rounds"] // entry.rounds_divisor)
        found[entry.label] = [
            Planned(experiment, {**whole, "seed": seed}, place / f"seed={seed}") for seed in seeds
        ]
    return found


def having_runs(table: Table, runs: Mapping[str, Sequence[Planned]]) -> Table:
    """Return a table without the rows that have no finished run."""
    kept = (row for row in table.entries if any(run.finished for run in runs[row.label]))
    return replace(table, entries=tuple(kept))


def overridden(table: Table, more: Mapping[str, Any]) -> Table:
    """Return a table whose last remark names a user's overrides, if there are any."""
    if not more:
        return table
    given = ", ".join(f"{key}={as_text(value)}" for key, value in more.items())
    return replace(table, remarks=(*table.remarks, f"Overrides of all runs: {given}."))


def leaving_out(table: Table, labels: Sequence[str]) -> Table:
    """Return a table without some rows, which its last remark names."""
    if not labels:
        return table
    known = [row.label for row in table.entries]
    for label in labels:
        if label not in known:
            raise InputError(f"{table.name} has no row '{label}'; {closest(label, known)}")
    kept = tuple(row for row in table.entries if row.label not in labels)
    if not kept:
        raise InputError(f"--without names all rows of {table.name}; leave at least one")
    remark = f"Rows left out: {', '.join(labels)}."
    return replace(table, entries=kept, remarks=(*table.remarks, remark))
