"""``python -m mpifed.report RUN_DIR ... --output DIR``: tables and plots from run directories."""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mpifed.command import Parser, carried_out, parser_of, program
from mpifed.config.experiments import safe
from mpifed.errors import EXIT_FINISHED, InputError, closest
from mpifed.report import tables
from mpifed.report.answers import answers
from mpifed.report.charts import GRAPH, ROUNDS, SECONDS, Chart, charts, look_by_method
from mpifed.report.drawing import SIZE, Forest, Pictures, figure_of, forest_figure, save
from mpifed.report.figure import (
    PROGRESS,
    FigureRequest,
    chart_of,
    grid_csv,
    grid_figure,
    grid_markdown,
    grid_name,
    grids,
    series,
    with_full_keys,
)
from mpifed.report.groups import (
    BANDS,
    LIMITS,
    SPREADS,
    Estimate,
    Group,
    estimate,
    group_runs,
    last_differences,
    partner,
    shared_title,
    without_shared_title,
)
from mpifed.report.names import in_words, look
from mpifed.report.page import page
from mpifed.report.runs import ACCURACY, DECILE, find_runs
from topologies.analysis.plots import drawing
from topologies.command_line import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
# The word for no pictures: the page and the tables alone.
NO_FORMAT = "none"
SMALLEST, LARGEST = 1.0, 50.0  # inches of a picture's side
POINTS = number(float, "from 4 to 40 points", lambda value: 4 <= value <= 40)
FRACTION = number(float, "a fraction in (0, 1)", lambda value: 0 < value < 1)

PLAIN_WIDTH = 120  # columns where the output is not a terminal
WIDEST = 10_000  # a console that never squeezes a table: tables know their width
# Columns of which files show all but the wall time, which differs from run to run.
AGAINST_ALL = ("test-accuracy", "bottom-decile", "train-loss")


def main(words: Sequence[str] | None = None) -> int:
    """Run ``python -m mpifed.report``."""
    return carried_out("mpifed.report", lambda: report(sys.argv[1:] if words is None else words))


def report(words: Sequence[str]) -> int:
    """Write what the options ask for, and print the tables and the names of the files."""
    options = parser().parse_args(words)
    request = request_of(options)
    runs = find_runs(options.run_dirs)
    groups, notes = group_runs(runs)
    against = options.against and _method("--against", options.against, groups)
    if against is not None and {group.method for group in groups} == {against}:
        notes.append(f"{in_words(against)} is the only method: --against compares it with none")
        against = None
    names = {_method("--label", name, groups): text for name, text in options.label}
    groups = [
        replace(group, name=names.get(group.method, ""), spread=options.spread) for group in groups
    ]
    request = request and with_full_keys(runs, replace(request, spread=options.spread))
    scores = [ACCURACY, DECILE] * tables.shows_accuracies(groups)
    printed = [tables.results(groups, scores + tables.measured(groups))]
    texts = {
        "table.md": tables.report_markdown(groups, notes),
        "table.csv": tables.report_csv(groups),
    }
    latex = {"table.tex": printed[0]}
    if against is not None or options.target is not None:
        compared = tables.comparison(groups, against, options.target)
        texts["comparison.md"] = compared.markdown()
        texts["comparison.csv"] = tables.comparison_csv(groups, against, options.target)
        latex["comparison.tex"] = compared
        printed.append(compared)
    if options.within:
        best = tables.best_within(groups, dict(options.within))
        texts["within.md"], latex["within.tex"] = best.markdown(), best
        printed.append(best)
    if options.clients:
        of_clients = tables.by_client(groups)
        texts["clients.md"] = of_clients.markdown()
        latex["clients.tex"] = of_clients
        printed.append(of_clients)
    if options.latex:
        texts |= {name: table.latex() for name, table in latex.items()}
        if confusions := tables.confusions(groups):
            texts["confusion.tex"] = "\n".join(table.latex() for table in confusions)
    plain_texts = [texts[name] for name in latex if name in texts]
    # All is read and checked before anything is written.
    pictures = Pictures(options.format, options.size, options.font, options.font_size,
                    dict(options.title), dict(options.x_label))  # fmt: skip
    figures: dict[str, Callable[[], Figure]] = {}
    if request is not None and options.figure:
        left_out = {run.path for group in groups for run in group.left_out}
        drawn = [run for run in runs if run.path not in left_out]
        chart = chart_of(series(drawn, request), request)
        figures[chart.column] = partial(figure_of, chart, pictures)
    elif request is not None:
        cells, name = grids(runs, request), grid_name(request)
        texts[f"{name}.md"] = grid_markdown(cells, request)
        texts[f"{name}.csv"] = grid_csv(cells, request)
        plain_texts.append(texts[f"{name}.md"])
        figures[name] = partial(grid_figure, cells, request)
    files: list[Path] = []
    if options.output is not None:
        short, title = without_shared_title(groups), shared_title(groups)
        data_charts = charts_by_data(short, against, title)
        figures = _figures(data_charts, pictures) | forests(short, against, pictures) | figures
        repeated = [*program("report").split(), *words]
        texts = {"report.html": page(short, notes, data_charts, against, repeated)} | texts
        files = _write(texts, figures, pictures, options.output)
    width = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
    print(*(textwrap.fill(sentence, width) for sentence in answers(groups, against, 1)), sep="\n")
    for table in printed:
        Console(width=WIDEST).print(table.terminal(width))
    print(*plain_texts, *(f"* {note}" for note in notes), *files, sep="\n")
    return EXIT_FINISHED


def _write(
    texts: Mapping[str, str],
    figures: Mapping[str, Callable[[], Figure]],
    pictures: Pictures,
    output: Path,
) -> list[Path]:
    """Write the page, tables and pictures, replacing the files of an older report."""
    files = [output / name for name in texts]
    try:
        output.mkdir(parents=True, exist_ok=True)
        for path, text in zip(files, texts.values(), strict=True):
            path.write_text(text, encoding="utf-8")
        with drawing(pictures.style()):
            for name, make in figures.items() if pictures.formats else ():
                files += save(make(), output, name, pictures)
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error.strerror}") from None
    return files


def charts_by_data(
    groups: Sequence[Group], against: str | None, common_title: str = ""
) -> dict[str, list[Chart]]:
    """Return the charts of each data set; names of methods leave out their common title."""
    drawn = look_by_method(groups)
    by_data = {}
    for data in dict.fromkeys(group.data for group in groups):
        chosen = [group for group in groups if group.data == data]
        by_data[data] = charts(chosen, drawn, partner(groups, data, against), common_title)
    return by_data


def _figures(
    data_charts: Mapping[str, Sequence[Chart]], pictures: Pictures
) -> dict[str, Callable[[], Figure]]:
    """Return what draws the charts that have files, by their names."""
    chart_of_file = {
        _prefix(data, data_charts) + chart.name: chart
        for data, of_data in data_charts.items()
        for chart in of_data
        if chart.x in (ROUNDS, "") or (chart.x != SECONDS and chart.column in AGAINST_ALL)
    }
    names = {name for chart in chart_of_file.values() for name in (chart.column, chart.name)}
    for name in (*pictures.titles, *pictures.x_labels):
        if name not in names:
            raise InputError(
                f"--title or --x-label is for '{name}', which is no picture of these runs; "
                f"{closest(name, names)}"
            )
    return {name: partial(figure_of, chart, pictures) for name, chart in chart_of_file.items()}


def forests(
    groups: Sequence[Group], against: str | None, pictures: Pictures
) -> dict[str, Callable[[], Figure]]:
    """Return what draws the differences from a method with 95 % intervals, by file name."""
    datas = dict.fromkeys(group.data for group in groups)
    figures: dict[str, Callable[[], Figure]] = {}
    for data in datas:
        other = partner(groups, data, against)
        others = [group for group in groups if group.data == data and group is not other]
        if other is not None and others:
            rows: dict[str, Estimate | str] = {}
            for group in others:
                values = 100 * last_differences(group, other, ACCURACY)
                difference = estimate(values, group.spread)
                rows[group.title] = difference if len(values) else "no common round"
            title = f"Test accuracy minus that of {other.title} (points, {BANDS[other.spread]})"
            forest = Forest(other.words[0], rows, look(0))
            name = f"{_prefix(data, datas)}differences"
            figures[name] = partial(forest_figure, title, [[forest]], pictures)
    return figures


def _prefix(data: str, datas: Mapping[str, object]) -> str:
    """Return the beginning of the names of a data set's files, where there are several."""
    return f"{safe(data.replace(' ', ''))}-" if len(datas) > 1 else ""


def request_of(options: argparse.Namespace) -> FigureRequest | None:
    """Return what --figure or --grid and their options ask for."""
    column = options.figure or options.grid
    if column is None:
        if options.x or options.by or options.aside or options.linear or options.level:
            raise InputError("--x, --by, --aside, --linear and --level need --figure or --grid")
        return None
    if options.grid and (options.x is None or len(options.by) != 1):
        raise InputError(
            "--grid needs one key for its columns, --x KEY, and one for its rows, --by KEY"
        )
    if options.output is None:
        raise InputError("--figure and --grid need --output, the directory in which they draw")
    by, aside = tuple(options.by), tuple(options.aside)
    levels = tuple(options.level)
    if options.grid and levels:
        raise InputError("--level needs --figure")
    return FigureRequest(column, options.x or ROUNDS, by, options.linear, aside, levels=levels)


def _method(option: str, name: str, groups: Sequence[Group]) -> str:
    """Return the label of a method that is named by it, or in the words of the tables."""
    labels = {group.method for group in groups}
    named = {in_words(label): label for label in labels}
    chosen = name if name in labels else named.get(name)
    if chosen is None:
        raise InputError(
            f"{option} is for '{name}', which is none of the methods; {closest(name, named)}"
        )
    return chosen


def _text(word: str) -> tuple[str, str]:
    """A name with its text. It ends at the last equals sign, for labels of methods have some."""
    name, equals, text = word.rpartition("=")
    if not (equals and name and text.strip() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"is {word!a}; it must be NAME=TEXT, printable")
    return name, text.strip()


def _level(word: str) -> tuple[str, float]:
    name, text = _text(word)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"is {word!a}; it must be NAME=NUMBER")
    return name, value


def _limit(word: str) -> tuple[str, float]:
    key, _, text = word.partition("=")
    with contextlib.suppress(ValueError):
        if key in LIMITS and (limit := float(text)) >= 0:
            return key, limit
    raise argparse.ArgumentTypeError(
        f"is {word!a}; it must be KEY=LIMIT with a number from 0 on; keys: {', '.join(LIMITS)}"
    )


def _formats(words: str) -> tuple[str, ...]:
    formats = () if words == NO_FORMAT else tuple(dict.fromkeys(words.split(",")))
    if not set(formats) <= set(FORMATS):
        allowed = ", ".join(FORMATS)
        raise argparse.ArgumentTypeError(
            f"is '{words}'; it must be some of {allowed}, or {NO_FORMAT}"
        )
    return formats


def _size(words: str) -> tuple[float, ...]:
    try:
        sides = tuple(float(part) for part in words.split("x"))
    except ValueError:
        sides = ()
    if len(sides) != 2 or not all(SMALLEST <= side <= LARGEST for side in sides):
        raise argparse.ArgumentTypeError(
            f"is '{words}'; it must be WIDTHxHEIGHT, both from {SMALLEST:g} to {LARGEST:g} inches"
        )
    return sides


def parser() -> Parser:
    """Return the parser of the command line."""
    command_line = parser_of("report", __doc__)
    command_line.add_argument(
        "run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="a run directory, or one above"
    )
    command_line.add_argument(
        "--output", type=Path, metavar="DIR", help="where tables and plots go"
    )
    command_line.add_argument("--against", metavar="METHOD", help="a method as the table names it")
    command_line.add_argument(
        "--spread", choices=SPREADS, default="ci", help="what is behind ± and in bands"
    )
    command_line.add_argument("--latex", action="store_true", help="tables of LaTeX, with booktabs")
    command_line.add_argument(
        "--clients", action="store_true", help="the scores of each client, by name"
    )
    command_line.add_argument("--target", type=FRACTION, metavar="FRACTION", help="a test accuracy")
    command_line.add_argument(
        "--within", nargs="+", type=_limit, default=[], metavar="KEY=LIMIT",
        help=f"the most accurate within limits on {', '.join(LIMITS)}",
    )  # fmt: skip
    which = command_line.add_mutually_exclusive_group()
    which.add_argument("--figure", metavar="COLUMN", help="a column of metrics.csv to draw")
    which.add_argument("--grid", metavar="COLUMN", help="a column to tabulate over --x and --by")
    command_line.add_argument(
        "--x", metavar="WHAT", help=f"{', '.join((*PROGRESS, *GRAPH))}, or a key"
    )
    for option, text in (
        ("--by", "dotted keys, a line for each value"),
        ("--aside", "dotted keys that make no panels"),
    ):
        command_line.add_argument(option, nargs="+", default=[], metavar="KEY", help=text)
    command_line.add_argument(
        "--linear", action="store_true", help="no logarithms in --figure or --grid"
    )
    command_line.add_argument(
        "--level", type=_level, action="append", default=[], metavar="NAME=NUMBER",
        help="a level line in --figure; repeatable",
    )  # fmt: skip
    pictures = command_line.add_argument_group("pictures")
    pictures.add_argument(
        "--format", type=_formats, default="png", metavar="FORMATS", help="of png,svg,pdf; or none"
    )
    pictures.add_argument(
        "--size", type=_size, default=SIZE, metavar="WIDTHxHEIGHT",
        help="inches, without the names: 6.6x4.2",
    )  # fmt: skip
    pictures.add_argument("--font", metavar="FAMILY", help="a font that is installed")
    pictures.add_argument(
        "--font-size", type=POINTS, default=11.0, metavar="POINTS", help="11 by default"
    )
    for option, of, example in (
        ("--title", "PICTURE", "as test-accuracy='Accuracy (%%)'"),
        ("--x-label", "PICTURE", "as test-accuracy-rounds='rounds of FedEM'"),
        ("--label", "METHOD", "its name in tables and pictures; repeatable as these all"),
    ):
        pictures.add_argument(
            option, type=_text, action="append", default=[], metavar=f"{of}=TEXT", help=example
        )
    return command_line


if __name__ == "__main__":
    sys.exit(main())
