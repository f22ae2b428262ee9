"""Drawing by matplotlib: charts and forest plots in files, and a chart's panels for the page."""

from __future__ import annotations

import html
import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifed.report.charts import ROUNDS, Chart, Line, thinned
from mpifed.report.groups import Estimate
from mpifed.report.names import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#595959"
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": "large",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
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
    "path.simplify": False,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "mpifed",  # the same bytes for the same numbers
}
SIZE = (6.6, 4.2)  # inches, without the names in the right margin
SMALL = 0.62  # of the size, where there are several panels
ACROSS = 3  # panels in a row, at most
DOTS, DOTS_OF_MANY = 200, 110  # an inch, of one panel and of several

# In letters, whose height is 1 / 72 inches a point.
LEFT, BOTTOM, ABOVE = 5.0, 3.9, 0.9  # margins for numbers and labels
TITLE, ROW, LETTER = 1.25, 1.25, 0.72  # heights of rows; the width of a bold letter

Y_AXIS = "y-axis"  # the group id of the numbers and the grid of the vertical axis
FEW_POINTS = 12  # up to so many points each gets a marker
APART = 0.2  # of the axes between two markers of a line with more points
NARROW = 0.56  # the width of a letter that is not bold
INTERVAL = 4  # points of a thinned curve, of which the least and largest value are drawn


@dataclass(frozen=True)
class Pictures:
    """How pictures are made."""

    formats: tuple[str, ...] = ("png",)
    size: tuple[float, float] = SIZE
    font: str | None = None
    font_size: float = 11.0
    titles: Mapping[str, str] = field(default_factory=dict)
    x_labels: Mapping[str, str] = field(default_factory=dict)
    longest: int = 34
    """Letters in a row of a name beside its line."""

    def style(self) -> Any:
        """Return the parameters of matplotlib."""
        font = {} if self.font is None else {"font.family": [self.font, "sans-serif"]}
        return STYLE | {"font.size": self.font_size} | font


def save(figure: Figure, output: Path, name: str, pictures: Pictures) -> list[Path]:
    """Write a figure in each format."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # equal numbers, equal files
    files = []
    for ending in pictures.formats:
        files.append(output / f"{name}.{ending}")
        figure.savefig(files[-1], metadata=dates.get(ending))
    return files


def figure_of(
    chart: Chart, pictures: Pictures, panels: Sequence[Sequence[Line]] | None = None
) -> Figure:
    """Return a chart as a figure, or, without its title, some panels of it."""
    from matplotlib.figure import Figure

    titled, panels = panels is None, panels or chart.panels()
    several = len(chart.panels()) > 1
    across = min(ACROSS, math.ceil(math.sqrt(len(panels))))
    down = -(-len(panels) // across)
    em = pictures.font_size / 72
    # A line whose only point has its name has none in the margin.
    ended = [[line for line in lines if line.points != (line.name,)] for lines in panels]
    names = [[_filled(line.name, pictures.longest) for line in lines] for lines in ended]
    rows = [sum(1 + name.count("\n") for name in each) for each in names]
    width, height = (side * (SMALL if several else 1) for side in pictures.size)
    height = max(height, (BOTTOM + ABOVE + ROW * max(rows)) * em)
    every = [row for each in names for name in each for row in name.split("\n")]
    longest = max(map(len, every), default=0)
    right = (2 + LETTER * longest) * em
    width += right
    title = pictures.titles.get(chart.name, pictures.titles.get(chart.column, chart.title))
    title = textwrap.fill(title, max(20, int(width * across / (1.25 * LETTER * em))))
    above = (ABOVE + TITLE * bool(titled and panels[0][0].panel)) * em
    top = (TITLE * 1.3 * (title.count("\n") + 1) + 1.6) * em if titled else 0.0
    size = (width * across, height * down + top)
    figure = Figure(size, DOTS_OF_MANY if several else DOTS)
    if titled:
        start, high = LEFT * em / size[0], size[1]
        subtitle = "; ".join(filter(None, (chart.common, chart.remark)))
        figure.text(start, 1 - 0.8 * em / high, title, va="top", weight="bold", fontsize="large",
                    parse_math=False)  # fmt: skip
        figure.text(start, 1 - top / high, subtitle, color=GREY, fontsize="small", parse_math=False)
    for index, lines in enumerate(panels):
        row, column = divmod(index, across)
        left, bottom = column * width + LEFT * em, (down - 1 - row) * height + BOTTOM * em
        wide, high = width - LEFT * em - right, height - BOTTOM * em - above
        inches = np.array([left, bottom, wide, high])
        axes = figure.add_axes(tuple(inches / np.tile(size, 2)))
        x_label = pictures.x_labels.get(
            chart.name, pictures.x_labels.get(chart.column, chart.x_label)
        )
        axes.set_xlabel(x_label, parse_math=False)
        axes.set_title(lines[0].panel if titled else "", fontsize="medium", parse_math=False)
        axes.yaxis.set_gid(Y_AXIS)
        _scales(axes, chart, lines[0].panel, "medium" if not titled else "small")
        _draw(axes, chart, lines)
        _name_lines(axes, ended[index], names[index], pictures.font_size)
        _name_points(axes, lines, pictures.font_size)
    return figure


def _scales(axes: Axes, chart: Chart, panel: str, size: str) -> None:
    from matplotlib.ticker import LogFormatter, LogLocator, MaxNLocator

    if chart.y_log:
        axes.set_yscale("log")
        if size == "medium":  # without small exponents
            axes.yaxis.set_major_formatter(LogFormatter())
            axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    if chart.x_log:
        axes.set_xscale("log", subs=())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        fewest = MaxNLocator(6, steps=(1, 2, 5, 10), integer=chart.x == ROUNDS)
        axes.xaxis.set_major_locator(fewest)
    axes.set_xlim(*chart.x_limits)
    axes.set_ylim(*chart.y_limits)
    for x, name in filter(None, map(chart.marks.get, {"", panel})):
        axes.axvline(x, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
        axes.annotate(
            name, (x, 0.98), xycoords=("data", "axes fraction"), xytext=(5, 0),
            textcoords="offset points", color=GREY, fontsize=size, va="top",
        )  # fmt: skip


def _draw(axes: Axes, chart: Chart, lines: Sequence[Line]) -> None:
    """Draw lines, bands and guides; what belongs to a line has its method as its group id."""
    end, methods = chart.x_limits[1], {line.method for line in lines}
    for guide in chart.guides:
        if guide.method in methods:
            axes.plot(guide.x, guide.y, color=guide.look.colour, linewidth=1,
                      linestyle=(0, (4, 3)), gid=_id(guide, "guide"))  # fmt: skip
    intervals = int(72 * axes.bbox.width / axes.figure.dpi / INTERVAL)
    for index, line in enumerate(lines):
        if line.points:
            drawn = axes.errorbar(
                line.x, line.y, line.band, line.x_band, fmt=line.look.marker, capsize=2.5,
                color=line.look.colour, elinewidth=1.2, markersize=6, zorder=3,
            )  # fmt: skip
            for part in drawn.get_children():
                part.set_gid(_id(line, "mark"))
            continue
        thin = line.part(thinned(line.y, intervals))
        colour, x, y = line.look.colour, thin.x, thin.y
        # Markers of a long line are not where those of others are.
        every = (APART * (index + 0.5) / len(lines), APART) if len(x) > FEW_POINTS else None
        axes.plot(
            x, y, color=colour, linestyle=line.look.dashes, marker=line.look.marker,
            markevery=every, clip_on=False, zorder=3, gid=_id(line, "line"),
        )  # fmt: skip
        if line.band.any():
            low, high = y - thin.band, y + thin.band
            axes.fill(np.append(x, x[::-1]), np.append(high, low[::-1]), facecolor=f"{colour}1F",
                      edgecolor=f"{colour}80", linewidth=0.6, gid=_id(line, "band"))  # fmt: skip
        if x[-1] < end and chart.x:
            axes.plot([x[-1], end], [y[-1]] * 2, color=colour, linewidth=1,
                      linestyle=(0, (1, 2)), gid=_id(line, "rest"))  # fmt: skip


def _filled(name: str, longest: int) -> str:
    """Return a name in rows, of which none ends before or behind an equals sign."""
    return textwrap.fill(name.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"), longest)


def _id(line: Line, part: str) -> str:
    return f"{part} of {line.method}"


def _name_lines(axes: Axes, lines: Sequence[Line], names: Sequence[str], size: float) -> None:
    """Write each line's name in the right margin, beside its last value or as near as it fits."""
    if not lines:
        return
    axes.get_ylim()  # settles the scale that the transformation below uses
    points = axes.figure.dpi / 72  # pixels
    on_screen = axes.transData.transform([(line.x[-1], line.y[-1]) for line in lines])
    heights = on_screen[:, 1] / points
    rooms = np.array([ROW * size * (1 + name.count("\n")) for name in names])
    ends = (axes.bbox.y0 / points - size / 2, axes.bbox.y1 / points + size / 2)
    shifts = spread(heights, rooms, ends) - heights
    aside = bool((abs(shifts) > size).any())  # too far for the eye: lines lead to them
    leader = {"arrowstyle": "-", "linewidth": 0.8, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
    for line, name, shift in zip(lines, names, shifts, strict=True):
        colour = line.look.colour
        text = axes.annotate(
            name, (1, line.y[-1]), xycoords=("axes fraction", "data"),
            xytext=(1.6 * size if aside else 0.7 * size, shift), textcoords="offset points",
            va="center", color=colour, fontweight="bold", annotation_clip=False, parse_math=False,
            arrowprops={**leader, "color": colour} if aside else None, gid=_id(line, "name"),
        )  # fmt: skip
        if text.arrow_patch is not None:
            text.arrow_patch.set_gid(_id(line, "lead"))


def _name_points(axes: Axes, lines: Sequence[Line], size: float) -> None:
    """Write the names of points beside them, where they cover nothing, as far as there is room."""
    axes.get_ylim()  # settles the scale that the transformation below uses
    points = axes.figure.dpi / 72  # pixels
    named = [
        (name, (x, y), axes.transData.transform((x, y)) / points, line)
        for line in lines
        for name, x, y in zip(line.points, line.x, line.y, strict=False)
    ]
    # Rectangles (left, bottom, right, top) that are taken: the points, then their names.
    taken = [(x - 5, y - 5, x + 5, y + 5) for *_, (x, y), _ in named]
    for line in filter(attrgetter("points"), lines):
        across = np.zeros_like(line.x) if line.x_band is None else line.x_band
        for x, y, wide, high in zip(line.x, line.y, across, line.band, strict=True):
            bars = [(x - wide, y), (x + wide, y), (x, y - high), (x, y + high)]
            left, right, low, top = axes.transData.transform(bars) / points
            taken += [(*(left - 1), *(right + 1)), (*(low - 1), *(top + 1))]
    box = axes.bbox.x0 / points, axes.bbox.y0 / points, axes.bbox.x1 / points
    for name, position, (x, y), line in named:
        wide, gap = NARROW * size * len(name), 0.7 * size
        candidates = [
            (x + dx if dx > 0 else x - wide - gap if dx < 0 else x - wide / 2, y + dy - size / 2)
            for dy in (0, gap + 3, -gap - 3, 2 * gap + 6, -2 * gap - 6)
            for dx in ((gap, -gap) if dy == 0 else (gap, 0, -gap))
        ]
        rooms = [(left, low, left + wide, low + size) for left, low in candidates]
        inside = [r for r in rooms if box[0] <= r[0] and r[2] <= box[2] and box[1] <= r[1]] or rooms
        room = min(inside, key=lambda room: sum(_overlap(room, other) for other in taken))
        taken.append(room)
        axes.annotate(
            name, position, xytext=(room[0] - x, room[1] + size / 2 - y),
            textcoords="offset points", color=line.look.colour, va="center",
            annotation_clip=False, parse_math=False, gid=_id(line, "tag"),
        )  # fmt: skip


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the area that two rectangles have in common."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, wide) * max(0.0, high)


def spread(
    heights: np.ndarray, sizes: np.ndarray, ends: tuple[float, float] = (-np.inf, np.inf)
) -> np.ndarray:
    """Return the middles of names moved apart so that none covers another."""
    from sklearn.isotonic import isotonic_regression

    order = np.argsort(heights, kind="stable")
    room = sizes[order]
    # How far each is from the first where all touch; what is left must not decrease.
    from_first = np.concatenate([[0.0], np.cumsum((room[1:] + room[:-1]) / 2)])
    starts = isotonic_regression(heights[order] - from_first)
    least, most = ends[0] + room[0] / 2, ends[1] - room[-1] / 2 - from_first[-1]
    placed = np.empty(len(heights))
    placed[order] = np.clip(starts, least, max(least, most)) + from_first
    return placed


def svg_panels(
    chart: Chart, pictures: Pictures, numbers: Mapping[str, int], front: str
) -> list[str]:
    """Return each panel as SVG for a page, with its scales for the page's script to read.

    ``front`` begins the ids of what a panel refers to; ``numbers`` has a number for each method.
    """
    svgs = []
    for index, lines in enumerate(chart.panels()):
        figure = figure_of(chart, pictures, [lines])
        (axes,) = figure.axes
        wide, high = 72 * figure.get_size_inches()
        box = axes.get_position()
        x = (box.x0 * wide, box.x1 * wide, *chart.x_limits, chart.x_log)
        y = ((1 - box.y0) * high, (1 - box.y1) * high, *chart.y_limits, chart.y_log)
        ends = "; ".join(
            f"{line.name} {'is' if line.points else 'ends'} at {line.y[-1]:.4g}" for line in lines
        )
        label = html.escape(f"{chart.title} against {chart.x_label}. {ends}.")
        tag = (
            f'<svg class="panel" style="--cut:{wide / (x[1] + pictures.font_size):.3f}" '
            f'tabindex="0" role="img" aria-label="{label}" '
            f'data-x="{_numbers(x)}" data-y="{_numbers(y)}" '
            f'data-label="{html.escape(chart.x_label)}"'
        )
        names = {line.method: html.escape(line.name) for line in lines}
        svgs.append(_inline(figure, tag, f"{front}{index}", numbers, names))
    return svgs


def swatch(look: Look, name: str) -> str:
    """Return a piece of a method's line with its marker, as SVG to use by its id ``name``."""
    from matplotlib.figure import Figure

    figure = Figure((34 / 72, 14 / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, 34)
    axes.plot([1, 17, 33], [0, 0, 0], color=look.colour, linestyle=look.dashes,
              marker=look.marker, markevery=[1], markersize=6, clip_on=False)  # fmt: skip
    return _inline(figure, f'<svg id="{name}"', name, {}, {})


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.9g}" for value in values)


def _inline(
    figure: Figure, tag: str, front: str, numbers: Mapping[str, int], names: Mapping[str, str]
) -> str:
    """Return a figure as an element of a page: ids of its own, and groups that belong to a method.

    A group of matplotlib's SVG has the group id of what it draws: 'line of FedEM'.
    """
    file = io.StringIO()
    none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=none, transparent=True)
    drawn = file.getvalue()
    wide, high = 72 * figure.get_size_inches()

    def group(match: re.Match[str]) -> str:
        part, _, method = html.unescape(match[1]).partition(" of ")
        if method not in numbers:
            return f'<g class="{part}">' if part == Y_AXIS else "<g>"
        name = f' data-name="{names[method]}"' if part == "line" else ""
        return f'<g class="{part}" data-s="{numbers[method]}"{name}>'

    drawn = re.sub(r"<g id=\"([^\"]*)\">", group, drawn[drawn.index("</style>") :])
    drawn = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{front}-", drawn)
    drawn = re.sub(r"(\.\d\d)\d+", r"\1", drawn)  # a hundredth of a point
    drawn = re.sub(r"#([0-9a-f]{6})\b", r"var(--x\1,#\1)", drawn)  # other colours in the dark
    drawn = re.sub(r"font-family: [^;\"]*(; )?| transform=\"rotate\(-0 [^\"]*\"", "", drawn)
    drawn = re.sub(r"\s*\n\s*", "\n", drawn).replace("xlink:href", "href").replace("\nL ", "L")
    inner = drawn.removeprefix("</style>\n</defs>\n")
    return f'{tag} viewBox="0 0 {wide:g} {high:g}">{inner}'


@dataclass(frozen=True)
class Forest:
    """A panel of a forest plot: estimates by the name of their row, or a word for a missing one."""

    title: str
    estimates: Mapping[str, Estimate | str]
    look: Look


def forest_figure(title: str, forests: Sequence[Sequence[Forest]], pictures: Pictures) -> Figure:
    """Return means with their intervals as a figure, in rows of panels that share their scale."""
    from matplotlib.figure import Figure

    across, down = max(map(len, forests)), len(forests)
    names = list(dict.fromkeys(name for row in forests for one in row for name in one.estimates))
    width = pictures.size[0] * (1 if across == 1 else 1.4) + 0.075 * max(map(len, names))
    height = down * (0.24 * len(names) + 0.75)
    figure = Figure(figsize=(width, height), dpi=DOTS_OF_MANY, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex="row", sharey=True)
    for row, forests_of_row in zip(grid, forests, strict=True):
        for axes, forest in zip(row, forests_of_row, strict=False):
            _draw_forest(axes, forest, names)
        for axes in row[len(forests_of_row) :]:
            axes.set_axis_off()
    figure.supxlabel(title, fontsize="medium", color=GREY, parse_math=False)
    return figure


def _draw_forest(axes: Axes, forest: Forest, names: Sequence[str]) -> None:
    axes.set_title(forest.title, fontsize="medium", parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, fontsize="small", parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=GREY, linewidth=1)
    for row, name in enumerate(names):
        one = forest.estimates.get(name)
        if isinstance(one, str):
            axes.annotate(one, (0, row), xytext=(4, 0), textcoords="offset points", va="center",
                          fontsize="small", color=GREY)  # fmt: skip
        elif one is not None and math.isfinite(one.mean):
            half = one.shown if math.isfinite(one.shown) else None
            axes.errorbar(
                one.mean, row, xerr=half, fmt=forest.look.marker, color=forest.look.colour,
                markersize=5, elinewidth=1.4, capsize=2.5,
            )  # fmt: skip
