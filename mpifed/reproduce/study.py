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
    """Return the name of the folder of a row.

    Parameters
    ----------
    label : str
        What the row is called.

    Examples
    --------
    >>> folder_of("FedAvg+ (20 %)")
    'fedavg-plus-20'
    """
    plain = label.lower().replace("+", " plus ")
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


@dataclass(frozen=True)
class Entry:
    """One row of a table: a method with its options.

    Attributes
    ----------
    label : str
        What the row is called.
    overrides : mapping
        Values by dotted key, beside those of the table.
    published : tuple of float
        What the paper has in this row, in per cent, one number for each of the table's columns that
        it prints; empty where it has no such row.
    tuned : bool
        Whether tuned values of this row apply.
    grid : mapping of str to sequence of float
        What is tuned beside the learning rate.
    learning_rates : bool
        Whether learning rates are tuned.
    tuning_rounds : int, optional
        Rounds of the runs from which values are chosen; None is those of the table.
    tuned_as : str, optional
        Label of the row whose tuned values this one takes, instead of being tuned itself.
    rounds_divisor : int
        What a user's number of rounds is divided by for this row.
    same_as : (str, str), optional
        The table and the label of the row whose runs these are: they have the same settings.
    """

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
        """Return its values among the tuned ones, by label; none for a row that takes none.

        Parameters
        ----------
        tuned : mapping
            Overrides by label of the row.

        Examples
        --------
        >>> row = Entry("FedEM, half of the clients", {}, tuned_as="FedEM")
        >>> row.chosen({"FedEM": {"local.lr": 0.3}})
        {'local.lr': 0.3}
        """
        return tuned.get(self.tuned_as or self.label, {}) if self.tuned else {}


@dataclass(frozen=True)
class Planned:
    """One run of a table.

    Attributes
    ----------
    experiment : str
        A shipped experiment.
    overrides : dict
        All its overrides, by dotted key.
    directory : Path
        Its run directory.
    """

    experiment: str
    overrides: dict[str, Any]
    directory: Path

    @property
    def finished(self) -> bool:
        """Whether the run directory has a file DONE."""
        return (self.directory / "DONE").exists()


@dataclass(frozen=True)
class Table:
    """A table of a paper on one kind of data.

    Attributes
    ----------
    name : str
        Such as ``table-2``.
    title : str
        The heading of its page.
    variants : mapping of str to (str, mapping)
        The kinds of data: an experiment and overrides for each.
    entries : tuple of Entry
        Its rows.
    columns : tuple of str
        Measures, names of ``page.MEASURES``.
    common : mapping
        Overrides for all runs.
    seeds : tuple of int
        Seeds of the runs.
    remarks : tuple of str
        Sentences below the table.
    extras : tuple of callable
        What else the page shows of the runs, which are given by row: each returns Markdown.
    """

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
    """A figure of a paper as commands: sweeps, then reports on them.

    Attributes
    ----------
    name, title : str
        As for a table.
    sweeps : tuple of tuple of str
        Words of ``python -m mpifed.sweep``; ``{output}`` is the folder of the study.
    reports : tuple of tuple of str
        Words of ``python -m mpifed.report``, likewise.
    """

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
    """Return the runs of a table on one kind of data, by row and in the order of the seeds.

    Parameters
    ----------
    table : Table
        The table.
    variant : str
        A key of its ``variants``.
    output : Path
        The folder of all studies; runs are in ``output/name/variant/row/seed=S``, with the name
        and the row that ``same_as`` has where it is given.
    seeds : sequence of int
        Seeds of the runs.
    tuned : mapping
        Overrides by label of the row: tuned learning rates.
    more : mapping
        A user's overrides, which win.
    """
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
    """Return a table without the rows that have no finished run.

    Parameters
    ----------
    table : Table
        The table.
    runs : mapping of str to sequence of Planned
        Its runs, by label.
    """
    kept = (row for row in table.entries if any(run.finished for run in runs[row.label]))
    return replace(table, entries=tuple(kept))


def overridden(table: Table, more: Mapping[str, Any]) -> Table:
    """Return a table whose last remark names a user's overrides, if there are any.

    Parameters
    ----------
    table : Table
        The table.
    more : mapping
        The overrides.

    Examples
    --------
    >>> overridden(Table("table-9", "A table", {}, ()), {"rounds": 2, "clients": 5}).remarks
    ('Overrides of all runs: rounds=2, clients=5.',)
    """
    if not more:
        return table
    given = ", ".join(f"{key}={as_text(value)}" for key, value in more.items())
    return replace(table, remarks=(*table.remarks, f"Overrides of all runs: {given}."))


def leaving_out(table: Table, labels: Sequence[str]) -> Table:
    """Return a table without some rows, which its last remark names.

    Parameters
    ----------
    table : Table
        The table.
    labels : sequence of str
        What the rows are called.

    Raises
    ------
    InputError
        For a label that no row has.

    Examples
    --------
    >>> table = Table("table-9", "A table", {}, (Entry("FedAvg", {}), Entry("FedEM", {})))
    >>> left = leaving_out(table, ["FedAvg"])
    >>> [row.label for row in left.entries], left.remarks
    (['FedEM'], ('Rows left out: FedAvg.',))
    """
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
