"""Tables and figures of a paper, read from ``experiments/PAPER.yaml``: the runs they need, and how
learning rates and penalties are tuned on validation data (App. I.2.3 of Marfoq et al. 2021).
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mpifed.errors import InputError, closest
from mpifed.io.yaml_files import as_text
from mpifed.results.results import read_metrics

EXPERIMENTS = Path(__file__).parent

# 10^-0.5, 10^-1, ..., 10^-3.
LEARNING_RATES = (0.316, 0.1, 0.0316, 0.01, 0.00316, 0.001)

# A fifth of each client's training samples is held out while values are chosen.
VALIDATION = {"evaluation.validation_fraction": 0.2}


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
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    learning_rates: Sequence[float] | None = None  # None: LEARNING_RATES
    tuning_rounds: int | None = None
    tuned_as: str | None = None
    rounds_divisor: int = 1
    same_as: tuple[str, str] | None = None

    def chosen(self, tuned: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return its values among the tuned ones, by label."""
        return tuned.get(self.tuned_as or self.label, {})

    def trials(self, fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the combinations of values that tuning tries, without those that are fixed."""
        rates = LEARNING_RATES if self.learning_rates is None else self.learning_rates
        axes = {**({"local.lr": rates} if rates else {}), **self.grid}
        axes = {key: values for key, values in axes.items() if key not in fixed}
        return [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]


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


# Runs by row, in the order of the seeds.
Runs = Mapping[str, Sequence[Planned]]


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper on one kind of data or more: by kind, its experiment and overrides."""

    name: str
    title: str
    data: Mapping[str, Mapping[str, Any]]
    entries: tuple[Entry, ...]
    columns: tuple[str, ...] = ("average", "p10", "std")
    common: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    remarks: tuple[str, ...] = ()
    additions: tuple[Callable[[Runs], str], ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure of a paper as commands: sweeps, to whose words ``common`` is added, then reports."""

    name: str
    title: str
    sweeps: Sequence[Sequence[str]]
    reports: Sequence[Sequence[str]]
    common: Sequence[str] = ()


Study = PaperTable | Figure


def papers() -> list[str]:
    """Return the names of the papers that have a file."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


def studies(paper: str) -> dict[str, Study]:
    """Return the tables and figures of a paper, by name."""
    text = (EXPERIMENTS / f"{paper}.yaml").read_text(encoding="utf-8")
    written = yaml.safe_load(text)
    rows = written.pop("rows", {})
    return {
        name: Figure(name, **of) if "sweeps" in of else _table(paper, name, rows, **of)
        for name, of in written.items()
    }


def _table(
    paper: str,
    name: str,
    shared_rows: Mapping[str, Mapping[str, Any]],
    *,
    rows: Mapping[str, Mapping[str, Any] | None],
    published: Mapping[str, Sequence[float]] | None = None,
    additions: Sequence[str] = (),
    **others: Any,
) -> PaperTable:
    entries = []
    for label, changes in rows.items():
        options = dict(changes or {})
        base = shared_rows[options.pop("like", label)]
        overrides = {**base["overrides"], **options.pop("overrides", {})}
        values = {**base, **options, "overrides": overrides}
        values["published"] = tuple((published or {}).get(label, ()))
        if "same_as" in values:
            values["same_as"] = tuple(values["same_as"])
        entries.append(Entry(label, **values))
    for key in ("columns", "seeds", "remarks"):
        if key in others:
            others[key] = tuple(others[key])
    script = importlib.import_module(f"mpifed.reproduce.experiments.{paper}") if additions else None
    texts = tuple(getattr(script, each) for each in additions)
    return PaperTable(name, entries=tuple(entries), additions=texts, **others)


def runs_of(
    table: PaperTable,
    kind: str,
    output: Path,
    seeds: Sequence[int],
    tuned: Mapping[str, Mapping[str, Any]],
    changes: Mapping[str, Any],
) -> dict[str, list[Planned]]:
    """Return the runs of a table on one kind of data, by row and in the order of the seeds."""
    runs: dict[str, list[Planned]] = {}
    for entry in table.entries:
        study, row = entry.same_as or (table.name, entry.label)
        folder = output / study / kind / folder_of(row)
        chosen = {**entry.chosen(tuned), **entry.overrides, **changes}
        if entry.rounds_divisor > 1 and isinstance(changes.get("rounds"), int):
            chosen["rounds"] = max(1, changes["rounds"] // entry.rounds_divisor)
        runs[entry.label] = [
            _planned(table, kind, {**chosen, "seed": seed}, folder / f"seed={seed}")
            for seed in seeds
        ]
    return runs


def trials_of(
    table: PaperTable, kind: str, output: Path, seed: int, changes: Mapping[str, Any]
) -> dict[str, list[tuple[dict[str, Any], Planned]]]:
    """Return the runs from which values are chosen, by row, each with the values it tries."""
    trials: dict[str, list[tuple[dict[str, Any], Planned]]] = {}
    for entry in table.entries:
        tries = entry.trials(table.data[kind])
        if entry.tuned_as is not None or tries == [{}]:
            continue
        folder = output / "tuning" / table.name / kind / folder_of(entry.label)
        common = {**VALIDATION, **entry.overrides}
        if entry.tuning_rounds is not None:
            common["rounds"] = entry.tuning_rounds
            folder /= f"rounds={entry.tuning_rounds}"
        trials[entry.label] = []
        for tried in tries:
            name = ",".join(f"{key.split('.')[-1]}={value:g}" for key, value in tried.items())
            overrides = {**common, **tried, **changes, "seed": seed}
            trials[entry.label].append((tried, _planned(table, kind, overrides, folder / name)))
    return trials


def _planned(
    table: PaperTable, kind: str, overrides: Mapping[str, Any], directory: Path
) -> Planned:
    of_data = dict(table.data[kind])
    experiment = of_data.pop("experiment")
    return Planned(experiment, {**of_data, **table.common, **overrides}, directory)


def best_values(trials: Sequence[tuple[dict[str, Any], Planned]]) -> dict[str, Any] | None:
    """Return the values with the best validation accuracy at the end; None if no run finished."""
    best: tuple[float, dict[str, Any]] | None = None
    for tried, run in trials:
        if not run.finished:
            continue
        scores = read_metrics(run.directory / "metrics.csv").numbers("validation_accuracy")
        if best is None or scores[-1] > best[0]:
            best = float(scores[-1]), tried
    return None if best is None else best[1]


def tuned_file(paper: str, kind: str, output: Path) -> Path:
    """Return the file of values that were chosen in ``output``."""
    return output / f"tuned-{paper}-{kind}.yaml"


def read_values(path: Path) -> dict[str, dict[str, Any]]:
    """Return tuned values by row; none without a file."""
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def read_tuned(
    table: PaperTable, paper: str, kind: str, output: Path
) -> tuple[dict[str, Any], str]:
    """Return tuned values by row, those chosen in ``output`` first, and the files they are from."""
    files = (EXPERIMENTS / "tuned" / f"{paper}-{kind}.yaml", tuned_file(paper, kind, output))
    shipped, chosen = map(read_values, files)
    rows = {row.tuned_as or row.label for row in table.entries}
    used = [files[1].name] * bool(rows & {*chosen})
    used += [files[0].name] * bool((rows - {*chosen}) & {*shipped})
    return shipped | chosen, " and ".join(used)


def write_tuned(path: Path, values: Mapping[str, Mapping[str, Any]], command: str) -> None:
    """Write tuned values by row as YAML."""
    text = yaml.safe_dump({key: dict(each) for key, each in values.items()}, sort_keys=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {command}\n{text}", encoding="utf-8")


def narrowed(table: PaperTable, changes: Mapping[str, Any], without: Sequence[str]) -> PaperTable:
    """Return a table without some rows; its last remarks name them and a user's overrides."""
    remarks = list(table.remarks)
    if changes:
        written = ", ".join(f"{key}={as_text(value)}" for key, value in changes.items())
        remarks.append(f"Overrides of all runs: {written}.")
    labels = [row.label for row in table.entries]
    for label in without:
        if label not in labels:
            raise InputError(f"{table.name} has no row '{label}'; {closest(label, labels)}")
    entries = tuple(row for row in table.entries if row.label not in without)
    if not entries:
        raise InputError(f"--without names all rows of {table.name}; leave at least one")
    if without:
        remarks.append(f"Rows left out: {', '.join(without)}.")
    return replace(table, entries=entries, remarks=tuple(remarks))
