"""``python -m mpifed.report RUN_DIR ... --output DIR``: tables and plots from run directories."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mpifed.command import carried_out, program
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FINISHED, InputError, complain, text_of
from mpifed.report import paired
from mpifed.report.charts import drawn
from mpifed.report.figure import draw_figure, series
from mpifed.report.grid import draw_grid, grids
from mpifed.report.groups import Group, group_runs
from mpifed.report.options import (
    against_wanted,
    figure_wanted,
    grid_wanted,
    names_wanted,
    parser,
    pictures_wanted,
)
from mpifed.report.page.document import page
from mpifed.report.plots import check_texts, draw
from mpifed.report.reading import find_runs
from mpifed.report.tables import csv_text, markdown, terminal

PLAIN_WIDTH = 120  # columns where the output is not a terminal


def main(words: Sequence[str] | None = None) -> int:
    """Run ``python -m mpifed.report``."""
    try:
        options = parser(__doc__).parse_args(words)
        found = find_runs(options.run_dirs)
        groups, notes = group_runs(found)
        tables = {"table.md": markdown(groups, notes), "table.csv": csv_text(groups)}
        against = against_wanted(options, groups)
        comparison = compare(groups, against, options.target)
        output = options.output
        wanted, wanted_grid = figure_wanted(options), grid_wanted(options)
        made = pictures_wanted(options)
        how = drawn(groups, names_wanted(options, groups))
        # Before anything is written, for they may refuse what is asked for.
        lines = series(found, wanted) if wanted is not None else []
        panels = grids(found, wanted_grid) if wanted_grid is not None else []
        files, grid = [], ""
        if output is not None:
            check_texts(made, groups, how, against)
            repeated = [*program("report").split(), *(sys.argv[1:] if words is None else words)]
            texts = {"report.html": page(groups, notes, how, against, repeated)}
            files = write(texts | tables | comparison, output)
            files += draw(groups, output, against, made, how)
        if wanted is not None:
            files += draw_figure(lines, wanted, output, made)
        if wanted_grid is not None:
            of_grid, grid = draw_grid(panels, wanted_grid, output, made)
            files += of_grid
    except InputError as error:
        complain("mpifed.report", text_of(error))
        return EXIT_BAD_INPUT
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.print(terminal(groups))
    if comparison:
        print()
        print(comparison["comparison.md"])
    if grid:
        print(grid)
    for line in [*(f"* {note}" for note in notes), *map(str, files)]:
        print(line)
    return EXIT_FINISHED


def compare(groups: Sequence[Group], against: str | None, target: float | None) -> dict[str, str]:
    """Return the comparison of methods, as text by file name."""
    if against is None and target is None:
        return {}
    return {
        "comparison.md": paired.markdown(groups, against, target),
        "comparison.csv": paired.csv_text(groups, against, target),
    }


def write(texts: dict[str, str], output: Path) -> list[Path]:
    """Write the page and the tables, replacing the files of an older report."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (output / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error.strerror}") from None
    return [output / name for name in texts]


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.report", main))
