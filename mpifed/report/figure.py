"""A chart of any column of metrics.csv: a line for each value of some keys, panels for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpifed.config.experiments import safe
from mpifed.errors import InputError, closest
from mpifed.report.charts import ROUNDS, Chart, Line
from mpifed.report.groups import differing, label, leaves, naturally, short
from mpifed.report.looks import look
from mpifed.report.runs import COLUMNS, MEASURES, Run, larger_is_better, read_columns

# Where a logarithmic axis ends: gaps of float64 below it are noise.
FLOOR = 1e-16
MOST = 12  # lines in a panel

# Values of x that are not keys, each with its column and the label of the axis.
PROGRESS = {
    ROUNDS: ("round", "communication round"),
    "bits": ("up_bits", "bits sent by all clients"),
    "floats": ("up_floats", "numbers sent by all clients"),
    "simulated_seconds": ("simulated_seconds", "seconds of the simulated federation"),
}


@dataclass(frozen=True)
class Wanted:
    """What --figure or --grid and their options ask for."""

    column: str
    x: str = ROUNDS
    by: tuple[str, ...] = ()
    linear: bool = False
    aside: tuple[str, ...] = ()
    until: float | None = None


@dataclass(frozen=True)
class Series:
    """The points of one line, averaged over seeds; x is NaN for a level line."""

    panel: str
    line: str
    x: np.ndarray
    y: np.ndarray


def file_name(wanted: Wanted) -> str:
    """Return the name of the figure's file, without an ending, another for each request."""
    words = [wanted.column, wanted.x, *(["by", *map(short, wanted.by)] if wanted.by else [])]
    words += ["aside", *map(short, wanted.aside)] if wanted.aside else []
    words += [f"until-{wanted.until:g}"] if wanted.until is not None else []
    words += ["linear"] if wanted.linear else []
    if wanted.column in (*COLUMNS, *MEASURES) and wanted.x in PROGRESS and len(words) == 2:
        words.append("figure")  # for the report has a picture of the plain name
    return safe("-".join(words).replace("_", "-").replace(".", "-"))


def series(runs: Sequence[Run], wanted: Wanted) -> list[Series]:
    """Return the lines that ``wanted`` asks for, averaged over seeds, in the order of the runs."""
    flat = [leaves(run.config) for run in runs]
    _check_keys(flat, wanted)
    apart = differing(flat, {*wanted.by, wanted.x, *wanted.aside})
    found: dict[tuple[str, str], dict[str, list[tuple[np.ndarray, np.ndarray]]]] = {}
    for run, said in zip(runs, flat, strict=True):
        panel, line = label(said, apart), label(said, wanted.by)
        by_key = wanted.x not in PROGRESS
        point = said.get(wanted.x, "") if by_key else ""
        points = _points(run, wanted, float(point or "nan") if by_key else None)
        found.setdefault((panel, line), {}).setdefault(point, []).append(points)
    made = []
    for (panel, line), by_point in found.items():
        means = [_mean(parts) for parts in by_point.values()]
        x, y = (np.concatenate([m[axis] for m in means]) for axis in (0, 1))
        order = np.argsort(x, kind="stable")
        made.append(Series(panel, line, x[order], y[order]))
    return made


def _check_keys(flat: Sequence[Mapping[str, str]], wanted: Wanted) -> None:
    keys = sorted({key for said in flat for key in said})
    for option, key, known in (
        *(("--by", key, keys) for key in wanted.by),
        ("--x", wanted.x, [*PROGRESS, *keys]),
    ):
        if key not in known:
            raise InputError(f"{option} is '{key}', which no run has; {closest(key, known)}")
    if wanted.x in PROGRESS:
        return
    if wanted.until is not None:
        raise InputError(
            f"--until is {wanted.until:g}, but --x is the key '{wanted.x}'; it goes with "
            f"{', '.join(PROGRESS)}"
        )
    for said in flat:
        try:
            float(said.get(wanted.x, "nan"))
        except ValueError:
            raise InputError(
                f"--x is '{wanted.x}', which is {said[wanted.x]} in a run; it must be a number in "
                "all that have it"
            ) from None


def _points(run: Run, wanted: Wanted, key: float | None) -> tuple[np.ndarray, np.ndarray]:
    """All points of a run, or its last value where x is a key; both (points,)."""
    columns = [wanted.column] if key is not None else [wanted.column, PROGRESS[wanted.x][0]]
    table = read_columns(run, columns)
    table = table[np.isfinite(table[:, 0])]
    if not len(table):
        raise InputError(f"'{run.path}' has no number in the column '{wanted.column}'")
    if key is not None:
        return np.array([key]), table[-1:, 0]
    if wanted.until is not None:
        table = table[table[:, 1] <= wanted.until]
    return table[:, 1], table[:, 0]


def _mean(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds, over as many points as all have."""
    shortest = min(len(x) for x, _ in parts)
    x, y = (np.mean([part[axis][:shortest] for part in parts], axis=0) for axis in (0, 1))
    return x, y


def chart_of(every: Sequence[Series], wanted: Wanted) -> Chart:
    """Return the chart: a panel for each title, in which lines of one name look alike."""
    names = sorted({s.line for s in every}, key=naturally)
    known = np.concatenate([s.x[np.isfinite(s.x)] for s in every])
    ends = np.array([known.min(), known.max()] if len(known) else [0.0, 1.0])
    lines = []
    for s in sorted(every, key=lambda s: (naturally(s.panel), names.index(s.line))):
        level = np.isnan(s.x).all()
        x, y = (ends, np.repeat(s.y[:1], 2)) if level else (s.x, s.y)
        y = y if wanted.linear else np.maximum(y, FLOOR)
        style = look(names.index(s.line))
        lines.append(Line(x, y, np.zeros_like(y), s.line, style, s.line, s.panel))
    marks = {}
    if wanted.x not in PROGRESS and not wanted.by:
        keyed = [s for s in every if np.isfinite(s.x).any()]
        marks = {s.panel: (best(s, wanted.column), "best") for s in keyed}
    x_label = PROGRESS[wanted.x][1] if wanted.x in PROGRESS else wanted.x
    return Chart(file_name(wanted), wanted.x, wanted.column, "", x_label, tuple(lines),
                 y_log=not wanted.linear, marks=marks, most=MOST)  # fmt: skip


def best(s: Series, column: str) -> float:
    """Return the x of the best value of a line, the first of equal ones."""
    return float(s.x[np.argmax(s.y) if larger_is_better(column) else np.argmin(s.y)])
