"""A chart as inline SVG: lines with dashes, markers, bands, and names beside their last values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpifed.report.charts import Chart, Line, bars, folded, height_limits, kept
from mpifed.report.drawing import beside, marked, spread
from mpifed.report.looks import Look
from mpifed.report.page.markup import text
from mpifed.report.scale import Scale

WIDE, HIGH = 900, 380
SMALL_WIDE, SMALL_HIGH = 560, 300
LEFT, TOP, BOTTOM = 58, 14, 44
LETTER = 8.0  # width of a letter in the names, at most
NAMES = 0.38  # of the width, for names at most
APART = 16  # between the names of two lines
OVER = 12  # by how much the names may be higher than the vertical axis
BAR = 6  # between the bars of two lines
PIXELS = 4  # pixels for each interval of a thinned curve
# Markers, as matplotlib names them.
SHAPES = {
    "o": '<circle r="3.2"/>',
    "s": '<rect x="-3" y="-3" width="6" height="6"/>',
    "^": '<path d="M0-4L3.8 3H-3.8Z"/>',
    "D": '<path d="M0-4.2L4.2 0 0 4.2-4.2 0Z"/>',
    "v": '<path d="M0 4L3.8-3H-3.8Z"/>',
    "P": '<path d="M-1.4-4h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6Z"/>',
    "X": '<path d="M-3.4-3.4L3.4 3.4M3.4-3.4L-3.4 3.4" stroke-width="2"/>',
}


@dataclass(frozen=True)
class Frame:
    """Size and axes of a panel."""

    width: float
    height: float
    x: Scale
    y: Scale


def panels(chart: Chart, numbers: Mapping[str, int]) -> list[str]:
    """Return a drawing for each panel of a chart, all with the same axes."""
    groups = chart.panels()
    single = len(groups) == 1
    width, least = (WIDE, HIGH) if single else (SMALL_WIDE, SMALL_HIGH)
    names = folded([line.name for line in chart.lines], _letters(width))
    longest = max(len(part) for name in names for part in name.split("\n"))
    right = LETTER * longest + 26
    height = max([least, *(_room(lines, width) for lines in groups)])
    frame = Frame(
        width,
        height,
        Scale(*_x_limits(chart), LEFT, width - right, chart.x_log, chart.whole),
        Scale(*height_limits(chart), height - BOTTOM, TOP, chart.y_log),
    )
    return [_panel(chart, lines, frame, numbers) for lines in groups]


def most_points(chart: Chart) -> tuple[int, int]:
    """Return the points of the chart's longest line, and how many of them are drawn."""
    width = (WIDE if len(chart.panels()) == 1 else SMALL_WIDE) - LEFT
    longest = max(chart.lines, key=lambda line: len(line.x))
    return len(longest.x), len(kept(longest.y, _intervals(width)))


def swatch(look: Look) -> str:
    """Return a piece of a method's line with its marker."""
    line = f'<path d="M1 7H33" {_stroke(look)}/>'
    marker = f'<g transform="translate(17 7)" {_filled(look)}>{SHAPES[look.marker]}</g>'
    return f'<svg class="swatch" viewBox="0 0 34 14" aria-hidden="true">{line}{marker}</svg>'


def _letters(width: float) -> int:
    """The letters that fit into the margin of a panel."""
    return int((NAMES * width - 26) / LETTER)


def _sizes(names: Sequence[str]) -> np.ndarray:
    """The heights of names in one row or several."""
    return np.array([APART + (APART - 2) * name.count("\n") for name in names])


def _room(lines: Sequence[Line], width: float) -> float:
    """The least height of a panel whose names are beside its vertical axis."""
    names = folded([line.name for line in lines], _letters(width))
    return TOP + float(_sizes(names).sum()) - OVER + BOTTOM


def _intervals(width: float) -> int:
    return int(width * 0.7 / PIXELS)


def _x_limits(chart: Chart) -> tuple[float, float]:
    low = float(min(line.x[0] for line in chart.lines))
    high = float(max(line.x[-1] for line in chart.lines))
    if not chart.x:
        return 0.0, 100.0
    if high > low:
        return low, high
    return (low / 2, high * 2) if chart.x_log else (low, low + 1)


def _panel(chart: Chart, lines: Sequence[Line], frame: Frame, numbers: Mapping[str, int]) -> str:
    x, y = frame.x, frame.y
    last = [f"{line.name} ends at {line.y[-1]:.4g}" for line in lines]
    about = f"{chart.title} against {chart.x_label}. {'; '.join(last)}."
    scales = " ".join(
        f'data-{name}="{s.start:g} {s.end:g} {s.low:.9g} {s.high:.9g} {int(s.log)}"'
        for name, s in (("x", x), ("y", y))
    )
    parts = [
        f'<svg class="panel" viewBox="0 0 {frame.width:g} {frame.height:g}" tabindex="0" '
        f'role="img" aria-label="{text(about)}" {scales}>',
        _axes(chart, frame),
    ]
    shown = {line.method for line in lines}
    for guide in chart.guides:
        if guide.method in shown:
            parts.append(_guide(guide, frame, numbers))
    drawn = [_series(lines, index, frame, numbers) for index in range(len(lines))]
    return "\n".join([*parts, *drawn, *_names(lines, frame, numbers), "</svg>"])


def _axes(chart: Chart, frame: Frame) -> str:
    x, y = frame.x, frame.y
    parts = []
    for value, label in y.ticks(5):
        place = float(y.at(np.array([value]))[0])
        parts.append(f'<path class="grid" d="M{x.start:g} {place:.1f}H{x.end:.1f}"/>')
        parts.append(f'<text x="{x.start - 8:g}" y="{place + 4:.1f}" class="y">{label}</text>')
    for value, label in x.ticks(max(3, int((x.end - x.start) / 90))):
        place = float(x.at(np.array([value]))[0])
        parts.append(f'<path class="tick" d="M{place:.1f} {y.start:g}v5"/>')
        parts.append(f'<text x="{place:.1f}" y="{y.start + 19:g}" class="x">{label}</text>')
    middle = (x.start + x.end) / 2
    parts.append(f'<path class="axis" d="M{x.start:g} {y.end:g}V{y.start:g}H{x.end:.1f}"/>')
    parts.append(
        f'<text x="{middle:.1f}" y="{y.start + 38:g}" class="x">{text(chart.x_label)}</text>'
    )
    if chart.mark is not None:
        place = float(x.at(np.array([chart.mark[0]]))[0])
        parts.append(f'<path class="mark" d="M{place:.1f} {y.end:g}V{y.start:g}"/>')
        words = text(chart.mark[1])
        parts.append(f'<text x="{place + 5:.1f}" y="{y.end + 9:g}" class="m">{words}</text>')
    return "".join(parts)


def _series(lines: Sequence[Line], index: int, frame: Frame, numbers: Mapping[str, int]) -> str:
    line, moved = lines[index], bars(lines)
    colour = line.look.colour
    keep = kept(line.y, _intervals(frame.x.end - frame.x.start))
    x, y = frame.x.at(line.x[keep]), frame.y.at(line.y[keep])
    places = marked(len(x), index, len(lines))
    parts = [f'<g class="s" data-s="{numbers[line.method]}" data-name="{text(line.name)}">']
    if line.band.any():
        low = frame.y.at((line.y - line.band)[keep])
        high = frame.y.at((line.y + line.band)[keep])
        outline = _path(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]]))
        kind = "band" if moved is None else "band aside"
        parts.append(f'<path class="{kind}" d="{outline}Z" fill="{colour}" stroke="{colour}"/>')
        if moved is not None:
            at = beside(x[places], moved, index, BAR, (frame.x.start, frame.x.end))
            ends = [
                f"M{place:.1f} {high[k]:.1f}m-2.5 0h5m-2.5 0V{low[k]:.1f}m-2.5 0h5"
                for place, k in zip(at, places, strict=True)
            ]
            parts.append(f'<path class="bars" d="{"".join(ends)}" stroke="{colour}"/>')
    parts.append(f'<path class="line" d="{_path(x, y)}" {_stroke(line.look)}/>')
    if x[-1] < frame.x.end - 1:
        rest = f"M{x[-1]:.1f} {y[-1]:.1f}H{frame.x.end:.1f}"
        parts.append(f'<path class="rest" d="{rest}" stroke="{colour}"/>')
    shape = SHAPES[line.look.marker]
    uses = [f'<g transform="translate({x[k]:.1f} {y[k]:.1f})">{shape}</g>' for k in places]
    return "".join([*parts, f"<g {_filled(line.look)}>", *uses, "</g></g>"])


def _guide(guide: Line, frame: Frame, numbers: Mapping[str, int]) -> str:
    path = _path(frame.x.at(guide.x), frame.y.at(guide.y))
    number = numbers[guide.method]
    return f'<path class="guide" data-s="{number}" d="{path}" stroke="{guide.look.colour}"/>'


def _names(lines: Sequence[Line], frame: Frame, numbers: Mapping[str, int]) -> list[str]:
    heights = frame.y.at(np.array([line.y[-1] for line in lines]))
    names = folded([line.name for line in lines], _letters(frame.width))
    sizes = _sizes(names)
    places = spread(heights, sizes, (frame.y.end - OVER / 2, frame.y.start + OVER / 2))
    places -= (sizes - APART) / 2  # of the first rows
    end = frame.x.end
    found = []
    for line, name, height, place in zip(lines, names, heights, places, strict=True):
        leader = f'<path d="M{end + 3:.1f} {height:.1f}L{end + 15:.1f} {place:.1f}"/>'
        first, *rest = name.split("\n")
        x = f'x="{end + 19:.1f}"'
        more = "".join(f'<tspan {x} dy="{APART - 2}" class="more">{text(r)}</tspan>' for r in rest)
        found.append(
            f'<g class="name" data-s="{numbers[line.method]}" stroke="{line.look.colour}">{leader}'
            f'<text {x} y="{place + 4:.1f}">{text(first)}{more}<title>{text(line.name)}</title>'
            "</text></g>"
        )
    return found


def _path(x: np.ndarray, y: np.ndarray) -> str:
    points = [f"{a:.2f} {b:.2f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    return "M" + "L".join(points)


def _stroke(look: Look) -> str:
    dashes = " ".join(f"{2 * length:g}" for length in look.strokes)
    return f'stroke="{look.colour}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def _filled(look: Look) -> str:
    return f'class="marks" fill="{look.colour}" stroke="{look.colour}"'
