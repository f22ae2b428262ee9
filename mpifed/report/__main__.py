"""``python -m mpifed.report RUN_DIR ... --output DIR``: tables and plots from run directories."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from mpifed.command import carried_out, program, say
from mpifed.config.experiments import safe
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FINISHED, InputError, closest, complain
from mpifed.report import tables
from mpifed.report.charts import ROUNDS, SECONDS, Chart, charts, looks_of
from mpifed.report.comparisons import last_differences, partner
from mpifed.report.drawing import Forest, Panel, Pictures, figure_of, forest_figure, save
from mpifed.report.figure import chart_of, series
from mpifed.report.grid import grid_csv, grid_figure, grid_markdown, grid_name, grids
from mpifed.report.groups import Group, group_runs
from mpifed.report.intervals import Estimate, estimate
from mpifed.report.looks import look
from mpifed.report.options import (
    against_wanted,
    figure_wanted,
    grid_wanted,
    names_wanted,
    parser,
    pictures_wanted,
)
from mpifed.report.page import page
from mpifed.report.runs import ACCURACY, DECILE, find_runs

PLAIN_WIDTH = 120  # columns where the output is not a terminal
# Columns of which files show all but the wall time, which differs from run to run.
AGAINST_ALL = ("test-accuracy", "bottom-decile", "train-loss")


def main(words: Sequence[str] | None = None) -> int:
    """Run ``python -m mpifed.report``."""
    try:
        text = _report(sys.argv[1:] if words is None else words)
    except InputError as error:
        complain("mpifed.report", str(error))
        return EXIT_BAD_INPUT
    say(text)
    return EXIT_FINISHED


def _report(words: Sequence[str]) -> str:
    """Write what the options ask for, and return what is printed."""
    options = parser(__doc__).parse_args(words)
    made, wanted, wanted_grid = (
        pictures_wanted(options),
        figure_wanted(options),
        grid_wanted(options),
    )
    found = find_runs(options.run_dirs)
    groups, notes = group_runs(found)
    against, names = against_wanted(options, groups), names_wanted(options, groups)
    groups = [replace(group, name=names.get(group.method, "")) for group in groups]
    texts = {
        "table.md": tables.report_markdown(groups, notes),
        "table.csv": tables.report_csv(groups),
    }
    printed = [_terminal(groups)]
    if against is not None or options.target is not None:
        texts["comparison.md"] = tables.comparison(groups, against, options.target).markdown()
        texts["comparison.csv"] = tables.comparison_csv(groups, against, options.target)
        printed.append(texts["comparison.md"])
    # All is read and checked before anything is written.
    column = None if wanted is None else chart_of(series(found, wanted), wanted)
    cells = [] if wanted_grid is None else grids(found, wanted_grid)
    if wanted_grid is not None:
        texts[f"{grid_name(wanted_grid)}.md"] = grid_markdown(cells, wanted_grid)
        texts[f"{grid_name(wanted_grid)}.csv"] = grid_csv(cells, wanted_grid)
        printed.append(texts[f"{grid_name(wanted_grid)}.md"])
    files: list[Path] = []
    if options.output is not None:
        shown = charts_by_data(groups, against)
        pictures = pictures_of(shown)
        check_texts(made, pictures.values())
        repeated = [*program("report").split(), *words]
        texts = {"report.html": page(groups, notes, shown, against, repeated)} | texts
        files = write(texts, options.output)
        if made.formats:
            import matplotlib

            with matplotlib.rc_context(made.style()):
                for name, chart in pictures.items():
                    files += save(figure_of(chart, made), options.output, name, made)
                for name, forest in forests(groups, against).items():
                    files += save(forest_figure(forest, made), options.output, name, made)
                if column is not None:
                    files += save(figure_of(column, made), options.output, column.column, made)
                if wanted_grid is not None:
                    name = grid_name(wanted_grid)
                    files += save(grid_figure(cells, wanted_grid), options.output, name, made)
    lines = [*(f"* {note}" for note in notes), *map(str, files)]
    return "\n".join([*printed, *lines])


def _terminal(groups: Sequence[Group]) -> str:
    columns = tables.measured(groups)[:1]  # a terminal has no room for more
    columns = [ACCURACY, DECILE] * tables.shows_accuracies(groups) + columns
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    with console.capture() as shown:
        console.print(tables.results(groups, columns).terminal())
    return shown.get()


def write(texts: Mapping[str, str], output: Path) -> list[Path]:
    """Write the page and the tables, replacing the files of an older report."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (output / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error.strerror}") from None
    return [output / name for name in texts]


def charts_by_data(groups: Sequence[Group], against: str | None) -> dict[str, list[Chart]]:
    """Return the charts of each data set."""
    drawn = looks_of(groups)
    found = {}
    for data in dict.fromkeys(group.data for group in groups):
        chosen = [group for group in groups if group.data == data]
        found[data] = charts(chosen, drawn, partner(groups, data, against))
    return found


def pictures_of(shown: Mapping[str, Sequence[Chart]]) -> dict[str, Chart]:
    """Return the charts that have files, by their names."""
    return {
        f"{prefix}{chart.name}": chart
        for prefix, found in zip(prefixes(list(shown)), shown.values(), strict=True)
        for chart in found
        if chart.x in (ROUNDS, "") or (chart.x != SECONDS and chart.column in AGAINST_ALL)
    }


def forests(groups: Sequence[Group], against: str | None) -> dict[str, Forest]:
    """Return the differences in accuracy from a method with 95 % intervals, by file name."""
    datas = list(dict.fromkeys(group.data for group in groups))
    found = {}
    for data, prefix in zip(datas, prefixes(datas), strict=True):
        other = partner(groups, data, against)
        others = [group for group in groups if group.data == data and group is not other]
        if other is not None and others:
            rows: dict[str, Estimate | str] = {}
            for group in others:
                values = 100 * last_differences(group, other, ACCURACY)
                rows[group.title] = estimate(values) if len(values) else "no common round"
            title = f"Test accuracy minus that of {other.title} (points, 95 % intervals)"
            panel = Panel(other.words[0], rows, look(0))
            found[f"{prefix}differences"] = Forest(title, tuple(rows), ((panel,),))
    return found


def prefixes(datas: Sequence[str]) -> list[str]:
    """Return the prefix of each data set's files; no two are equal, whatever their capitals."""
    if len(datas) == 1:
        return [""]
    short = [safe(data.replace(" ", "")) for data in datas]
    if len({name.lower() for name in short}) < len(datas):
        short = [f"{index}-{name}" for index, name in enumerate(short, 1)]
    return [f"{name}-" for name in short]


def check_texts(made: Pictures, pictures: Iterable[Chart]) -> None:
    """Validate that texts are for pictures that there are."""
    names = sorted({name for chart in pictures for name in (chart.column, chart.name)})
    for option, given in (("--title", made.titles), ("--x-label", made.x_labels)):
        for name in given:
            if name not in names:
                raise InputError(
                    f"{option} is for '{name}', which is no picture of these runs; "
                    f"{closest(name, names)}"
                )


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.report", main))
