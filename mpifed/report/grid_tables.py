"""The values of a grid as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpifed.report.columns import larger_is_better
from mpifed.report.keys import short
from mpifed.report.tables import markdown_header, markdown_row

EMPTY = "–"

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


@dataclass(frozen=True)
class WantedGrid:
    """A grid to draw."""

    column: str
    x: str
    by: str
    linear: bool = False
    aside: tuple[str, ...] = ()


def markdown(found: Sequence[Grid], wanted: WantedGrid) -> str:
    """Return the values as Markdown, the best of each row bold."""
    least = "largest" if larger_is_better(wanted.column) else "least"
    lines = [f"{wanted.column} at the last round; the {least} of each row is bold."]
    for grid in found:
        lines += ["", *([f"**{grid.panel}**", ""] if grid.panel else [])]
        lines += markdown_header([f"{short(wanted.by)} \\ {short(wanted.x)}", *grid.columns], 1)
        for row, name in enumerate(grid.rows):
            cells = [_cell(grid, row, column) for column in range(len(grid.columns))]
            lines.append(markdown_row([name, *cells]))
        edges = [grid.rows[row] for row in np.flatnonzero(_at_edge(grid))]
        if edges:
            lines += ["", f"At an edge of the grid: {short(wanted.by)}={', '.join(edges)}."]
    return "\n".join(lines) + "\n"


def csv_text(found: Sequence[Grid], wanted: WantedGrid) -> str:
    """Return the values as CSV, a line for each cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["panel", wanted.by, wanted.x, wanted.column, "diverged", "best"])
    for grid in found:
        for (row, column), value in np.ndenumerate(grid.values):
            shown = "" if math.isnan(value) else f"{value:.10g}"
            flags = int(grid.diverged[row, column]), int(grid.best[row] == column)
            writer.writerow([grid.panel, grid.rows[row], grid.columns[column], shown, *flags])
    return text.getvalue()


def _cell(grid: Grid, row: int, column: int) -> str:
    value = grid.values[row, column]
    if math.isnan(value):
        return DIVERGED if grid.diverged[row, column] else EMPTY
    return f"**{value:.4g}**" if grid.best[row] == column else f"{value:.4g}"


def _at_edge(grid: Grid) -> np.ndarray:
    """Return in which rows the best value is in the first or last column, of three or more."""
    last = len(grid.columns) - 1
    return (last > 1) & ((grid.best == 0) | (grid.best == last))
