"""Tables and figures as data: which runs they need, and what was published."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
    """

    label: str
    overrides: Mapping[str, Any]
    published: tuple[float, ...] = ()
    tuned: bool = True
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    learning_rates: bool = True

    @property
    def folder(self) -> str:
        """The name of its folder.

        Examples
        --------
        >>> Entry("FedAvg+ (20 %)", {}).folder
        'fedavg-plus-20'
        """
        plain = self.label.lower().replace("+", " plus ")
        return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


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
        The folder of all studies; runs are in ``output/name/variant/row/seed=S``.
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
        place = output / table.name / variant / entry.folder
        chosen = tuned.get(entry.label, {}) if entry.tuned else {}
        whole = {**of_data, **table.common, **chosen, **entry.overrides, **more}
        found[entry.label] = [
            Planned(experiment, {**whole, "seed": seed}, place / f"seed={seed}") for seed in seeds
        ]
    return found
