"""How pictures are made: style, size, font, texts and formats of their files.

Where names, markers and bars of the lines of a panel are, so that none covers another.

Charts drawn by matplotlib: each line is named in the right margin beside its last value.

Means with their intervals as dots: a row for each method, small multiples beside each other.

Pictures of runs: a file for each chart, as PNG, SVG or PDF.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpifed.report.charts import Chart, Line, bars, folded, height_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from mpifed.config.experiments import safe
from mpifed.errors import closest
from mpifed.report.charts import ROUNDS, SECONDS, Drawn, charts, drawn
from mpifed.report.groups import Group
from mpifed.report.intervals import Estimate, estimate
from mpifed.report.looks import Look, look
from mpifed.report.names import in_words
from mpifed.report.scale import around
from mpifed.report.tables import ACCURACY, last_differences, partner

GREY = "#595959"
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": "large",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 24,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    "lines.linewidth": 2,
    "lines.markersize": 4,
    "savefig.bbox": "tight",
    "savefig.facecolor": "white",
    "svg.hashsalt": "mpifed",  # the same bytes for the same numbers
}
SIZE = (6.6, 4.2)  # inches, without the names in the right margin


@dataclass(frozen=True)
class Pictures:
    """How pictures are made."""

    formats: tuple[str, ...] = ("png",)
    size: tuple[float, float] = SIZE
    font: str | None = None
    font_size: float = 11.0
    titles: Mapping[str, str] = field(default_factory=dict)
    x_labels: Mapping[str, str] = field(default_factory=dict)

    def style(self) -> Any:
        """Return what matplotlib is told."""
        font = {} if self.font is None else {"font.family": [self.font, "sans-serif"]}
        return STYLE | {"font.size": self.font_size} | font


def save(
    figure: Figure, output: Path, name: str, made: Pictures, dots: float | None = None
) -> list[Path]:
    """Write a figure in each format."""
    files = [output / f"{name}.{ending}" for ending in made.formats]
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # equal numbers, equal files
    for path, ending in zip(files, made.formats, strict=True):
        try:
            figure.savefig(path, metadata=dates.get(ending), dpi=dots or "figure")
        except OSError as error:
            raise InputError(f"--output {output} cannot be written: {error.strerror}") from None
    return files


LINE_HEIGHT = 15  # points between two names in the margin
FEW_POINTS = 12  # up to so many points each gets a marker
MARKED = 6  # markers on a line of more points


def marked(points: int, index: int, lines: int) -> list[int]:
    """Return the points of a line that have markers: all of few, else some, apart from the
    others'.
    """
    if points <= FEW_POINTS:
        return list(range(points))
    shift = (index + 0.5) / lines
    return [int((k + shift) * (points - 1) / MARKED) for k in range(MARKED)]


def beside(
    x: np.ndarray, moved: Sequence[float], index: int, width: float, ends: tuple[float, float]
) -> np.ndarray:
    """Return where the bars of a line are, beside those of the others and within the axes."""
    room = width * (max(moved) + 0.5)
    return np.clip(x, ends[0] + room, ends[1] - room) + width * moved[index]


def spread(
    heights: np.ndarray,
    sizes: float | np.ndarray = LINE_HEIGHT,
    ends: tuple[float, float] = (-np.inf, np.inf),
) -> np.ndarray:
    """Return the middles of names moved apart so that none covers another."""
    order = np.argsort(heights, kind="stable")
    room = np.broadcast_to(np.asarray(sizes, dtype=float), heights.shape)[order]
    # How far each is from the first where all touch; what is left must not decrease.
    from_first = np.concatenate([[0.0], np.cumsum((room[1:] + room[:-1]) / 2)])
    bundles: list[list[float]] = []
    for target in heights[order] - from_first:
        bundles.append([float(target)])
        while len(bundles) > 1 and np.mean(bundles[-2]) > np.mean(bundles[-1]):
            bundles[-2:] = [bundles[-2] + bundles[-1]]
    starts = np.concatenate([np.full(len(bundle), np.mean(bundle)) for bundle in bundles])
    least, most = ends[0] + room[0] / 2, ends[1] - room[-1] / 2 - from_first[-1]
    placed = np.empty(len(heights))
    placed[order] = np.clip(starts, least, max(least, most)) + from_first
    return placed


AXES = (0.1, 0.12, 0.88, 0.76)  # left, bottom, width, height as parts of it
ACROSS = 3  # panels in a row, at most
NAMES_WIDTH = 2.45  # inches between panels, for names
SMALL = 0.62  # of the size of one panel, where there are several
DOTS, DOTS_OF_MANY = 200, 110  # an inch, of one panel and of several
LETTERS, NAME_LETTERS = 60, 26  # in a row of a name, of one panel and of several
NAME_SIZE = 0.85  # of the letters, in names of several panels
OVER = 6  # points by which names may be higher than the vertical axis
BAR = 5  # points between the bars of two lines


def figure_of(chart: Chart, made: Pictures) -> Figure:
    """Return a chart as a figure, several panels if it has many lines."""
    from matplotlib.figure import Figure

    panels = chart.panels()
    title, x_label = (
        _text(made.titles, chart, chart.title),
        _text(made.x_labels, chart, chart.x_label),
    )
    several = len(panels) > 1
    across = min(ACROSS, math.ceil(math.sqrt(len(panels))))
    down = -(-len(panels) // across)
    width, height = (side * (SMALL if several else 1) for side in made.size)
    rows = NAME_LETTERS if several else LETTERS
    size = made.font_size * (NAME_SIZE if several else 1)
    names = [folded([line.name for line in lines], rows) for lines in panels]
    height = max([height, *((_sizes(each, size).sum() - OVER) / 72 / AXES[3] for each in names)])
    wide, high = width + (NAMES_WIDTH if several else 0), height + (0.35 if several else 0)
    figure = Figure(figsize=(wide * across, high * down), dpi=DOTS_OF_MANY if several else DOTS)
    first: Axes | None = None
    for index, lines in enumerate(panels):
        row, column = divmod(index, across)
        left, bottom = (column * wide + AXES[0] * width), (down - 1 - row) * high + AXES[1] * height
        place = left / (wide * across), bottom / (high * down)
        part = AXES[2] * width / (wide * across), AXES[3] * height / (high * down)
        axes = figure.add_axes((*place, *part), sharex=first, sharey=first)
        first = first or axes
        if lines[0].panel:
            axes.set_title(lines[0].panel, pad=6)
            if column == 0:
                axes.set_ylabel(title)
        elif index == 0:
            axes.set_title(title)
            axes.annotate(_subtitle(chart), (0, 1), xycoords="axes fraction", xytext=(0, 7),
                          textcoords="offset points", color=GREY, fontsize="small")  # fmt: skip
        axes.set_xlabel(x_label)
        _scales(axes, chart)
        _draw(axes, chart, lines)
    if first is not None:
        first.set_xlim(*_limits(chart))
        first.set_ylim(*height_limits(chart))
    for axes, lines, named in zip(figure.axes, panels, names, strict=True):
        _draw_bars(axes, lines)
        _name_lines(axes, lines, named, size)
    return figure


def _text(texts: Mapping[str, str], chart: Chart, otherwise: str) -> str:
    return texts.get(chart.name, texts.get(chart.column, otherwise))


def _subtitle(chart: Chart) -> str:
    """The data set and remarks, among them what bands are: a picture has no text around it."""
    if not any(line.band.any() for line in chart.lines):
        return chart.subtitle
    drawn = "bars" if any(bars(lines) is not None for lines in chart.panels()) else "bands"
    return f"{chart.subtitle}; {drawn}: one standard deviation over seeds"


def _limits(chart: Chart) -> tuple[float, float]:
    if not chart.x:
        return 0.0, 100.0
    start = float(min(line.x[0] for line in chart.lines))
    end = float(max(line.x[-1] for line in chart.lines))
    return start, end if end > start else start + 1


def _scales(axes: Axes, chart: Chart) -> None:
    if chart.y_log:
        axes.set_yscale("log")
    if chart.x_log:
        from matplotlib.ticker import LogLocator

        axes.set_xscale("log", subs=())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
    elif chart.whole:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True))
    if chart.mark is not None:
        place, name = chart.mark
        axes.axvline(place, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
        axes.annotate(
            name, (place, 0.98), xycoords=("data", "axes fraction"), xytext=(5, 0),
            textcoords="offset points", color=GREY, fontsize="small", va="top",
        )  # fmt: skip


def _draw(axes: Axes, chart: Chart, lines: Sequence[Line]) -> None:
    end = max(line.x[-1] for line in chart.lines)
    shown, banded = {line.method for line in lines}, bars(lines) is None
    for guide in chart.guides:
        if guide.method in shown:
            axes.plot(guide.x, guide.y, color=guide.look.colour, linewidth=1, linestyle=(0, (4, 3)))
    for index, line in enumerate(lines):
        colour, style = line.look.colour, line.look.dashes
        axes.plot(
            line.x, line.y, color=colour, linestyle=style, marker=line.look.marker,
            markevery=marked(len(line.x), index, len(lines)), clip_on=False, zorder=3,
        )  # fmt: skip
        if line.band.any() and banded:
            low, high = line.y - line.band, line.y + line.band
            axes.fill_between(line.x, low, high, color=colour, alpha=0.12, linewidth=0)
            for edge in (low, high):  # so that bands that overlap can be told apart
                axes.plot(line.x, edge, color=colour, linewidth=0.6, linestyle=style, alpha=0.7)
        if line.x[-1] < end and chart.x:
            axes.plot([line.x[-1], end], [line.y[-1]] * 2, color=colour, linewidth=1,
                      linestyle=(0, (1, 2)))  # fmt: skip


def _draw_bars(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw bars beside each other where bands would merge; none of them leaves the axes."""
    moved = bars(lines)
    if moved is None:
        return
    points = axes.figure.dpi / 72  # pixels
    left, right = axes.bbox.x0, axes.bbox.x1
    for index, line in enumerate(lines):
        if line.band.any():
            places = marked(len(line.x), index, len(lines))
            y, half = line.y[places], line.band[places]
            on_screen = axes.transData.transform(np.column_stack([line.x[places], y]))
            on_screen[:, 0] = beside(on_screen[:, 0], moved, index, BAR * points, (left, right))
            x = axes.transData.inverted().transform(on_screen)[:, 0]
            axes.errorbar(x, y, half, fmt="none", ecolor=line.look.colour, elinewidth=1, capsize=2)


def _sizes(names: Sequence[str], size: float) -> np.ndarray:
    """The heights in points of names in one row or several, of letters of a size."""
    return np.array([LINE_HEIGHT + 2 + 13.5 * name.count("\n") for name in names]) * size / 11


def _name_lines(axes: Axes, lines: Sequence[Line], names: Sequence[str], size: float) -> None:
    axes.get_ylim()  # settles the scale that the transformation below uses
    last = np.array([line.y[-1] for line in lines])
    on_screen = axes.transData.transform([(line.x[-1], line.y[-1]) for line in lines])
    points = axes.figure.dpi / 72  # pixels
    ends = (axes.bbox.y0 / points - OVER, axes.bbox.y1 / points)  # above them is the title
    heights = on_screen[:, 1] / points
    shifts = spread(heights, _sizes(names, size), ends) - heights
    aside = bool((abs(shifts) > size).any())  # too far for the eye: lines lead to them
    leader = {"arrowstyle": "-", "linewidth": 0.8, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
    for line, name, value, shift in zip(lines, names, last, shifts, strict=True):
        colour = line.look.colour
        axes.annotate(
            name, (1, value), xycoords=("axes fraction", "data"),
            xytext=(18 if aside else 8, shift), textcoords="offset points", va="center",
            color=colour, fontweight="bold", fontsize=size, annotation_clip=False,
            arrowprops={**leader, "color": colour} if aside else None,
        )  # fmt: skip


ROW, MARGIN = 0.24, 0.75  # inches of a row, and of a panel's title and axis
DOTS_AN_INCH = 130  # an inch
SMALL_POINTS = 8.5  # points of its letters


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    found: dict[str, Estimate | str]
    look: Look


@dataclass(frozen=True)
class Dots:
    """Panels that share their rows and, side by side, their scale."""

    name: str
    title: str
    rows: tuple[str, ...]
    panels: tuple[tuple[Panel, ...], ...]


def differences(groups: Sequence[Group], other: Group, names: dict[str, str]) -> Dots:
    """Return the paired differences in accuracy from one group, with 95 % intervals."""
    found: dict[str, Estimate | str] = {}
    for group in groups:
        if group is not other:
            values = 100 * last_differences(group, other, ACCURACY)
            found[names[group.method]] = estimate(values) if len(values) else "no common round"
    title = f"Test accuracy minus that of {names[other.method]} (points, 95 % intervals)"
    panel = Panel(in_words(other.data), found, look(0))
    return Dots("differences", title, tuple(found), ((panel,),))


def limits(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the ends of an axis: all means, and all but the longest tenth of the intervals."""
    known = [one for panel in panels for one in panel.found.values() if isinstance(one, Estimate)]
    known = [one for one in known if math.isfinite(one.mean)]
    halves = sorted(one.half_width for one in known if math.isfinite(one.half_width))
    longest = halves[max(0, math.ceil(0.9 * len(halves)) - 1)] if halves else 0.0
    ends = [0.0]
    for one in known:
        half = min(one.half_width, longest) if math.isfinite(one.half_width) else 0.0
        ends += [one.mean - half, one.mean + half]
    return around(min(ends), max(ends))


def dots_of(chart: Dots, made: Pictures) -> Figure:
    """Return the panels as a figure."""
    from matplotlib.figure import Figure

    across, down = max(map(len, chart.panels)), len(chart.panels)
    longest = max(map(len, chart.rows))
    width = made.size[0] * (1 if across == 1 else 1.4) + 0.075 * longest
    height = down * (ROW * len(chart.rows) + MARGIN)
    figure = Figure(figsize=(width, height), dpi=DOTS_AN_INCH, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes_of_row, panels in zip(grid, chart.panels, strict=True):
        ends = limits(panels)
        for axes in axes_of_row[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(axes_of_row, panels, strict=False):
            _draw_dots(axes, chart, panel, ends)
    if across == 1:
        grid[-1, 0].set_xlabel(chart.title)
    else:
        figure.supxlabel(chart.title, fontsize="medium", color=GREY)
    return figure


def _draw_dots(axes: Axes, chart: Dots, panel: Panel, ends: tuple[float, float]) -> None:
    axes.set_title(panel.title, fontsize="medium", pad=6)
    axes.set_xlim(*ends)
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(chart.rows)), chart.rows, fontsize=SMALL_POINTS)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=SMALL_POINTS)
    axes.axvline(0, color=GREY, linewidth=1)
    for place, row in enumerate(chart.rows):
        one = panel.found.get(row)
        if isinstance(one, str):
            axes.annotate(one, (0, place), xytext=(4, 0), textcoords="offset points", va="center",
                          fontsize=SMALL_POINTS, color=GREY)  # fmt: skip
        elif one is not None and math.isfinite(one.mean):
            half = one.half_width if math.isfinite(one.half_width) else None
            axes.errorbar(
                one.mean, place, xerr=half, fmt=panel.look.marker, color=panel.look.colour,
                markersize=5, elinewidth=1.4, capsize=2.5,
            )  # fmt: skip


# Columns that are drawn not against rounds alone.
AGAINST_ALL = ("test-accuracy", "bottom-decile", "train-loss")


def draw(
    groups: Sequence[Group],
    output: Path,
    against: str | None = None,
    made: Pictures | None = None,
    how: Drawn | None = None,
) -> list[Path]:
    """Draw every picture for which the runs have numbers."""
    made = made or Pictures()
    files: list[Path] = []
    if not made.formats:
        return files
    import matplotlib

    matplotlib.use("Agg")
    how = how or drawn(groups)
    with matplotlib.rc_context(made.style()):
        for prefix, found in by_data(groups, how, against).items():
            for chart in filter(in_a_file, found):
                files += save(figure_of(chart, made), output, f"{prefix}{chart.name}", made)
        for prefix, dots in _differences(groups, how, against).items():
            files += save(dots_of(dots, made), output, f"{prefix}{dots.name}", made)
    return files


def _differences(groups: Sequence[Group], how: Drawn, against: str | None) -> dict[str, Dots]:
    """Return the differences from a method with their intervals, by the prefix of their files."""
    datas = list(dict.fromkeys(group.data for group in groups))
    found = {}
    for data, prefix in zip(datas, prefixes(datas), strict=True):
        chosen = [group for group in groups if group.data == data]
        other = None if against is None else partner(groups, data, against)
        if other is not None and len(chosen) > 1:
            names = {group.method: how.name(group) for group in chosen}
            found[prefix] = differences(chosen, other, names)
    return found


def by_data(
    groups: Sequence[Group], how: Drawn, against: str | None = None
) -> dict[str, list[Chart]]:
    """Return the charts of each data set, by the prefix of their files."""
    datas = list(dict.fromkeys(group.data for group in groups))
    found = {}
    for data, prefix in zip(datas, prefixes(datas), strict=True):
        chosen = [group for group in groups if group.data == data]
        other = None if against is None else partner(groups, data, against)
        found[prefix] = charts(chosen, how, other)
    return found


def prefixes(datas: Sequence[str]) -> list[str]:
    """Return the prefix of each data set's files; no two are equal."""
    if len(datas) == 1:
        return [""]
    short = [safe(data.replace(" ", "")) for data in datas]
    if len({name.lower() for name in short}) < len(datas):
        # Labels that differ in spaces, or in capital letters on a disk that does not.
        short = [f"{index}-{name}" for index, name in enumerate(short, 1)]
    return [f"{name}-" for name in short]


def in_a_file(chart: Chart) -> bool:
    """Return whether a chart has a picture; those against wall time differ from run to run."""
    return chart.x in (ROUNDS, "") or (chart.x != SECONDS and chart.column in AGAINST_ALL)


def check_texts(made: Pictures, groups: Sequence[Group], how: Drawn, against: str | None) -> None:
    """Refuse texts for pictures that there are not."""
    texts: dict[str, Mapping[str, str]] = {"--title": made.titles, "--x-label": made.x_labels}
    if not any(texts.values()):
        return
    shown = [c for found in by_data(groups, how, against).values() for c in found if in_a_file(c)]
    names = sorted({name for chart in shown for name in (chart.column, chart.name)})
    for option, given in texts.items():
        for name in given:
            if name not in names:
                raise InputError(
                    f"{option} is for '{name}', which is no picture of these runs; "
                    f"{closest(name, names)}"
                )
