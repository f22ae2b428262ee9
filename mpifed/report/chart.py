"""A chart as data: lines on a pair of axes, drawn by matplotlib or as SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpifed.report.looks import Look
from mpifed.report.scale import around

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
