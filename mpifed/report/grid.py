"""A grid of runs over two keys: the last values of a column, the best of each row framed. ``--grid
validation_loss --x algorithm.step --by algorithm.flix_alpha`` is how Gasanov et al. choose step
sizes (2021, Figs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpifed.config.experiments import safe
from mpifed.errors import InputError, closest
from mpifed.report.drawing import Pictures, save
from mpifed.report.figure import DOTS
from mpifed.report.groups import differing, label, naturally, short
from mpifed.report.names import leaves
from mpifed.report.runs import Run, larger_is_better, read_columns
from mpifed.report.tables import Grid, WantedGrid
from mpifed.report.tables import grid_csv as csv_text
from mpifed.report.tables import grid_markdown as markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "YlGnBu"
NOT_FINITE = "#BDBDBD"
FRAME = "#D00000"
CELL = (0.62, 0.42)  # inches
MARGIN = (1.1, 1.1)  # inches around the cells, for labels and the title
DARK = 0.6  # from this share of the colours on, numbers are white


def draw_grid(
    found: Sequence[Grid], wanted: WantedGrid, output: Path, made: Pictures | None = None
) -> tuple[list[Path], str]:
    """Write the figure and the tables of ``grids``."""
    import matplotlib

    matplotlib.use("Agg")
    text = markdown(found, wanted)
    made = made or Pictures()
    name = safe(f"{wanted.column}-grid-{short(wanted.x)}-{short(wanted.by)}".replace("_", "-"))
    tables = [output / f"{name}.md", output / f"{name}.csv"]
    with matplotlib.rc_context(made.style()):
        pictures = save(_figure(found, wanted), output, name, made, DOTS)
    for path, content in zip(tables, (text, csv_text(found, wanted)), strict=True):
        path.write_text(content, encoding="utf-8")
    return [*tables, *pictures], text


def grids(runs: Sequence[Run], wanted: WantedGrid) -> list[Grid]:
    """Return a grid for each panel, in the order of their names."""
    flat = [leaves(run.config) for run in runs]
    keys = sorted({key for said in flat for key in said})
    for option, key in (("--x", wanted.x), ("--by", wanted.by)):
        if key not in keys:
            raise InputError(f"{option} is '{key}', which no run has; {closest(key, keys)}")
    apart = differing(flat, {wanted.x, wanted.by, *wanted.aside})
    cells: dict[str, dict[tuple[str, str], list[float]]] = {}
    for run, said in zip(runs, flat, strict=True):
        if run.finished or run.diverged:
            place = tuple(_number(said.get(key, "null")) for key in (wanted.by, wanted.x))
            of_panel = cells.setdefault(label(said, apart), {})
            of_panel.setdefault((place[0], place[1]), []).append(_last(run, wanted.column))
    if not cells:
        raise InputError("--grid needs runs that are finished; none of these is")
    if all(math.isnan(v) for panel in cells.values() for c in panel.values() for v in c):
        raise InputError(f"no run has a finite number in the column '{wanted.column}'")
    return [_grid(panel, cells[panel], wanted) for panel in sorted(cells, key=naturally)]


def _grid(panel: str, cells: dict[tuple[str, str], list[float]], wanted: WantedGrid) -> Grid:
    rows, columns = (tuple(sorted({c[axis] for c in cells}, key=naturally)) for axis in (0, 1))
    values = np.full((len(rows), len(columns)), np.nan)
    diverged = np.zeros(values.shape, bool)
    for (row, column), of_seeds in cells.items():
        place = rows.index(row), columns.index(column)
        values[place] = np.mean(of_seeds)
        diverged[place] = np.isnan(values[place])
    worst = -np.inf if larger_is_better(wanted.column) else np.inf
    known = np.where(np.isnan(values), worst, values)
    best = known.argmax(axis=1) if larger_is_better(wanted.column) else known.argmin(axis=1)
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


def _figure(found: Sequence[Grid], wanted: WantedGrid) -> Figure:
    from matplotlib.figure import Figure

    positive = all((grid.values[np.isfinite(grid.values)] > 0).all() for grid in found)
    log = positive and not wanted.linear and not larger_is_better(wanted.column)
    width = max(len(grid.columns) for grid in found) * CELL[0] + MARGIN[0]
    heights = [len(grid.rows) * CELL[1] + MARGIN[1] for grid in found]
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    panels = figure.subplots(len(found), 1, squeeze=False, height_ratios=heights)
    for grid, axes in zip(found, panels[:, 0], strict=True):
        what = f"log10 of {wanted.column}" if log else wanted.column
        axes.set_title(f"{what}, {grid.panel}" if grid.panel else what, fontsize=10, pad=6)
        _draw(axes, grid, wanted, np.log10(grid.values) if log else grid.values)
    return figure


def _draw(axes: Axes, grid: Grid, wanted: WantedGrid, shown: np.ndarray) -> None:
    """Draw one grid into the axes, the best of each row palest."""
    import matplotlib
    from matplotlib.patches import Rectangle

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
                          fontsize=9, color="white" if share > DARK else "black")  # fmt: skip
        if grid.best[row] >= 0:
            corner = (grid.best[row] + 0.04, row + 0.04)
            axes.add_patch(
                Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=FRAME, linewidth=2, zorder=3)
            )
    axes.grid(visible=False)
    axes.set_xlim(0, len(grid.columns))
    axes.set_ylim(len(grid.rows), 0)
    axes.set_xticks(np.arange(len(grid.columns)) + 0.5, grid.columns, fontsize=9)
    axes.set_yticks(np.arange(len(grid.rows)) + 0.5, grid.rows, fontsize=9)
    axes.set_xlabel(short(wanted.x))
    axes.set_ylabel(short(wanted.by))
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
