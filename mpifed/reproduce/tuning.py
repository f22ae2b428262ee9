"""Learning rates and penalties, chosen on validation data over the paper's grids (App. I.2.3)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mpifed.reproduce.study import Entry, Planned, Table
from mpifed.results.results import read_metrics

# 10^-0.5, 10^-1, ..., 10^-3.
LEARNING_RATES = (0.316, 0.1, 0.0316, 0.01, 0.00316, 0.001)

# mu of FedProx and pFedMe, lambda of MOCHA.
PENALTIES = (10.0, 1.0, 0.1, 0.01, 0.001)

# A fifth of each client's training samples is held out while values are chosen.
VALIDATION = {"evaluation.validation_fraction": 0.2}


def grid_of(entry: Entry) -> list[dict[str, Any]]:
    """Return the combinations that are tried for a row of a table."""
    rates = {"local.lr": LEARNING_RATES} if entry.learning_rates else {}
    axes: dict[str, Sequence[float]] = {**rates, **entry.grid}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def trials_of(
    table: Table, variant: str, output: Path, seed: int, more: Mapping[str, Any]
) -> dict[str, list[tuple[dict[str, Any], Planned]]]:
    """Return the runs from which values are chosen, by row, each with the values it tries."""
    experiment, of_data = table.variants[variant]
    found: dict[str, list[tuple[dict[str, Any], Planned]]] = {}
    for entry in table.entries:
        if not entry.tuned or entry.tuned_as is not None:
            continue
        place = output / "tuning" / table.name / variant / entry.folder
        common = {**of_data, **table.common, **VALIDATION, **entry.overrides}
        if entry.tuning_rounds is not None:
            common["rounds"] = entry.tuning_rounds
            place /= f"rounds={entry.tuning_rounds}"
        found[entry.label] = [
            (
                tried,
                Planned(
                    experiment,
                    {**common, **tried, **more, "seed": seed},
                    place
                    / ",".join(f"{key.split('.')[-1]}={value:g}" for key, value in tried.items()),
                ),
            )
            for tried in grid_of(entry)
        ]
    return found


def chosen(trials: Sequence[tuple[dict[str, Any], Planned]]) -> dict[str, Any] | None:
    """Return the values with the best validation accuracy at the end; None if no run finished."""
    best: tuple[float, dict[str, Any]] | None = None
    for tried, run in trials:
        if not run.finished:
            continue
        reached = float(
            read_metrics(run.directory / "metrics.csv").numbers("validation_accuracy")[-1]
        )
        if best is None or reached > best[0]:
            best = reached, tried
    return None if best is None else best[1]


def own_file(paper: str, variant: str, output: Path) -> Path:
    """Return the file of values that were chosen in ``output``."""
    return output / f"tuned-{paper}-{variant}.yaml"


def shipped_file(paper: str, variant: str) -> Path:
    """Return the file of tuned values that mpifed comes with; there may be none."""
    return Path(__file__).parent / "tuned" / f"{paper}-{variant}.yaml"


def sources_of(table: Table, paper: str, variant: str, output: Path) -> list[str]:
    """Return the names of the files that tuned values of a table's rows are from."""
    rows = {row.tuned_as or row.label for row in table.entries if row.tuned}
    own, shipped = own_file(paper, variant, output), shipped_file(paper, variant)
    from_own = rows & {*_read(own)}
    from_shipped = (rows - from_own) & {*_read(shipped)}
    return [own.name] * bool(from_own) + [shipped.name] * bool(from_shipped)


def read_own(paper: str, variant: str, output: Path) -> dict[str, dict[str, Any]]:
    """Return the values that were chosen in ``output``, by row; none without a file."""
    return _read(own_file(paper, variant, output))


def read_tuned(paper: str, variant: str, output: Path) -> dict[str, dict[str, Any]]:
    """Return tuned values by row: those chosen in ``output``, then those that mpifed comes
    with.
    """
    return _read(shipped_file(paper, variant)) | read_own(paper, variant, output)


def _read(place: Path) -> dict[str, dict[str, Any]]:
    return (yaml.safe_load(place.read_text(encoding="utf-8")) or {}) if place.is_file() else {}


def write_tuned(path: Path, values: Mapping[str, Mapping[str, Any]], command: str) -> None:
    """Write tuned values by row as YAML."""
    text = yaml.safe_dump({key: dict(each) for key, each in values.items()}, sort_keys=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {command}\n{text}", encoding="utf-8")
