"""A grid of runs over two keys: the last values of a column, the best of each row framed.

``--grid validation_loss --x algorithm.step --by algorithm.flix_alpha`` is how Gasanov et al. choose
step sizes (2021, Figs. 5 and 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mpifed.config.experiments import safe
from mpifed.errors import InputError, closest
from mpifed.report.figure import Wanted
from mpifed.report.groups import differing, label, leaves, naturally, short
from mpifed.report.runs import Run, larger_is_better, read_columns
from mpifed.report.tables import NONE, Table, csv_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "YlGnBu"
NOT_FINITE = "#BDBDBD"
FRAME = "#D00000"
CELL = (0.62, 0.42)  # inches
MARGIN = (1.1, 1.1)  # inches around the cells, for labels and the title
DARK = 0.6  # from this share of the colours on, numbers are white
DIVERGED = "not finite"


@dataclass(frozen=True)
class Grid:
    """The values of one panel, averaged over seeds."""

    panel: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    diverged: np.ndarray
    best: np.ndarray


def grids(runs: Sequence[Run], wanted: Wanted) -> list[Grid]:
    """Return a grid for each panel, in the order of their names."""
    (by,) = wanted.by
    flat = [leaves(run.config) for run in runs]
    keys = sorted({key for said in flat for key in said})
    for option, key in (("--x", wanted.x), ("--by", by)):
        if key not in keys:
            raise InputError(f"{option} is '{key}', which no run has; {closest(key, keys)}")
    apart = differing(flat, {wanted.x, by, *wanted.aside})
    cells: dict[str, dict[tuple[str, str], list[float]]] = {}
    for run, said in zip(runs, flat, strict=True):
        if run.finished or run.diverged:
            row, column = (_number(said.get(key, "null")) for key in (by, wanted.x))
            of_panel = cells.setdefault(label(said, apart), {})
            of_panel.setdefault((row, column), []).append(_last(run, wanted.column))
    if not cells:
        raise InputError("--grid needs runs that are finished; none of these is")
    if all(math.isnan(v) for panel in cells.values() for c in panel.values() for v in c):
        raise InputError(f"no run has a finite number in the column '{wanted.column}'")
    return [_grid(panel, cells[panel], wanted) for panel in sorted(cells, key=naturally)]


def _grid(panel: str, cells: dict[tuple[str, str], list[float]], wanted: Wanted) -> Grid:
    rows, columns = (tuple(sorted({c[axis] for c in cells}, key=naturally)) for axis in (0, 1))
    values = np.full((len(rows), len(columns)), np.nan)
    diverged = np.zeros(values.shape, bool)
    for (row, column), of_seeds in cells.items():
        place = rows.index(row), columns.index(column)
        values[place] = np.mean(of_seeds)
        diverged[place] = np.isnan(values[place])
    larger = larger_is_better(wanted.column)
    known = np.where(np.isnan(values), -np.inf if larger else np.inf, values)
    best = known.argmax(axis=1) if larger else known.argmin(axis=1)
    best[np.isnan(values).all(axis=1)] = -1
    return Grid(panel, rows, columns, values, diverged, best)


def _last(run: Run, column: str) -> float:
    """The value at the last evaluated round; NaN where it is not finite or the run diverged."""
    values = read_columns(run, [column])[:, 0]
    value = float(values[-1]) if len(values) and not run.diverged else math.nan
    return value if math.isfinite(value) else math.nan


def _number(text: str) -> str:
    """Return the shortest form of a number, any other value as it is."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def grid_name(wanted: Wanted) -> str:
    """Return the name of the grid's files, without an ending."""
    words = f"{wanted.column}-grid-{short(wanted.x)}-{short(wanted.by[0])}"
    return safe(words.replace("_", "-"))


def grid_markdown(found: Sequence[Grid], wanted: Wanted) -> str:
    """Return the values as Markdown, the best of each row bold."""
    best = "largest" if larger_is_better(wanted.column) else "least"
    parts = [f"{wanted.column} at the last round; the {best} of each row is bold.\n"]
    by, x = short(wanted.by[0]), short(wanted.x)
    for grid in found:
        rows = [
            [name, *(_cell(grid, row, column) for column in range(len(grid.columns)))]
            for row, name in enumerate(grid.rows)
        ]
        panel = f"**{grid.panel}**" if grid.panel else ""
        parts.append(Table([f"{by} \\ {x}", *grid.columns], rows, 1, panel).markdown())
        edges = [grid.rows[row] for row in np.flatnonzero(_at_edge(grid))]
        parts += [f"At an edge of the grid: {by}={', '.join(edges)}.\n"] if edges else []
    return "\n".join(parts)


def grid_csv(found: Sequence[Grid], wanted: Wanted) -> str:
    """Return the values as CSV, a line for each cell."""
    rows = []
    for grid in found:
        for (row, column), value in np.ndenumerate(grid.values):
            flags = int(grid.diverged[row, column]), int(grid.best[row] == column)
            rows.append([grid.panel, grid.rows[row], grid.columns[column], float(value), *flags])
    return csv_lines(["panel", *wanted.by, wanted.x, wanted.column, "diverged", "best"], rows)


def _cell(grid: Grid, row: int, column: int) -> str:
    value = grid.values[row, column]
    if math.isnan(value):
        return DIVERGED if grid.diverged[row, column] else NONE
    return f"**{value:.4g}**" if grid.best[row] == column else f"{value:.4g}"


def _at_edge(grid: Grid) -> np.ndarray:
    """Return in which rows the best value is in the first or last column, of three or more."""
    last = len(grid.columns) - 1
    return (last > 1) & ((grid.best == 0) | (grid.best == last))


def grid_figure(found: Sequence[Grid], wanted: Wanted) -> Figure:
    """Return the grids as a figure, a panel each."""
    from matplotlib.figure import Figure

    positive = all((grid.values[np.isfinite(grid.values)] > 0).all() for grid in found)
    log = positive and not wanted.linear and not larger_is_better(wanted.column)
    width = max(len(grid.columns) for grid in found) * CELL[0] + MARGIN[0]
    heights = [len(grid.rows) * CELL[1] + MARGIN[1] for grid in found]
    figure = Figure(figsize=(width, sum(heights)), dpi=110, layout="constrained")
    panels = figure.subplots(len(found), 1, squeeze=False, height_ratios=heights)
    for grid, axes in zip(found, panels[:, 0], strict=True):
        what = f"log10 of {wanted.column}" if log else wanted.column
        axes.set_title(f"{what}, {grid.panel}" if grid.panel else what, fontsize="medium")
        _draw(axes, grid, wanted, np.log10(grid.values) if log else grid.values)
    return figure


def _draw(axes: Axes, grid: Grid, wanted: Wanted, shown: np.ndarray) -> None:
    """Draw one grid into the axes, the best of each row palest."""
    import matplotlib
    from matplotlib.patches import Rectangle

    shown = np.where(np.isfinite(shown), shown, np.nan)
    colours = matplotlib.colormaps[COLOURS]
    for row, of_row in enumerate(shown):
        known = of_row[np.isfinite(of_row)]
        low, spread = (known.min(), np.ptp(known) or 1.0) if len(known) else (0.0, 1.0)
        for column, value in enumerate(of_row):
            share = (value - low) / spread
            share = 1 - share if larger_is_better(wanted.column) else share
            plain = NOT_FINITE if grid.diverged[row, column] else "white"
            face = plain if math.isnan(value) else colours(0.85 * share)
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor="white"))
            if math.isfinite(value):
                axes.text(column + 0.5, row + 0.5, f"{value:.2f}", ha="center", va="center",
                          fontsize="small", color="white" if share > DARK else "black")  # fmt: skip
        if grid.best[row] >= 0:
            corner = (grid.best[row] + 0.04, row + 0.04)
            axes.add_patch(
                Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=FRAME, linewidth=2, zorder=3)
            )
    axes.set_xlim(0, len(grid.columns))
    axes.set_ylim(len(grid.rows), 0)
    axes.set_xticks(np.arange(len(grid.columns)) + 0.5, grid.columns, fontsize="small")
    axes.set_yticks(np.arange(len(grid.rows)) + 0.5, grid.rows, fontsize="small")
    axes.set_xlabel(short(wanted.x))
    axes.set_ylabel(short(wanted.by[0]))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
