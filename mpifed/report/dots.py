"""Means with their intervals as dots: a row for each method, small multiples beside each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpifed.report.groups import Group
from mpifed.report.intervals import Estimate, estimate
from mpifed.report.looks import Look, look
from mpifed.report.paired import last_differences
from mpifed.report.pictures import GREY, Pictures
from mpifed.report.scale import around
from mpifed.report.tables import ACCURACY
from mpifed.report.words import in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW, MARGIN = 0.24, 0.75  # inches of a row, and of a panel's title and axis
DOTS = 130  # an inch
SMALL = 8.5  # points of its letters


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


def figure_of(chart: Dots, made: Pictures) -> Figure:
    """Return the panels as a figure."""
    from matplotlib.figure import Figure

    across, down = max(map(len, chart.panels)), len(chart.panels)
    longest = max(map(len, chart.rows))
    width = made.size[0] * (1 if across == 1 else 1.4) + 0.075 * longest
    height = down * (ROW * len(chart.rows) + MARGIN)
    figure = Figure(figsize=(width, height), dpi=DOTS, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes_of_row, panels in zip(grid, chart.panels, strict=True):
        ends = limits(panels)
        for axes in axes_of_row[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(axes_of_row, panels, strict=False):
            _draw(axes, chart, panel, ends)
    if across == 1:
        grid[-1, 0].set_xlabel(chart.title)
    else:
        figure.supxlabel(chart.title, fontsize="medium", color=GREY)
    return figure


def _draw(axes: Axes, chart: Dots, panel: Panel, ends: tuple[float, float]) -> None:
    axes.set_title(panel.title, fontsize="medium", pad=6)
    axes.set_xlim(*ends)
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(chart.rows)), chart.rows, fontsize=SMALL)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.axvline(0, color=GREY, linewidth=1)
    for place, row in enumerate(chart.rows):
        one = panel.found.get(row)
        if isinstance(one, str):
            axes.annotate(one, (0, place), xytext=(4, 0), textcoords="offset points", va="center",
                          fontsize=SMALL, color=GREY)  # fmt: skip
        elif one is not None and math.isfinite(one.mean):
            half = one.half_width if math.isfinite(one.half_width) else None
            axes.errorbar(
                one.mean, place, xerr=half, fmt=panel.look.marker, color=panel.look.colour,
                markersize=5, elinewidth=1.4, capsize=2.5,
            )  # fmt: skip
