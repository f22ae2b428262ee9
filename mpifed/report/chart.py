"""A chart as data: lines on a pair of axes, drawn by matplotlib or as SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpifed.report.looks import Look
from mpifed.report.scale import around

LINES = 6
"""Lines in one panel, at most; more make small multiples."""

BANDS = 2
"""Bands in one panel, at most; with more of them, bars beside each other, which cannot merge."""


@dataclass(frozen=True)
class Line:
    """One curve of finite points.

    Attributes
    ----------
    x : ndarray, shape (points,)
        The places.
    y : ndarray, shape (points,)
        The values.
    band : ndarray, shape (points,)
        The half width of the band around them.
    name : str
        The name beside its last value.
    look : Look
        Colour, dashes and marker.
    method : str
        The label of its method in the tables.
    panel : str
        The title of its panel; empty where lines are shared out among panels.
    """

    x: np.ndarray
    y: np.ndarray
    band: np.ndarray
    name: str
    look: Look
    method: str = ""
    panel: str = ""


@dataclass(frozen=True)
class Chart:
    """Lines on a pair of axes.

    Attributes
    ----------
    column : str
        What it shows, as 'test-accuracy'; together with ``x`` the name of its file.
    x : str
        One of 'rounds', 'bits', 'seconds', 'simulated-seconds'; empty for another axis.
    title : str
        The title: the vertical axis with its unit.
    subtitle : str
        The data set, and remarks.
    x_label : str
        The label of the horizontal axis with its unit.
    lines : tuple of Line
        The lines.
    guides : tuple of Line
        Thin dashed lines without names.
    x_log, y_log : bool
        Whether an axis is logarithmic.
    mark : tuple of float and str, or None
        A place on the horizontal axis that is marked, and its name.
    """

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
        """Return the lines of each panel: at most ``LINES``, as evenly as it can be.

        Lines that name different panels are not in one, nor are lines of one colour and one kind of
        dashes, and panels are in the order of the lines.
        """
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
    """Return how far the bars of each line are moved apart, in widths of a bar.

    Parameters
    ----------
    lines : sequence of Line
        The lines of a panel.

    Returns
    -------
    list of float or None
        None where bands are drawn, as at most ``BANDS`` lines have one.
    """
    if sum(bool(line.band.any()) for line in lines) <= BANDS:
        return None
    return [index - (len(lines) - 1) / 2 for index in range(len(lines))]


def folded(names: Sequence[str], longest: int) -> list[str]:
    r"""Return names of lines, those that are too long in several rows.

    Parameters
    ----------
    names : sequence of str
        The names.
    longest : int
        Letters that fit into a row, at least 4.

    Returns
    -------
    list of str
        The first row of several is the method; only a word that is too long for a row is without
        its middle.

    Examples
    --------
    >>> folded(["FedEM, learning rate = 0.1", "FedEM, median, lag = 2, q = 1", "Local"], 20)
    ['FedEM\nlearning rate = 0.1', 'FedEM\nmedian, lag = 2,\nq = 1', 'Local']
    """
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
    """Return the limits of a chart's vertical axis: lines, their bands, and guides.

    Parameters
    ----------
    chart : Chart
        The chart.
    """
    lows = [float((line.y - line.band).min()) for line in chart.lines]
    high = max(float((line.y + line.band).max()) for line in chart.lines)
    return around(min([*lows, *(float(g.y.min()) for g in chart.guides)]), high, chart.y_log)
