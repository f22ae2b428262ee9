"""The charts of a report: lines on a pair of axes, for the page and for picture files alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mpifed.report.groups import (
    BANDS,
    Curve,
    Estimate,
    Group,
    contractions,
    difference,
    estimate,
)
from mpifed.report.names import Look, looks_of_methods
from mpifed.report.runs import ACCURACY, DECILE, DISTANCE, SCORES
from mpifed.report.tables import bit_prefix, measured, measures

LINES = 6  # in one panel; more make small multiples

ROUNDS, BITS, SECONDS, CLOCK = "rounds", "bits", "seconds", "simulated-seconds"
X_LABELS = {
    ROUNDS: "communication round",
    SECONDS: "wall time (s)",
    CLOCK: "time of the simulated federation (s)",
}
# Numbers of the mixing matrices, as ``Exchange.graph`` has them.
GRAPH = {
    "p": "consensus rate p",
    "spectral_gap": "spectral gap, a round",
    "degree": "degree: messages to a client in a round, at most",
}
PER_CENT = (0.0, 100.0)
MANY = 3  # different numbers of graphs that make a chart
WIDE = 10.0  # from this ratio of most to fewest bits on, their axis is logarithmic


@dataclass(frozen=True)
class Line:
    """One curve of finite points, with the half height of its band.

    Where points have names, they are what is drawn: each with its errors in both directions.
    """

    x: np.ndarray
    y: np.ndarray
    band: np.ndarray
    name: str
    look: Look
    method: str = ""
    panel: str = ""
    x_band: np.ndarray | None = None
    points: tuple[str, ...] = ()

    def part(self, keep: np.ndarray) -> Line:
        """Return some points of the line."""
        return replace(self, x=self.x[keep], y=self.y[keep], band=self.band[keep])


@dataclass(frozen=True)
class Chart:
    """Lines on a pair of axes, in as many panels as they need.

    ``common`` is what all lines have in common, the data set first, and ``bands`` what is around
    them. Bands are cut at ``y_ends``. ``marks`` has vertical lines with their names by the title of
    their panel, "" for all of them.
    """

    column: str
    x: str
    title: str
    subtitle: str
    x_label: str
    lines: tuple[Line, ...] = ()
    guides: tuple[Line, ...] = ()
    x_log: bool = False
    y_log: bool = False
    marks: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    common: str = ""
    bands: str = ""
    y_ends: tuple[float, float] = (-math.inf, math.inf)

    @property
    def name(self) -> str:
        """The name of its file, without an ending."""
        return f"{self.column}-{self.x}" if self.x else self.column

    @property
    def remark(self) -> str:
        """The subtitle with what bands and errors are, if there are some."""
        bands = self.bands * any(line.band.any() for line in self.lines)
        return "; ".join(filter(None, (self.subtitle, bands)))

    @property
    def x_limits(self) -> tuple[float, float]:
        """The ends of the horizontal axis."""
        if not self.x:  # shares of the clients
            return 0.0, 100.0
        errors = [0.0 if line.x_band is None else line.x_band for line in self.lines]
        ends = list(zip(self.lines, errors, strict=True))
        low = float(min((line.x - error).min() for line, error in ends))
        high = float(max((line.x + error).max() for line, error in ends))
        return around(low, high, self.x_log, 0.03)

    @property
    def y_limits(self) -> tuple[float, float]:
        """The ends of the vertical axis: around lines, guides, and bands.

        Bands are cut where they would take more than half of the axis.
        """
        every = (*self.lines, *self.guides)
        low, high = (float(end) for end in (min(line.y.min() for line in every),
                                            max(line.y.max() for line in every)))  # fmt: skip
        least = min(float((line.y - line.band).min()) for line in every)
        most = max(float((line.y + line.band).max()) for line in self.lines)
        if self.y_log:
            return around(least, most, log=True)
        room = (high - low) / 2 or math.inf
        ends = max(least, low - room, self.y_ends[0]), min(most, high + room, self.y_ends[1])
        return around(min(low, ends[0]), max(high, ends[1]))

    def panels(self) -> list[list[Line]]:
        """Return the lines of each panel, as evenly as it can be."""
        panels = []
        for panel in dict.fromkeys(line.panel for line in self.lines):
            lines = [line for line in self.lines if line.panel == panel]
            count = 1 if lines[0].points else -(-len(lines) // LINES)
            parts = np.array_split(np.arange(len(lines)), count)
            panels += [[lines[index] for index in part] for part in parts]
        return panels


def around(low: float, high: float, log: bool = False, margin: float = 0.04) -> tuple[float, float]:
    """Return limits of an axis around values from ``low`` to ``high``."""
    if log:
        factor = (high / low) ** margin if high > 1.0001 * low else 2.0
        return low / factor, high * factor
    extra = margin * (high - low)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        extra = max(0.01 * abs(low), 0.5)
    return low - extra, high + extra


def thinned(values: np.ndarray, intervals: int) -> np.ndarray:
    """Return the points of a curve that draw alike: the least and largest of each interval."""
    points = len(values)
    if points <= 2 * intervals:
        return np.arange(points)
    parts = np.array_split(np.arange(points), intervals)
    extremes = [part[find(values[part])] for part in parts for find in (np.argmin, np.argmax)]
    return np.unique([0, *extremes, points - 1])


def look_by_method(groups: Sequence[Group]) -> dict[str, Look]:
    """Return how the methods of all groups are drawn."""
    named = {group.method: group.runs[0].config["algorithm"]["name"] for group in groups}
    return looks_of_methods([(name, method) for method, name in named.items()])


def charts(
    groups: Sequence[Group],
    drawn: Mapping[str, Look],
    other: Group | None = None,
    common_title: str = "",
) -> list[Chart]:
    """Return the charts of one data set for which its runs have numbers.

    ``common_title`` is what the names of all methods leave out.
    """
    candidates = []
    measure_of = measures(groups)
    for column, measure in {c: measure_of[c] for c in (*SCORES, *measured(groups))}.items():
        name = "bottom-decile" if column == DECILE else column.replace("_", "-")
        chart = Chart(name, ROUNDS, measure.title, "", X_LABELS[ROUNDS], y_log=measure.log)
        chart = replace(chart, y_ends=PER_CENT) if measure.percent else chart
        curves = [(group, group.curve(column, measure.factor)) for group in groups]
        for x in (ROUNDS, BITS) if name == CLOCK else (ROUNDS, BITS, SECONDS, CLOCK):
            lines = _lines(x, curves, drawn)
            if x != BITS:
                candidates.append(_scaled(replace(chart, x=x, x_label=X_LABELS[x]), lines))
            elif any(line.x[-1] > 0 for line in lines):
                candidates.append(_against_bits(chart, lines))
    if other is not None:
        title = f"Test accuracy minus that of {other.title} (points)"
        curves = [(g, difference(g, other, ACCURACY, 100)) for g in groups if g is not other]
        lines = _lines(ROUNDS, curves, drawn)
        candidates.append(Chart("difference", ROUNDS, title, "", X_LABELS[ROUNDS], tuple(lines)))
    candidates += [_of_clients(groups, drawn), _of_consensus(groups, drawn)]
    candidates += [_of_graphs(groups, drawn, number) for number in GRAPH]
    common = ", ".join(filter(None, (groups[0].words[0], common_title)))
    bands = f"bands: {BANDS[groups[0].spread]} over seeds"
    return [replace(c, common=common, bands=c.bands or bands) for c in candidates if c.lines]


def _lines(x: str, curves: Sequence[tuple[Group, Curve]], drawn: Mapping[str, Look]) -> list[Line]:
    """The curves that have finite values, over a measure that is known wherever they are."""
    lines = []
    for group, curve in curves:
        positions = {ROUNDS: curve.rounds, BITS: curve.bits}.get(x)
        positions = group.curve(x.replace("-", "_")).mean if positions is None else positions
        finite = np.isfinite(curve.mean)
        if finite.any() and np.isfinite(positions).all():
            line = Line(positions, curve.mean, curve.band, group.title, drawn[group.method])
            lines.append(replace(line, method=group.method).part(finite))
    return lines


def _against_bits(chart: Chart, lines: Sequence[Line]) -> Chart:
    """The chart against the bits sent. A method that sends nothing has only its last value."""
    last = [line.x[-1] for line in lines if line.x[-1] > 0]
    wide = max(last) >= WIDE * min(last)
    unit, prefix = bit_prefix(max(last))
    lines = [replace(line, x=line.x / unit) for line in lines]
    if wide:
        lines = [line if line.x[-1] == 0 else line.part(line.x > 0) for line in lines]
    start = min(line.x[0] for line in lines if line.x[-1] > 0)
    lines = [line if line.x[-1] > 0 else _last_value(line, start) for line in lines]
    label = f"sent by all clients, up and down ({prefix}bit)"
    return _scaled(replace(chart, x=BITS, x_label=label, x_log=wide), lines)


def _last_value(line: Line, x: float) -> Line:
    name = f"{line.name} (sends nothing)"
    return replace(line, x=np.array([x]), y=line.y[-1:], band=line.band[-1:], name=name)


def _scaled(chart: Chart, lines: Sequence[Line]) -> Chart:
    """Return the chart with lines; its axis is not logarithmic if one of them is negative."""
    log = chart.y_log and all((line.y >= 0).all() for line in lines)
    if log:
        lines = [_positive(line) for line in lines if (line.y > 0).any()]
    return replace(chart, lines=tuple(lines), y_log=log)


def _positive(line: Line) -> Line:
    """Return the part of a line that a logarithmic axis can show, with its band."""
    line = line.part(line.y > 0)
    return replace(line, band=np.minimum(line.band, 0.9 * line.y))


def _of_clients(groups: Sequence[Group], drawn: Mapping[str, Look]) -> Chart:
    """Each method's clients from the least to the most accurate one."""
    lines = []
    for group in groups:
        accuracies = group.client_accuracies()
        if accuracies is not None:
            share = 100 * np.arange(1, len(accuracies) + 1) / len(accuracies)
            y, look = 100 * np.sort(accuracies), drawn[group.method]
            lines.append(Line(share, y, np.zeros_like(y), group.title, look, group.method))
    title, x_label = "Test accuracy of each client (%)", "clients, least accurate first (%)"
    marks = {"": (10.0, "bottom decile")}
    return Chart("clients", "", title, "", x_label, tuple(lines), marks=marks)


def _of_consensus(groups: Sequence[Group], drawn: Mapping[str, Look]) -> Chart:
    """The squared distance from consensus, and the predicted one from its start."""
    title = "Distance from consensus, (1/n) Σ ‖x − x̄‖²"
    chart = Chart("consensus-distance", ROUNDS, title, "", X_LABELS[ROUNDS])
    curves = [(group, group.curve(DISTANCE)) for group in groups]
    chart = _scaled(replace(chart, y_log=True), _lines(ROUNDS, curves, drawn))
    if not chart.lines:
        return chart
    floor = min(float(line.y.min()) for line in chart.lines) / 2
    end = max(float(line.x[-1]) for line in chart.lines)
    left = {group.method: contractions(group)[0] for group in groups}
    guides = []
    for line in chart.lines:
        factor = left[line.method]
        if 0 < factor < 1:
            last = line.x[0] + np.log(floor / line.y[0]) / np.log(factor)
            x = np.linspace(line.x[0], min(last, end), 50)
            y = line.y[0] * factor ** (x - line.x[0])
            guides.append(replace(line, x=x, y=y, band=np.zeros_like(x)))
    remark = "thin: what averaging alone is predicted to leave" if guides else ""
    return replace(chart, subtitle=remark, guides=tuple(guides))


def _of_graphs(groups: Sequence[Group], drawn: Mapping[str, Look], number: str) -> Chart:
    """The last accuracy against a number of the graph, means over seeds and draws of the graph."""
    lines = []
    for group in groups:
        x = estimate(
            np.array([run.graph.get(number, math.nan) for run in group.runs]), group.spread
        )
        y = group.estimate(ACCURACY, 100)
        if x.count and y.count:
            lines.append(named_point(x, y, group.title, drawn[group.method], group.method))
    if len({float(line.x[0]) for line in lines}) < MANY:
        lines = []
    title = f"Test accuracy (%) against the {re.split('[,:]', GRAPH[number])[0]}"
    bands = f"bars: {BANDS[groups[0].spread]} over seeds"
    return Chart("graph", number, title, "", GRAPH[number], tuple(lines), bands=bands,
                 y_ends=PER_CENT)  # fmt: skip


def named_point(x: Estimate, y: Estimate, name: str, look: Look, method: str = "") -> Line:
    """Return a point with its errors and its name."""
    x_band, band = (np.nan_to_num([one.shown]) for one in (x, y))
    position = np.array([x.mean]), np.array([y.mean])
    return Line(*position, band, name, look, method, x_band=x_band, points=(name,))
