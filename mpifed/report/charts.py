"""A chart as data: lines on a pair of axes, drawn by matplotlib or as SVG.

The charts of a report, for pictures and for the page alike.

Curves thinned to what a screen shows.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mpifed.report.groups import Curve, Group
from mpifed.report.looks import Look, looks
from mpifed.report.names import in_words, method_title
from mpifed.report.runs import MEASURES
from mpifed.report.scale import around
from mpifed.report.tables import ACCURACY, DECILE, DISTANCE, bit_prefix, measured, minus
from mpifed.report.tables import contractions as numbers

# Lines in one panel, at most; more make small multiples.
LINES = 6

# Bands in one panel, at most; with more of them, bars beside each other, which cannot merge.
BANDS = 2


@dataclass(frozen=True)
class Line:
    """One curve of finite points."""

    x: np.ndarray
    y: np.ndarray
    band: np.ndarray
    name: str
    look: Look
    method: str = ""
    panel: str = ""


@dataclass(frozen=True)
class Chart:
    """Lines on a pair of axes."""

    column: str
    x: str
    title: str
    subtitle: str
    x_label: str
    lines: tuple[Line, ...]
    guides: tuple[Line, ...] = ()
    x_log: bool = False
    y_log: bool = False
    mark: tuple[float, str] | None = None

    @property
    def name(self) -> str:
        """The name of its file, without an ending."""
        return f"{self.column}-{self.x}" if self.x else self.column

    @property
    def whole(self) -> bool:
        """Whether its horizontal axis has whole numbers, as rounds are."""
        return self.x == "rounds"

    def panels(self) -> list[tuple[Line, ...]]:
        """Return the lines of each panel: at most ``LINES``, as evenly as it can be."""
        found = []
        for panel in dict.fromkeys(line.panel for line in self.lines):
            lines = [line for line in self.lines if line.panel == panel]
            parts = np.array_split(np.arange(len(lines)), -(-len(lines) // LINES))
            for part in parts:
                found += _unlike([lines[index] for index in part])
        return found


def _unlike(lines: Sequence[Line]) -> list[tuple[Line, ...]]:
    """Divide lines so that no two of a part have one colour and one kind of dashes."""
    found: list[dict[tuple[str, tuple[float, ...]], Line]] = []
    for line in lines:
        drawn = line.look.colour, line.look.strokes
        room = next((part for part in found if drawn not in part), None)
        if room is None:
            found.append({drawn: line})
        else:
            room[drawn] = line
    return [tuple(part.values()) for part in found]


def bars(lines: Sequence[Line]) -> list[float] | None:
    """Return how far the bars of each line are moved apart, in widths of a bar."""
    if sum(bool(line.band.any()) for line in lines) <= BANDS:
        return None
    return [index - (len(lines) - 1) / 2 for index in range(len(lines))]


def folded(names: Sequence[str], longest: int) -> list[str]:
    r"""Return names of lines, those that are too long in several rows."""
    return [name if len(name) <= longest else "\n".join(_rows(name, longest)) for name in names]


def _rows(name: str, longest: int) -> list[str]:
    method, comma, rest = name.partition(", ")
    rows = _wrapped(method, longest)
    settings = rest.split(", ") if comma else []
    open_row = False  # whether a setting may stand behind the last one
    for setting in (f"{one}," for one in settings):
        if open_row and len(rows[-1]) + len(setting) <= longest:
            rows[-1] += f" {setting}"
        else:
            rows += _wrapped(setting, longest)
        open_row = True
    return [*rows[:-1], rows[-1].removesuffix(",")]


def _wrapped(words: str, longest: int) -> list[str]:
    cut = " ".join(_cut(word, longest) for word in words.split(" "))
    return textwrap.wrap(cut, longest, break_long_words=False, break_on_hyphens=False) or [cut]


def _cut(word: str, longest: int) -> str:
    front = longest // 3
    return word if len(word) <= longest else f"{word[:front]}…{word[front + 1 - longest :]}"


def height_limits(chart: Chart) -> tuple[float, float]:
    """Return the limits of a chart's vertical axis: lines, their bands, and guides."""
    lows = [float((line.y - line.band).min()) for line in chart.lines]
    high = max(float((line.y + line.band).max()) for line in chart.lines)
    return around(min([*lows, *(float(g.y.min()) for g in chart.guides)]), high, chart.y_log)


ROUNDS, BITS, SECONDS, CLOCK = "rounds", "bits", "seconds", "simulated-seconds"
X_LABELS = {
    ROUNDS: "communication round",
    SECONDS: "wall time (s)",
    CLOCK: "time of the simulated federation (s)",
}
WIDE = 10.0  # from this ratio of most to fewest bits on, their axis is logarithmic


@dataclass(frozen=True)
class Drawn:
    """How methods are called and drawn."""

    looks: Mapping[str, Look]
    names: Mapping[str, str] = field(default_factory=dict)

    def name(self, group: Group) -> str:
        """Return the name of a group beside its line."""
        name = self.names.get(group.method, in_words(group.method))
        return name if group.finished else f"{name} (unfinished)"


def drawn(groups: Sequence[Group], names: Mapping[str, str] | None = None) -> Drawn:
    """Return how the methods of all groups are drawn."""
    methods = [(method_title(group.runs[0].config), group.method) for group in groups]
    return Drawn(looks(list(dict.fromkeys(methods))), names or {})


def charts(groups: Sequence[Group], how: Drawn, other: Group | None = None) -> list[Chart]:
    """Return the charts of one data set for which its runs have numbers."""
    titles = {
        "test-accuracy": (ACCURACY, "Test accuracy, average over clients (%)", 100.0, False),
        "bottom-decile": (DECILE, "Test accuracy, bottom decile of clients (%)", 100.0, False),
        "train-loss": ("train_loss", "Training loss, average over clients", 1.0, False),
    }
    for column in measured(groups):
        measure = MEASURES[column]
        titles[column.replace("_", "-")] = (column, measure.title, measure.factor, measure.log)
    found = []
    for name, (column, title, factor, log) in titles.items():
        curves = [(group, group.curve(column, factor)) for group in groups]
        chart = Chart(
            name, ROUNDS, title, in_words(groups[0].data), X_LABELS[ROUNDS], (), (), y_log=log
        )
        found += _against_all([one for one in curves if _finite(one[1])], how, chart)
    if other is not None:
        title = f"Test accuracy minus that of {how.name(other)} (points)"
        curves = [
            (group, minus(group, other, ACCURACY, 100)) for group in groups if group is not other
        ]
        chart = Chart("difference", ROUNDS, title, in_words(groups[0].data), X_LABELS[ROUNDS], ())
        lines = [
            _line(curve.rounds, group, curve, how) for group, curve in curves if _finite(curve)
        ]
        found += [replace(chart, lines=tuple(lines))] if lines else []
    return found + _of_clients(groups, how) + _of_consensus(groups, how)


def _finite(curve: Curve) -> bool:
    return bool(np.isfinite(curve.mean).any())


def _against_all(curves: Sequence[tuple[Group, Curve]], how: Drawn, chart: Chart) -> list[Chart]:
    """The chart against rounds, and against all else of which every curve has numbers."""
    if not curves:
        return []
    found = [_scaled(chart, [_line(curve.rounds, g, curve, how) for g, curve in curves])]
    counted = [(g, curve) for g, curve in curves if np.isfinite(curve.bits).all()]
    if any(curve.bits[-1] > 0 for _, curve in counted):
        found.append(_against_bits(counted, how, chart))
    for x, column in ((SECONDS, "seconds"), (CLOCK, "simulated_seconds")):
        if chart.column == CLOCK:
            continue
        clocks = [(g, curve, g.curve(column).mean) for g, curve in curves]
        lines = [_line(s, g, curve, how) for g, curve, s in clocks if np.isfinite(s).all()]
        if lines:
            found.append(_scaled(replace(chart, x=x, x_label=X_LABELS[x]), lines))
    return [one for one in found if one.lines]


def _against_bits(counted: Sequence[tuple[Group, Curve]], how: Drawn, chart: Chart) -> Chart:
    """The chart against the bits sent. A method that sends nothing has only its last value."""
    last = [curve.bits[-1] for _, curve in counted if curve.bits[-1] > 0]
    wide = max(last) >= WIDE * min(last)
    unit, prefix = bit_prefix(max(last))
    lines = [_line(curve.bits / unit, group, curve, how) for group, curve in counted]
    if wide:
        lines = [line if line.x[-1] == 0 else _part(line, line.x > 0) for line in lines]
    start = min(line.x[0] for line in lines if line.x[-1] > 0)
    lines = [line if line.x[-1] > 0 else _last_value(line, start) for line in lines]
    label = f"sent by all clients, up and down ({prefix}bit)"
    return _scaled(replace(chart, x=BITS, x_label=label, x_log=wide), lines)


def _scaled(chart: Chart, lines: Sequence[Line]) -> Chart:
    """Return the chart with lines; its axis is not logarithmic if one of them is negative."""
    log = chart.y_log and all((line.y >= 0).all() for line in lines)
    if log:
        lines = [line for line in (_part(line, line.y > 0) for line in lines) if len(line.x)]
        lines = [replace(line, band=np.minimum(line.band, 0.9 * line.y)) for line in lines]
    return replace(chart, lines=tuple(lines), y_log=log)


def _of_clients(groups: Sequence[Group], how: Drawn) -> list[Chart]:
    """Each method's clients from the least to the most accurate one."""
    lines = []
    for group in groups:
        accuracies = group.client_accuracies()
        if accuracies is not None:
            share = 100 * np.arange(1, len(accuracies) + 1) / len(accuracies)
            none = np.zeros_like(share)
            curve = Curve(share, none, 100 * np.sort(accuracies), none)
            lines.append(_line(share, group, curve, how))
    title, x_label = "Test accuracy of each client (%)", "clients, least accurate first (%)"
    mark = (10.0, "bottom decile")
    subtitle = in_words(groups[0].data)
    return (
        [Chart("clients", "", title, subtitle, x_label, tuple(lines), mark=mark)] if lines else []
    )


def _of_consensus(groups: Sequence[Group], how: Drawn) -> list[Chart]:
    """The squared distance from consensus, and the predicted one from its start."""
    pairs = []
    for group in groups:
        curve = group.curve(DISTANCE)
        if (curve.mean > 0).any():
            line = _line(curve.rounds, group, curve, how)
            line = _part(line, line.y > 0)
            pairs.append((group, replace(line, band=np.minimum(line.band, 0.9 * line.y))))
    if not pairs:
        return []
    floor = min(float(line.y.min()) for _, line in pairs) / 2
    end = max(float(line.x[-1]) for _, line in pairs)
    guides = []
    for group, line in pairs:
        left = numbers(group)[0]
        if 0 < left < 1:
            last = line.x[0] + np.log(floor / line.y[0]) / np.log(left)
            x = np.linspace(line.x[0], min(last, end), 50)
            y = line.y[0] * left ** (x - line.x[0])
            guides.append(Line(x, y, np.zeros_like(x), "", line.look, line.method))
    subtitle = in_words(groups[0].data)
    subtitle += "; thin: what averaging alone is predicted to leave" if guides else ""
    title = "Distance from consensus, (1/n) Σ ‖x − x̄‖²"
    lines = tuple(line for _, line in pairs)
    return [
        Chart("consensus-distance", ROUNDS, title, subtitle, X_LABELS[ROUNDS], lines,
              tuple(guides), y_log=True)
    ]  # fmt: skip


def _line(x: np.ndarray, group: Group, curve: Curve, how: Drawn) -> Line:
    look = how.looks[group.method]
    line = Line(x, curve.mean, curve.deviation, how.name(group), look, group.method)
    return _part(line, np.isfinite(curve.mean))


def _part(line: Line, keep: np.ndarray) -> Line:
    return replace(line, x=line.x[keep], y=line.y[keep], band=line.band[keep])


def _last_value(line: Line, x: float) -> Line:
    name = f"{line.name} (sends nothing)"
    return replace(line, x=np.array([x]), y=line.y[-1:], band=line.band[-1:], name=name)


def kept(values: np.ndarray, intervals: int) -> np.ndarray:
    """Return which points of a curve are kept so that its drawing looks the same."""
    points = len(values)
    if points <= 2 * intervals:
        return np.arange(points)
    edges = np.linspace(0, points, intervals + 1).astype(int)
    width = int(np.diff(edges).max())
    # Each part as a row; the shorter ones repeat their last point.
    places = np.minimum(edges[:-1, None] + np.arange(width), edges[1:, None] - 1)
    parts = values[places]
    rows = np.arange(intervals)
    chosen = [places[rows, parts.argmin(axis=1)], places[rows, parts.argmax(axis=1)]]
    return np.unique(np.concatenate([*chosen, [0, points - 1]]))
