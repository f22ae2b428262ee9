"""``python -m mpifed.report RUN_DIR ... --output DIR``: tables and plots from run directories.

Each RUN_DIR is a run directory or holds some. Runs that differ only in the seed become one entry,
with mean and deviation. DIR gets table.md, table.csv and one PNG a figure; without --output the
table is only printed. With --against or --target there is a second table, of the differences from
one method with the same seed, and of the rounds and bits that an accuracy took. With --figure
COLUMN there is one more PNG, of any column of metrics.csv against rounds, bits, floats,
simulated_seconds or a key of the configuration (--x), a line for each value of the keys --by, a
panel for what else differs. With --grid COLUMN there is a table of its last values, as text, CSV
and PNG, with a column for each value of the key --x and a row for each of the key --by, whose best
is marked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mpifed.command import Parser, program
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FINISHED, InputError, complain, text_of
from mpifed.report import paired
from mpifed.report.figure import Wanted, draw_figure, series
from mpifed.report.grid import draw_grid, grids
from mpifed.report.grid_tables import WantedGrid
from mpifed.report.groups import Group, group_runs
from mpifed.report.reading import find_runs
from mpifed.report.tables import csv_text, markdown, terminal

PLAIN_WIDTH = 120  # columns where the output is not a terminal


def main(words: Sequence[str] | None = None) -> int:
    """Run ``python -m mpifed.report``.

    Parameters
    ----------
    words : Sequence[str], optional
        The words of the command line; None reads them from ``sys.argv``.

    Returns
    -------
    int
        The exit code.
    """
    try:
        options = _parser().parse_args(words)
        if options.target is not None and not 0 < options.target < 1:
            raise InputError(f"--target is {options.target:g}; it must be a fraction in (0, 1)")
        found = find_runs(options.run_dirs)
        groups, notes = group_runs(found)
        tables = {"table.md": markdown(groups, notes), "table.csv": csv_text(groups)}
        comparison = compare(groups, options.against, options.target)
        output = options.output
        wanted, wanted_grid = figure_wanted(options), grid_wanted(options)
        # Before anything is written, for they may refuse what is asked for.
        lines = series(found, wanted) if wanted is not None else []
        panels = grids(found, wanted_grid) if wanted_grid is not None else []
        files = write(groups, tables | comparison, output, options.against) if output else []
        if wanted is not None:
            files.append(draw_figure(lines, wanted, output))
        grid = ""
        if wanted_grid is not None:
            drawn, grid = draw_grid(panels, wanted_grid, output)
            files += drawn
    except InputError as error:
        complain("mpifed.report", text_of(error))
        return EXIT_BAD_INPUT
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.print(terminal(groups))
    if comparison:
        print(comparison["comparison.md"])
    if grid:
        print(grid)
    for line in [*(f"* {note}" for note in notes), *map(str, files)]:
        print(line)
    return EXIT_FINISHED


def figure_wanted(options: argparse.Namespace) -> Wanted | None:
    """Return what --figure and its options ask for.

    Parameters
    ----------
    options : argparse.Namespace
        The parsed command line.

    Returns
    -------
    Wanted or None
        The request; None without --figure.

    Raises
    ------
    InputError
        If an option does not fit the others or is out of range.
    """
    if options.figure is None and options.grid is None:
        beside = {"--x": options.x, "--by": options.by, "--aside": options.aside}
        beside["--linear"] = options.linear or None
        for name, value in beside.items():
            if value is not None:
                raise InputError(f"{name} is for --figure or --grid, and neither is given")
    if options.figure is None:
        if options.until is not None:
            raise InputError("--until is for --figure, which is not given")
        return None
    if options.until is not None and not options.until > 0:
        raise InputError(f"--until is {options.until:g}; it must be above 0")
    if options.output is None:
        raise InputError("--figure needs --output, the directory in which it is drawn")
    by, aside = tuple(options.by or ()), tuple(options.aside or ())
    x = options.x or "rounds"
    return Wanted(options.figure, x, by, options.linear, aside, options.until)


def grid_wanted(options: argparse.Namespace) -> WantedGrid | None:
    """Return what --grid and its options ask for.

    Parameters
    ----------
    options : argparse.Namespace
        The parsed command line.

    Returns
    -------
    WantedGrid or None
        The request; None without --grid.

    Raises
    ------
    InputError
        If an option does not fit the others.
    """
    if options.grid is None:
        return None
    if options.figure is not None:
        raise InputError("--figure and --grid read --x and --by each in its own way; give one")
    if options.output is None:
        raise InputError("--grid needs --output, the directory in which it is drawn")
    if options.x is None or len(options.by or ()) != 1:
        raise InputError(
            "--grid needs one key for its columns, --x KEY, and one for its rows, --by KEY"
        )
    return WantedGrid(
        options.grid, options.x, options.by[0], options.linear, tuple(options.aside or ())
    )


def compare(groups: Sequence[Group], against: str | None, target: float | None) -> dict[str, str]:
    """Return the comparison of methods, as text by file name.

    Parameters
    ----------
    groups : Sequence[Group]
        The groups of runs.
    against : str | None
        The method to compare with, if any.
    target : float | None
        The test accuracy to reach, a fraction in (0, 1), if any.

    Returns
    -------
    dict of str to str
        ``comparison.md`` and ``comparison.csv``; empty if neither option is given.

    Raises
    ------
    InputError
        If no group has the method ``against``.
    """
    if against is None and target is None:
        return {}
    return {
        "comparison.md": paired.markdown(groups, against, target),
        "comparison.csv": paired.csv_text(groups, against, target),
    }


def write(
    groups: Sequence[Group], tables: dict[str, str], output: Path, against: str | None
) -> list[Path]:
    """Write tables and plots, replacing the files of an older report.

    Parameters
    ----------
    groups : Sequence[Group]
        The groups of runs.
    tables : dict[str, str]
        The text of each table by file name.
    output : Path
        The directory; it is made if it does not exist.
    against : str | None
        The method whose accuracy the others' differences are drawn to, if any.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    InputError
        If a file cannot be written.
    """
    from mpifed.report.plots import draw

    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in tables.items():
            (output / name).write_text(text, encoding="utf-8")
        return [*(output / name for name in tables), *draw(groups, output, against)]
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error.strerror}") from None


def _parser() -> Parser:
    parser = Parser(
        prog=program("report"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="a run directory, or one above"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="where tables and plots go")
    parser.add_argument("--against", metavar="METHOD", help="a method as the table names it")
    parser.add_argument("--target", type=float, metavar="FRACTION", help="a test accuracy")
    parser.add_argument("--figure", metavar="COLUMN", help="a column of metrics.csv to draw")
    parser.add_argument("--grid", metavar="COLUMN", help="a column to tabulate over --x and --by")
    parser.add_argument(
        "--x", metavar="WHAT", help="rounds, bits, floats, simulated_seconds or a key"
    )
    parser.add_argument("--by", nargs="+", metavar="KEY", help="dotted keys, a line for each value")
    parser.add_argument("--aside", nargs="+", metavar="KEY", help="dotted keys that make no panels")
    parser.add_argument("--until", type=float, metavar="X", help="the largest x of --figure")
    parser.add_argument("--linear", action="store_true", help="no logarithms in --figure or --grid")
    return parser


if __name__ == "__main__":
    sys.exit(main())
