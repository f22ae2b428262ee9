"""One figure of any column of metrics.csv: a line for each value of some keys, panels for the
rest.

What --figure and its options ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifed.config.experiments import safe
from mpifed.errors import InputError, closest
from mpifed.report.drawing import FEW_POINTS, GREY, Pictures, save
from mpifed.report.groups import differing, label, naturally, short
from mpifed.report.looks import look
from mpifed.report.names import leaves
from mpifed.report.runs import COLUMNS, MEASURES, Run, larger_is_better, read_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Values of x that are not keys, each with its column and the label of the axis.
PROGRESS = {
    "rounds": ("round", "communication round"),
    "bits": ("up_bits", "bits sent by all clients"),
    "floats": ("up_floats", "numbers sent by all clients"),
    "simulated_seconds": ("simulated_seconds", "seconds of the simulated federation"),
}


@dataclass(frozen=True)
class Wanted:
    """A figure to draw."""

    column: str
    x: str = "rounds"
    by: tuple[str, ...] = ()
    linear: bool = False
    aside: tuple[str, ...] = ()
    until: float | None = None


def file_name(wanted: Wanted) -> str:
    """Return the name of the figure's file, without an ending, another for each request."""
    words = [wanted.column, wanted.x, *(["by", *map(short, wanted.by)] if wanted.by else [])]
    words += ["aside", *map(short, wanted.aside)] if wanted.aside else []
    words += [f"until-{wanted.until:g}"] if wanted.until is not None else []
    words += ["linear"] if wanted.linear else []
    own = wanted.column in (*COLUMNS, *MEASURES) and wanted.x in PROGRESS and len(words) == 2
    return safe(
        "-".join([*words, *(["figure"] if own else [])]).replace("_", "-").replace(".", "-")
    )


# Where a logarithmic axis ends: gaps of float64 below it are noise.
FLOOR = 1e-16


ACROSS = 3  # panels in a row
DOTS = 110  # an inch
PANEL = (4.2, 3.1)  # inches
MARGIN = 0.03  # of the x that are drawn, where --until sets them
TICKS = 4  # intervals between numbers on x, at most


@dataclass(frozen=True)
class Series:
    """The points of one line, averaged over seeds."""

    panel: str
    line: str
    x: np.ndarray
    y: np.ndarray


def draw_figure(
    every: Sequence[Series], wanted: Wanted, output: Path, made: Pictures | None = None
) -> list[Path]:
    """Draw ``series`` and save the figure."""
    import matplotlib

    matplotlib.use("Agg")
    made = made or Pictures()
    with matplotlib.rc_context(made.style()):
        return save(_figure(every, wanted), output, file_name(wanted), made, DOTS)


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
    for option, key in [*(("--by", key) for key in wanted.by), ("--x", wanted.x)]:
        if key not in keys and not (option == "--x" and key in PROGRESS):
            words = [*PROGRESS, *keys] if option == "--x" else keys
            raise InputError(f"{option} is '{key}', which no run has; {closest(key, words)}")
    if wanted.x not in PROGRESS:
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
                    f"--x is '{wanted.x}', which is {said[wanted.x]} in a run; it must be a number "
                    "in all that have it"
                ) from None


def _points(run: Run, wanted: Wanted, key: float | None) -> tuple[np.ndarray, np.ndarray]:
    """All points of a run, or its last value where x is a key; both (points,)."""
    columns = [wanted.column] if key is not None else [wanted.column, PROGRESS[wanted.x][0]]
    table = read_columns(run, columns)
    table = table[np.isfinite(table[:, 0])]
    if not len(table):
        raise InputError(f"'{run.path}' has no number in the column '{wanted.column}'")
    if key is None:
        if wanted.until is not None:
            table = table[table[:, 1] <= wanted.until]
        return table[:, 1], table[:, 0]
    return np.array([key]), table[-1:, 0]


def _mean(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds, over as many points as all have."""
    shortest = min(len(x) for x, _ in parts)
    x, y = (np.mean([part[axis][:shortest] for part in parts], axis=0) for axis in (0, 1))
    return x, y


def _figure(every: Sequence[Series], wanted: Wanted) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = sorted({s.panel for s in every}, key=naturally)
    lines = sorted({s.line for s in every}, key=naturally)
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(PANEL[0] * across, PANEL[1] * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for panel, axes in zip(panels, grid.flat, strict=False):
        axes.set_title(panel, fontsize=10, pad=6)
        shown = sorted((s for s in every if s.panel == panel), key=lambda s: lines.index(s.line))
        for s in shown:
            _draw(axes, s, lines.index(s.line), wanted)
        if wanted.x in PROGRESS:
            # Numbers sent are long ones, and a panel is narrow.
            axes.xaxis.set_major_locator(MaxNLocator(TICKS, integer=wanted.x == "rounds"))
            if wanted.until is not None:
                axes.set_xlim(-MARGIN * wanted.until, (1 + MARGIN) * wanted.until)
        axes.set_xlabel(PROGRESS[wanted.x][1] if wanted.x in PROGRESS else wanted.x)
        if not wanted.linear:
            axes.set_yscale("log")
    for axes in grid[:, 0]:
        axes.set_ylabel(wanted.column)
    named: dict[str, Any] = {}
    for axes in grid.flat[: len(panels)]:
        drawn, names = axes.get_legend_handles_labels()
        named |= {name: line for line, name in zip(drawn, names, strict=True)}
    named = {line: named[line] for line in lines if line in named}
    if len(lines) > 1:
        figure.legend(
            list(named.values()),
            list(named),
            loc="outside lower center",
            ncols=min(2 * across, len(lines)),
            frameon=False,
        )
    return figure


def _draw(axes: Axes, s: Series, index: int, wanted: Wanted) -> None:
    style = look(index)
    y = s.y if wanted.linear else np.maximum(s.y, FLOOR)
    if np.isnan(s.x).all():
        level = {"color": style.colour, "linestyle": style.dashes, "label": s.line}
        axes.axhline(float(y[0]), linewidth=1.5, **level)
        return
    marker = "o" if len(s.x) <= FEW_POINTS else None
    axes.plot(s.x, y, color=style.colour, linestyle=style.dashes, marker=marker, label=s.line,
              linewidth=1.5)  # fmt: skip
    if wanted.x not in PROGRESS and not wanted.by:
        axes.axvline(best(s, wanted.column), color=GREY, linewidth=1, linestyle=(0, (2, 2)))


def best(s: Series, column: str) -> float:
    """Return the x of the best value of a line, the first of equal ones."""
    return float(s.x[np.argmax(s.y) if larger_is_better(column) else np.argmin(s.y)])
