"""A column of metrics.csv as a chart over progress or over a key, or as a grid over two keys.

These are the options ``--figure`` and ``--grid`` of ``mpifed report``. With
``--grid validation_loss --x algorithm.step --by algorithm.flix_alpha`` Gasanov et al. choose step
sizes (2021, Figs. 5 and 6).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifed.config.experiments import safe
from mpifed.errors import InputError, closest
from mpifed.report.charts import GRAPH, ROUNDS, Chart, Line
from mpifed.report.groups import BANDS, NO_DIFFERENCE, leaves, spread_of
from mpifed.report.names import in_words, look
from mpifed.report.runs import COLUMNS, MEASURES, Run, check_column, larger_is_better
from mpifed.report.tables import NONE, Bold, Cell, Table, csv_lines, in_markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Where a logarithmic axis ends: gaps of float64 below it are noise.
FLOOR = 1e-16

# Values of x that are not keys, each with its column and the label of the axis.
PROGRESS = {
    ROUNDS: ("round", "communication round"),
    "bits": ("up_bits", "bits sent by all clients"),
    "floats": ("up_floats", "numbers sent by all clients"),
    "simulated_seconds": ("simulated_seconds", "seconds of the simulated federation"),
}
# What sets the numbers of ``GRAPH``.
SETS_GRAPH = ("exchange.topology", "exchange.weights", "exchange.schedule")
# Keys that never separate panels: also the length of a run and the run it started from.
NO_PANEL = (*NO_DIFFERENCE, "rounds", "algorithm.start_from")

COLOURS, NOT_FINITE, FRAME = "YlGnBu", "#BDBDBD", "#D00000"
CELL = (0.62, 0.42)  # inches
MARGIN = (1.1, 1.1)  # inches around the cells, for labels and the title
DARK = 0.6  # from this share of the colours on, numbers are white
DIVERGED = "not finite"


@dataclass(frozen=True)
class FigureRequest:
    """What --figure or --grid and their options ask for."""

    column: str
    x: str = ROUNDS
    by: tuple[str, ...] = ()
    linear: bool = False
    aside: tuple[str, ...] = ()
    spread: str = "ci"
    levels: tuple[tuple[str, float], ...] = ()


def with_full_keys(runs: Sequence[Run], request: FigureRequest) -> FigureRequest:
    """Return a request whose keys are complete: ``topology`` is ``exchange.topology.name``."""
    keys = {key for run in runs for key in leaves(run.config)}

    def full(key: str) -> str:
        if key in keys or key in (*PROGRESS, *GRAPH):
            return key
        ends = (f".{key}", f".{key}.name")
        fitting = [one for one in keys if one == f"{key}.name" or one.endswith(ends)]
        return fitting[0] if len(fitting) == 1 else key

    by, aside = (tuple(map(full, some)) for some in (request.by, request.aside))
    return replace(request, x=full(request.x), by=by, aside=aside)


def _settings(
    runs: Sequence[Run], request: FigureRequest, progress: Collection[str] = ()
) -> tuple[list[dict[str, str]], list[str]]:
    """Return what the runs say of each key, and the keys that separate panels."""
    flat = [leaves(run.config) | {k: repr(v) for k, v in run.graph.items()} for run in runs]
    keys = sorted({key for settings in flat for key in settings})
    allowed = {"--x": [*progress, *keys], "--by": keys}
    for option, key in (("--x", request.x), *(("--by", key) for key in request.by)):
        if key not in allowed[option]:
            raise InputError(
                f"{option} is '{key}', which no run has; {closest(key, allowed[option])}"
            )
    check_column(runs, request.column)
    aside = {*request.by, *request.aside, *GRAPH, *(SETS_GRAPH if request.x in GRAPH else ())}
    return flat, differing(flat, {request.x, *aside})


def differing(flat: Sequence[Mapping[str, str]], aside: Collection[str]) -> list[str]:
    """Return the keys in which runs differ."""
    keys = []
    for key in dict.fromkeys(key for settings in flat for key in settings):
        if key.startswith(NO_PANEL) or any(f"{key}.".startswith(f"{one}.") for one in aside):
            continue
        name = f"{key.rpartition('.')[0]}.name"
        named_apart = key != name and len({settings.get(name) for settings in flat}) > 1
        among = [settings for settings in flat if key in settings] if named_apart else flat
        if len({settings.get(key) for settings in among}) > 1:
            keys.append(key)
    return keys


def label(settings: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return the values of some keys as a label."""
    return ", ".join(
        f"{short(key)}={settings[key]}" for key in keys if settings.get(key, "null") != "null"
    )


def short(key: str) -> str:
    """Return the last part of a dotted key; the section for the name of a component."""
    return key.removesuffix(".name").rpartition(".")[2]


def naturally(text: str) -> list[tuple[float, str]]:
    """Return a sort key that orders labels by their numbers."""
    words = text.replace("=", " ").replace(",", " ").split()
    numbers = [_number(word) for word in words]
    return [
        (math.inf, word) if math.isnan(number) else (number, "")
        for word, number in zip(words, numbers, strict=True)
    ]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def file_name(request: FigureRequest) -> str:
    """Return the name of the figure's file, without an ending, another for each request."""
    words = [request.column, request.x, *(["by", *map(short, request.by)] if request.by else [])]
    words += ["aside", *map(short, request.aside)] if request.aside else []
    words += ["linear"] if request.linear else []
    if request.column in (*COLUMNS, *MEASURES) and request.x in PROGRESS and len(words) == 2:
        words.append("figure")  # for the report has a picture of the plain name
    return safe("-".join(words).replace("_", "-").replace(".", "-"))


def series(runs: Sequence[Run], request: FigureRequest) -> list[Line]:
    """Return the lines that ``request`` asks for, averaged over seeds, in the order of the runs.

    Where no run of a line has the key of x, x is NaN, and the line is level, as ``levels`` are.
    Where x is a number of graphs, each graph is a point with a name, averaged also over draws of
    the graph.
    """
    flat, apart = _settings(runs, request, PROGRESS)
    if request.x in PROGRESS:
        check_column(runs, PROGRESS[request.x][0])
    by_line: dict[tuple[str, str], dict[str, list[np.ndarray]]] = {}
    graphs = _graph_names(flat) if request.x in GRAPH else []
    for number, (run, settings) in enumerate(zip(runs, flat, strict=True)):
        by_point = by_line.setdefault((label(settings, apart), label(settings, request.by)), {})
        point = "" if request.x in PROGRESS else settings.get(request.x, "nan")
        name = graphs[number] if graphs else point
        by_point.setdefault(name, []).append(_points(run, request, point))
    lines = []
    for (panel, line), by_point in by_line.items():
        means = [_mean(parts, request.spread) for parts in by_point.values()]
        x, y, x_band, band = np.concatenate(means, axis=1)
        order = np.argsort(x, kind="stable")
        drawn = Line(x[order], y[order], band[order], line, look(0), line, panel)
        if graphs:
            names = np.array(list(by_point))[order].tolist()
            drawn = replace(drawn, x_band=x_band[order], points=tuple(names))
        lines.append(drawn)
    nowhere, none = np.array([np.nan]), np.zeros(1)
    levels = [
        Line(nowhere, np.array([value]), none, name, look(0), name, panel)
        for panel in dict.fromkeys(line.panel for line in lines)
        for name, value in request.levels
    ]
    return lines + levels


def _graph_names(flat: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of the runs' graphs in words, with the settings that differ."""
    graphs = [
        {k: v for k, v in settings.items() if k.startswith(SETS_GRAPH) and not k.endswith(".seed")}
        for settings in flat
    ]
    keys = differing(graphs, ())
    names = []
    for settings in graphs:
        chosen = {key: settings[key] for key in keys if settings.get(key, "null") != "null"}
        words = [v if key.endswith(".name") else f"{short(key)}={v}" for key, v in chosen.items()]
        names.append(in_words(", ".join(["", *words])).partition(", ")[2])
    return names


def _points(run: Run, request: FigureRequest, point: str) -> np.ndarray:
    """All points of a run, or its last value where x is a key, (2, points)."""
    y = run.metrics[request.column]
    finite = np.isfinite(y)
    if not finite.any():
        raise InputError(f"'{run.path}' has no number in the column '{request.column}'")
    if request.x in PROGRESS:
        return np.array([run.metrics[PROGRESS[request.x][0]], y])[:, finite]
    if math.isnan(_number(point)) and point != "nan":
        raise InputError(
            f"--x is '{request.x}', which is {point} in a run; it must be a number in all that "
            "have it"
        )
    return np.array([[_number(point)], y[finite][-1:]])


def _mean(parts: Sequence[np.ndarray], spread: str) -> np.ndarray:
    """Means over seeds of x and y, over as many points as all have, and what is around them."""
    shortest = min(part.shape[1] for part in parts)
    values = np.array([part[:, :shortest] for part in parts])
    if len(values) == 1:
        return np.concatenate([values[0], np.zeros_like(values[0])])
    around = spread_of(values.std(axis=0, ddof=1), len(values), spread)
    return np.concatenate([values.mean(axis=0), around])


def chart_of(every: Sequence[Line], request: FigureRequest) -> Chart:
    """Return the chart: a panel for each title, in which lines of one name look alike."""
    names = sorted({line.name for line in every}, key=naturally)
    finite_x = np.concatenate([line.x[np.isfinite(line.x)] for line in every])
    ends = np.array([finite_x.min(), finite_x.max()] if len(finite_x) else [0.0, 1.0])
    lines, log = [], not (request.linear or larger_is_better(request.column))
    for line in sorted(every, key=lambda line: (naturally(line.panel), names.index(line.name))):
        level = np.isnan(line.x).all()
        if level:
            line = replace(
                line, x=ends, y=np.repeat(line.y[:1], 2), band=np.repeat(line.band[:1], 2)
            )
        if log:
            y = np.maximum(line.y, FLOOR)
            line = replace(line, y=y, band=np.minimum(line.band, 0.9 * y))
        lines.append(replace(line, look=look(names.index(line.name))))
    marks, bars = {}, "bars" if request.x in GRAPH else "bands"
    if request.x not in (*PROGRESS, *GRAPH) and not request.by:
        marks = {line.panel: (best(line, request.column), "best") for line in lines}
    x_label = PROGRESS[request.x][1] if request.x in PROGRESS else GRAPH.get(request.x, request.x)
    measure = MEASURES.get(request.column)
    title = request.column if measure is None or measure.percent else measure.description
    return Chart(file_name(request), request.x, title, "", x_label, tuple(lines),
                 y_log=log, marks=marks,
                 bands=f"{bars}: {BANDS[request.spread]} over seeds")  # fmt: skip


def best(line: Line, column: str) -> float:
    """Return the x of the best value of a line, the first of equal ones."""
    return float(line.x[line.y.argmax() if larger_is_better(column) else line.y.argmin()])


@dataclass(frozen=True)
class Grid:
    """The values of one panel, averaged over seeds; ``best`` is -1 in a row without values."""

    panel: str
    rows: list[str]
    columns: list[str]
    values: np.ndarray
    diverged: np.ndarray
    best: np.ndarray


def grids(runs: Sequence[Run], request: FigureRequest) -> list[Grid]:
    """Return a grid for each panel, in the order of their names."""
    flat, apart = _settings(runs, request)
    keys = (request.by[0], request.x)
    cells: dict[str, dict[tuple[str, ...], list[float]]] = {}
    for run, settings in zip(runs, flat, strict=True):
        if run.finished or run.diverged:
            cell = tuple(_shortest(settings.get(key, "null")) for key in keys)
            value = math.nan if run.diverged else run.last(request.column)
            cells.setdefault(label(settings, apart), {}).setdefault(cell, []).append(value)
    panels = [_grid(panel, cells[panel], request) for panel in sorted(cells, key=naturally)]
    if not any(np.isfinite(grid.values).any() for grid in panels):
        raise InputError(f"no finished run has a finite number in the column '{request.column}'")
    return panels


def _grid(panel: str, cells: Mapping[tuple[str, ...], list[float]], request: FigureRequest) -> Grid:
    rows, columns = (sorted({cell[axis] for cell in cells}, key=naturally) for axis in (0, 1))
    values = np.full((len(rows), len(columns)), np.nan)
    diverged = np.zeros(values.shape, bool)
    for (row, column), of_seeds in cells.items():
        mean = np.mean(of_seeds)
        cell = rows.index(row), columns.index(column)
        values[cell] = mean if np.isfinite(mean) else np.nan
        diverged[cell] = not np.isfinite(mean)
    worth = values if larger_is_better(request.column) else -values
    chosen = np.where(np.isnan(values), -np.inf, worth).argmax(axis=1)
    return Grid(
        panel, rows, columns, values, diverged, np.where(np.isnan(values).all(axis=1), -1, chosen)
    )


def _shortest(text: str) -> str:
    """Return the shortest form of a number, any other value as it is."""
    return text if math.isnan(_number(text)) else f"{float(text):g}"


def grid_name(request: FigureRequest) -> str:
    """Return the name of the grid's files, without an ending."""
    words = f"{request.column}-grid-{short(request.x)}-{short(request.by[0])}"
    return safe(words.replace("_", "-"))


def grid_markdown(grids: Sequence[Grid], request: FigureRequest) -> str:
    """Return the values as Markdown, the best of each row bold."""
    order = "largest" if larger_is_better(request.column) else "least"
    parts = [f"{request.column} at the last round; the {order} of each row is bold.\n"]
    by, x = short(request.by[0]), short(request.x)
    for grid in grids:
        rows: list[list[Cell]] = [
            [name, *(_cell(grid, row, column) for column in range(len(grid.columns)))]
            for row, name in enumerate(grid.rows)
        ]
        parts.append(Table([f"{by} \\ {x}", *grid.columns], rows, 1, Bold(grid.panel)).markdown())
        last = len(grid.columns) - 1
        edges = [grid.rows[k] for k, one in enumerate(grid.best) if last > 1 and one in (0, last)]
        at_edge = in_markdown(f"At an edge of the grid: {by}={', '.join(edges)}.")
        parts += [f"{at_edge}\n"] if edges else []
    return "\n".join(parts)


def grid_csv(grids: Sequence[Grid], request: FigureRequest) -> str:
    """Return the values as CSV, a line for each cell."""
    return csv_lines(
        [
            {
                "panel": grid.panel,
                request.by[0]: grid.rows[row],
                request.x: grid.columns[column],
                request.column: float(value),
                "diverged": int(grid.diverged[row, column]),
                "best": int(grid.best[row] == column),
            }
            for grid in grids
            for (row, column), value in np.ndenumerate(grid.values)
        ]
    )


def _cell(grid: Grid, row: int, column: int) -> Cell:
    value = grid.values[row, column]
    if math.isnan(value):
        return DIVERGED if grid.diverged[row, column] else NONE
    return Bold(f"{value:.4g}") if grid.best[row] == column else f"{value:.4g}"


def grid_figure(grids: Sequence[Grid], request: FigureRequest) -> Figure:
    """Return the grids as a figure, a panel each."""
    from matplotlib.figure import Figure

    positive = all((grid.values[np.isfinite(grid.values)] > 0).all() for grid in grids)
    log = positive and not request.linear and not larger_is_better(request.column)
    width = max(len(grid.columns) for grid in grids) * CELL[0] + MARGIN[0]
    heights = [len(grid.rows) * CELL[1] + MARGIN[1] for grid in grids]
    figure = Figure(figsize=(width, sum(heights)), dpi=110, layout="constrained")
    panels = figure.subplots(len(grids), 1, squeeze=False, height_ratios=heights)
    for grid, axes in zip(grids, panels[:, 0], strict=True):
        what = f"log10 of {request.column}" if log else request.column
        title = f"{what}, {grid.panel}" if grid.panel else what
        axes.set_title(title, fontsize="medium", parse_math=False)
        _draw(axes, grid, request, np.log10(grid.values) if log else grid.values)
    return figure


def _draw(axes: Axes, grid: Grid, request: FigureRequest, values: np.ndarray) -> None:
    """Draw one grid into the axes, the best of each row palest."""
    import matplotlib
    from matplotlib.patches import Rectangle

    low = np.fmin.reduce(values, axis=1, keepdims=True)
    spread = np.fmax.reduce(values, axis=1, keepdims=True) - low
    shares = (values - low) / np.where(spread > 0, spread, 1.0)
    shares = 1 - shares if larger_is_better(request.column) else shares
    missing = np.isnan(values) & ~grid.diverged
    colours = matplotlib.colormaps[COLOURS].with_extremes(bad=NOT_FINITE, under="white")
    axes.pcolormesh(
        np.where(missing, -1, shares), cmap=colours, vmin=0, vmax=1 / 0.85, edgecolors="white"
    )
    for (row, column), value in np.ndenumerate(values):
        if math.isfinite(value):
            axes.text(column + 0.5, row + 0.5, f"{value:.2f}", ha="center", va="center",
                      fontsize="small",
                      color="white" if shares[row, column] > DARK else "black")  # fmt: skip
    for row, column in enumerate(grid.best):
        if column >= 0:
            corner = (column + 0.04, row + 0.04)
            axes.add_patch(
                Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=FRAME, linewidth=2, zorder=3)
            )
    axes.set_xlim(0, len(grid.columns))
    axes.set_ylim(len(grid.rows), 0)
    names: Any = {"fontsize": "small", "parse_math": False}
    axes.set_xticks(np.arange(len(grid.columns)) + 0.5, grid.columns, **names)
    axes.set_yticks(np.arange(len(grid.rows)) + 0.5, grid.rows, **names)
    axes.set_xlabel(short(request.x), parse_math=False)
    axes.set_ylabel(short(request.by[0]), parse_math=False)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
