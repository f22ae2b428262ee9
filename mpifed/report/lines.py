"""Charts drawn by matplotlib: each line is named in the right margin beside its last value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpifed.report.chart import Chart, Line, bars, folded, height_limits
from mpifed.report.pictures import GREY, Pictures
from mpifed.report.placing import LINE_HEIGHT, beside, marked, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
