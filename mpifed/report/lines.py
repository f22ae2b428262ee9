"""Charts drawn by matplotlib: each line is named in the right margin beside its last value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifed.errors import InputError
from mpifed.report.charts import Chart, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "savefig.facecolor": "white",
    "svg.hashsalt": "mpifed",  # the same bytes for the same numbers
}
SIZE = (6.6, 4.2)  # inches, without the names in the right margin
AXES = (0.1, 0.12, 0.88, 0.76)  # left, bottom, width, height as parts of it
ACROSS = 3  # panels in a row, at most
NAMES_WIDTH = 1.9  # inches between panels, for names
SMALL = 0.62  # of the size of one panel, where there are several
LINE_HEIGHT = 15  # points between two names in the margin
FEW_POINTS = 12  # up to so many points each gets a marker
MARKED = 6  # markers on a line of more points


@dataclass(frozen=True)
class Pictures:
    """How pictures are made.

    Attributes
    ----------
    formats : tuple of str
        Endings of their files: png, svg, pdf.
    size : tuple of float
        Width and height of a panel in inches, without the names in the right margin.
    font : str | None
        A family of fonts; None is matplotlib's own.
    font_size : float
        Points.
    titles, x_labels : mapping of str to str
        Texts by the name of a chart, or of what it shows.
    """

    formats: tuple[str, ...] = ("png",)
    size: tuple[float, float] = SIZE
    font: str | None = None
    font_size: float = 11.0
    titles: Mapping[str, str] = field(default_factory=dict)
    x_labels: Mapping[str, str] = field(default_factory=dict)

    def style(self) -> dict[str, Any]:
        """Return what matplotlib is told."""
        font = {} if self.font is None else {"font.family": [self.font, "sans-serif"]}
        return STYLE | {"font.size": self.font_size} | font


def figure_of(chart: Chart, made: Pictures) -> Figure:
    """Return a chart as a figure, several panels if it has many lines.

    Parameters
    ----------
    chart : Chart
        The chart.
    made : Pictures
        Size and texts.
    """
    from matplotlib.figure import Figure

    panels = chart.panels()
    title, x_label = (
        _text(made.titles, chart, chart.title),
        _text(made.x_labels, chart, chart.x_label),
    )
    several = len(panels) > 1
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    width, height = (side * (SMALL if several else 1) for side in made.size)
    wide, high = width + (NAMES_WIDTH if several else 0), height + (0.35 if several else 0)
    figure = Figure(figsize=(wide * across, high * down))
    first: Axes | None = None
    for index, lines in enumerate(panels):
        row, column = divmod(index, across)
        left, bottom = (column * wide + AXES[0] * width), (down - 1 - row) * high + AXES[1] * height
        place = left / (wide * across), bottom / (high * down)
        part = AXES[2] * width / (wide * across), AXES[3] * height / (high * down)
        axes = figure.add_axes((*place, *part), sharex=first, sharey=first)
        first = first or axes
        if index == 0:
            axes.set_title(title)
            axes.annotate(chart.subtitle, (0, 1), xycoords="axes fraction", xytext=(0, 7),
                          textcoords="offset points", color=GREY, fontsize="small")  # fmt: skip
        if row == down - 1 or index + across >= len(panels):
            axes.set_xlabel(x_label)
        _scales(axes, chart)
        _draw(axes, chart, lines)
    limits = _limits(chart)
    if first is not None:
        first.set_xlim(*limits)
    for axes, lines in zip(figure.axes, panels, strict=True):
        _name_lines(axes, lines)
    return figure


def save(
    figure: Figure, output: Path, name: str, made: Pictures, dots: float | None = None
) -> list[Path]:
    """Write a figure in each format.

    Parameters
    ----------
    figure : Figure
        The figure.
    output : Path
        The directory.
    name : str
        The name of the files, without an ending.
    made : Pictures
        The formats.
    dots : float, optional
        Pixels an inch.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    InputError
        If a file cannot be written.
    """
    files = [output / f"{name}.{ending}" for ending in made.formats]
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # equal numbers, equal files
    for path, ending in zip(files, made.formats, strict=True):
        try:
            figure.savefig(path, metadata=dates.get(ending), dpi=dots or STYLE["savefig.dpi"])
        except OSError as error:
            raise InputError(f"--output {output} cannot be written: {error.strerror}") from None
    return files


def _text(texts: Mapping[str, str], chart: Chart, otherwise: str) -> str:
    return texts.get(chart.name, texts.get(chart.column, otherwise))


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
    if chart.mark is not None:
        place, name = chart.mark
        axes.axvline(place, color=GREY, linewidth=1, linestyle=(0, (2, 2)))
        axes.annotate(
            name, (place, 0.98), xycoords=("data", "axes fraction"), xytext=(5, 0),
            textcoords="offset points", color=GREY, fontsize="small", va="top",
        )  # fmt: skip


def _draw(axes: Axes, chart: Chart, lines: Sequence[Line]) -> None:
    end = max(line.x[-1] for line in chart.lines)
    shown = {line.method for line in lines}
    for guide in chart.guides:
        if guide.method in shown:
            axes.plot(guide.x, guide.y, color=guide.look.colour, linewidth=1, linestyle=(0, (4, 3)))
    for index, line in enumerate(lines):
        colour, style = line.look.colour, line.look.dashes
        axes.plot(
            line.x, line.y, color=colour, linestyle=style, marker=line.look.marker,
            markevery=marked(len(line.x), index, len(lines)), clip_on=False, zorder=3,
        )  # fmt: skip
        if line.band.any():
            low, high = line.y - line.band, line.y + line.band
            axes.fill_between(line.x, low, high, color=colour, alpha=0.12, linewidth=0)
            for edge in (low, high):  # so that bands that overlap can be told apart
                axes.plot(line.x, edge, color=colour, linewidth=0.6, linestyle=style, alpha=0.7)
        if line.x[-1] < end and chart.x:
            axes.plot([line.x[-1], end], [line.y[-1]] * 2, color=colour, linewidth=1,
                      linestyle=(0, (1, 2)))  # fmt: skip


def marked(points: int, index: int, lines: int) -> list[int]:
    """Return the points of a line that have markers: all of few, else some, apart from the others'.

    Parameters
    ----------
    points : int
        The points of the line.
    index, lines : int
        Its place among the lines of the panel, and their number.

    Examples
    --------
    >>> marked(3, 0, 2), marked(121, 1, 2)
    ([0, 1, 2], [15, 35, 55, 75, 95, 115])
    """
    if points <= FEW_POINTS:
        return list(range(points))
    shift = (index + 0.5) / lines
    return [int((k + shift) * (points - 1) / MARKED) for k in range(MARKED)]


def spread(heights: np.ndarray, gap: float = LINE_HEIGHT) -> np.ndarray:
    """Return heights moved apart so that neighbours are at least ``gap`` apart.

    Neighbours that are too close form a bundle around their mean; bundles that meet are joined.

    Parameters
    ----------
    heights : ndarray of float64, shape (n,)
        The heights, in any order.
    gap : float, default LINE_HEIGHT
        The least distance.

    Returns
    -------
    ndarray of float64, shape (n,)
        The new heights, in the same order.

    Examples
    --------
    >>> spread(np.array([0.0, 1.0, 9.0]), gap=2.0)
    array([-0.5,  1.5,  9. ])
    """
    order = np.argsort(heights, kind="stable")
    bundles: list[list[float]] = []
    for height in heights[order]:
        bundles.append([float(height)])
        while (
            len(bundles) > 1 and _places(bundles[-2], gap)[-1] + gap > _places(bundles[-1], gap)[0]
        ):
            bundles[-2:] = [bundles[-2] + bundles[-1]]
    placed = np.empty(len(heights))
    placed[order] = np.concatenate([_places(bundle, gap) for bundle in bundles])
    return placed


def _places(bundle: Sequence[float], gap: float) -> np.ndarray:
    return np.mean(bundle) + gap * (np.arange(len(bundle)) - (len(bundle) - 1) / 2)


def _name_lines(axes: Axes, lines: Sequence[Line]) -> None:
    axes.get_ylim()  # settles the scale that the transformation below uses
    last = np.array([line.y[-1] for line in lines])
    on_screen = axes.transData.transform([(line.x[-1], line.y[-1]) for line in lines])
    heights = on_screen[:, 1] * 72 / axes.figure.dpi  # points
    size = float(axes.xaxis.label.get_fontsize())
    for line, value, shift in zip(
        lines, last, spread(heights, LINE_HEIGHT * size / 11) - heights, strict=True
    ):
        axes.annotate(
            line.name, (1, value), xycoords=("axes fraction", "data"), xytext=(8, shift),
            textcoords="offset points", va="center", color=line.look.colour, fontweight="bold",
            annotation_clip=False,
        )  # fmt: skip
